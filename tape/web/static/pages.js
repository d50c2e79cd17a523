// The smaller pages: graph, context, diff, search, entry, usage, health.

import { bytes, chip, cost, count, facts, h, one, plain, put, say, short, svg, verbatim, when } from "./dom.js";
import { heading } from "./frame.js";
import { parts, speaker, words } from "./message.js";
import { query, source } from "./source.js";

const link = (address, ...children) => h("a", { href: source.href(address) }, children);

export function graph(page, main) {
  const members = h("ul", { class: "members" }, page.members.map((tape) => h("li", {}, link(`/t/${tape.ref}`, tape.name ?? tape.id), " ", chip(tape.status, tape.status),
    facts(count(tape.messages, "message")))));
  const rows = page.rows.map((row) => h("li", row.entry ? { class: row.own ? "own" : "", tabindex: "-1", "data-item": "" } : { class: "lead", "aria-hidden": "true" }, svg(row.svg), row.entry
    ? [h("span", { class: "line" }, h("a", { class: "seq", href: source.href(`/t/${row.ref}@${row.entry.seq}`), "data-open": "" }, row.tape, ` #${row.entry.seq}`), " ",
      h("strong", {}, row.entry.kind), " ", h("span", { class: "gist" }, row.entry.gist)),
    row.entry.child ? link(`/t/${row.entry.child}`, "open the fork →") : null] : null));
  put(main, heading(page), h("div", { class: "family" }, h("section", { "aria-labelledby": "drawn" }, h("h2", { id: "drawn" }, "Forks and merges, newest first"), h("ol", { class: "graph" }, rows)),
    h("section", { "aria-labelledby": "members" }, h("h2", { id: "members" }, "Tapes of this family"), members, page.left_out ? h("p", {}, `and ${page.left_out} more`) : null)));
}

function share(tokens, all) {
  const bar = h("span", { class: "share", "aria-hidden": "true" }, h("span", {}));
  bar.firstChild.style.width = `${Math.max(1, Math.round((100 * tokens) / (all || 1)))}%`;
  return bar;
}

function region(each, all) {
  return h("article", { class: `message region ${speaker(each)} ${each.region} ${each.same ? "same" : ""}`, tabindex: "-1", "data-item": "" },
    h("header", {}, h("h3", {}, each.role), each.region === "altered" ? chip("altered for the model") : null,
      each.same ? chip("unchanged") : null, each.step && each.step !== "as recorded" ? chip(each.step) : null,
      facts(share(each.tokens, all), each.actor, `${short(each.tokens)} tok`,
        each.source ? h("a", { class: "seq", "data-open": "", href: source.href(`/e/${each.source.ref}/${each.source.seq}`) }, `#${each.source.seq}`) : null)),
    h("div", { class: "body" }, h("details", { class: "fold", open: !each.same }, h("summary", {}, h("span", { class: "peek" }, verbatim((each.parts[0]?.text ?? "").slice(0, 100)))), parts(each, { ref: each.source?.ref, seq: each.region === "message" ? each.source?.seq ?? 0 : 0 }))));
}

function cause(moved) {
  if (!moved) return null;
  return h("p", { class: "cause" }, chip(moved.cause, "warning"), " ", moved.why, " ",
    moved.source ? link(`/e/${moved.source.ref}/${moved.source.seq}`, `#${moved.source.seq}`) : null, moved.actor ? [" by ", moved.actor] : null,
    `. The provider's cache loses about ${count(moved.lost_tokens, "token")} of the prefix and keeps ${plain(moved.kept_tokens)}${moved.cost ? `, at a cost of ${cost(moved.cost)}` : ""}.`);
}

function moved(page) {
  const { moved: change } = page;
  if (page.explained === false) return h("p", { class: "empty" }, "This context is too large to compare here. Give a budget, or use tape blame.");
  if (!change) return h("p", { class: "empty" }, "No context was recorded before this one.");
  if (change.error) return h("p", { class: "problem" }, change.error);
  const all = change.bytes || 1;
  return [h("p", {}, "Compared with the context recorded at ", link(`/t/${page.tape.ref}/context/${change.seq}`, `#${change.seq}`), ": ",
    h("strong", {}, change.only_grew ? "it only grew." : `the first changed byte is ${plain(change.kept_bytes)}.`),
    ` ${bytes(change.kept_bytes)} of ${bytes(change.bytes)} (${Math.floor((100 * change.kept_bytes) / all)}%) can come from the provider's cache.`),
  cause(page.cause),
  change.words ? [h("h3", {}, `First change: region ${change.region + 1}`), words(change.words)] : null,
  ];
}

const further = (more) => (more ? h("li", {}, `and ${plain(more)} more`) : null);

export function context(page, main) {
  const go = h("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    source.go(`/t/${page.tape.ref}/context/${one("#step").value || page.seq}${query({ budget: one("#budget").value })}`);
  } }, h("p", {}, h("label", { for: "step" }, "At seq"), h("input", { id: "step", type: "number", min: "1", max: page.head, value: page.seq })),
  h("p", {}, h("label", { for: "budget" }, "Budget in tokens"), h("input", { id: "budget", type: "number", min: "1", value: page.budget })), h("p", {}, h("button", { class: "main" }, "Show")));
  const steps = page.steps.length ? h("details", { class: "fold" }, h("summary", {}, count(page.steps.length, "recorded step")), h("ul", {}, page.steps.map((step) =>
    h("li", {}, link(`/t/${page.tape.ref}/context/${step.seq}`, `#${step.seq}`), " ", when(step.at))))) : null;
  const step = (seq, label, id) => (seq ? h("a", { id, href: source.href(`/t/${page.tape.ref}/context/${seq}`) }, label) : null);
  put(main, heading({ ...page, page: "context" }), source.report ? null : go, h("p", { class: "steps", hidden: !page.before && !page.after },
    step(page.before, "‹ Previous recorded step", "back"), step(page.after, "Next recorded step ›", "forth")), h("p", { class: "lead" }, h("strong", {}, page.recorded ? "What the model saw" : "What the model would see"),
    ` at entry ${page.seq}: ${page.partial ? "more than" : "about"} ${plain(page.tokens)} tokens${page.budget ? ` of ${plain(page.budget)}` : ""}, policy ${page.policy}.`), steps,
  page.still ? null : h("section", { class: "panel", "aria-labelledby": "since" }, h("h2", { id: "since" }, "Since the previous step"), moved(page)),
  h("section", { "aria-labelledby": "in" }, h("h2", { id: "in" }, `Included: ${count(page.regions.length + page.left_out, "region")}`), page.left_out ? h("p", {}, `The first ${page.left_out} are not shown.`) : null, page.partial ? h("p", {}, "Earlier messages were not read. Give a budget to see what fits it.") : null, page.regions.map((each) => region(each, page.tokens))),
  h("section", { class: "panel", "aria-labelledby": "out" }, h("h2", { id: "out" }, "Left out, and why"), page.excluded.length ? h("ul", {}, page.excluded.map((out) =>
    h("li", {}, link(`/e/${out.ref}/${out.first}`, `#${out.first}`), out.last === out.first ? null : [" to ", link(`/e/${out.ref}/${out.last}`, `#${out.last}`)], ` ${out.why}`)), further(page.more_excluded)) : h("p", { class: "empty" }, "Nothing was left out."),
  page.repairs.length ? [h("h3", {}, "Repaired for the model"), h("ul", {}, page.repairs.map((fix) => h("li", {}, `${fix.what} `, fix.call, " in ", fix.message_id)), further(page.more_repairs))] : null));
}

// One side of a pair: with the words that changed to it marked, if there are two.
function side(shown, spans, kept) {
  if (!shown) return h("div", { class: "side none", role: "cell" });
  return h("div", { class: "side", role: "cell" }, facts(h("strong", {}, shown.role), h("a", { class: "seq", href: source.href(`/e/${shown.ref}/${shown.seq}`) }, `#${shown.seq}`)),
    spans ? words(spans.filter(([kind]) => kind === "equal" || kind === kept)) : parts(shown, shown));
}

export function diff(page, main) {
  const form = h("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    source.go(`/diff${query(Object.fromEntries(new FormData(form)))}`);
  } }, [["a", "From (tape or tape@seq)"], ["b", "To"]].map(([name, label]) => h("p", {}, h("label", { for: name }, label), h("input", { id: name, name, value: page[name] ?? "", required: true }))), h("p", {}, h("button", { class: "main" }, "Compare")));
  const rows = (page.rows ?? []).map((row) => "same" in row
    ? h("div", { class: "same", role: "row" }, h("span", { role: "cell" }, `${count(row.same, "unchanged message")}`))
    : h("div", { class: "pair", role: "row", tabindex: "-1", "data-item": "" }, side(row.a, row.words, "removed"), side(row.b, row.words, "added")));
  const named = (tape, ref) => h("div", { role: "columnheader" }, h("a", { href: source.href(`/t/${ref}`) }, tape.name ?? tape.id), page.still ? null : ref.includes("@") ? ` at ${ref.split("@")[1]}` : " now");
  put(main, h("div", { class: "heading" }, h("h1", {}, "Compare")), page.still ? null : form, page.rows === null ? null
    : [h("p", { role: "status" }, page.differing ? `${count(page.differing, "difference")}` : "No differences."),
      h("div", { class: "compare", role: "table", "aria-label": "Both sides" }, h("div", { class: "pair top", role: "row" }, named(page.left, page.a), named(page.right, page.b)), rows)]);
}

export function snippet(text) {
  return text.split(/(«[^»]*»)/).map((part) => (part.startsWith("«") ? h("mark", {}, verbatim(part.slice(1, -1))) : verbatim(part)));
}

export function search(page, main) {
  put(main, h("div", { class: "heading" }, h("h1", {}, page.q ? ["Search: ", page.q] : "Search")),
    page.within ? h("p", {}, "In ", link(`/t/${page.within.ref}`, page.within.name ?? page.within.id), ". ", link(`/search${query({ q: page.q })}`, "Search all tapes")) : null,
    h("p", { role: "status" }, page.q ? `${count(page.hits.length, "message")}${page.more ? " or more" : ""}` : "Type words above. Use quotes for a phrase and a trailing * for a prefix."),
    h("ol", { class: "hits" }, page.hits.map((hit) => h("li", { "data-item": "", tabindex: "-1" },
      h("a", { href: source.href(`/t/${hit.ref}?m=${encodeURIComponent(hit.message)}`), "data-open": "" }, hit.tape, ` #${hit.seq}`), " ", facts(hit.role, when(hit.at)),
      h("p", {}, snippet(hit.snippet))))));
}

export function entry(page, main) {
  const raw = page.entry;
  const about = [["seq", raw.seq], ["kind", raw.kind], ["key", raw.key], ["actor", raw.actor], ["recorded", when(raw.at)], ["occurred", raw.occurred_at && when(raw.occurred_at)],
    ["source", raw.source && link(`/e/${raw.source.ref}/${raw.source.seq}`, raw.source.tape, ` #${raw.source.seq}`)], ["version", raw.version], ["hash", h("code", { class: "hash" }, raw.hash)],
    ["meta", raw.meta && h("pre", { tabindex: "0" }, JSON.stringify(raw.meta, null, 2))], ["unreadable", raw.unreadable]].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const step = (seq, label, rel) => (seq >= 1 && seq <= page.head ? h("a", { href: source.href(`/e/${page.tape.ref}/${seq}`), rel, id: rel === "prev" ? "back" : "forth" }, label) : null);
  put(main, heading({ ...page, head: page.head }), h("p", { class: "steps" }, step(raw.seq - 1, "‹ Previous entry", "prev"), " ", step(raw.seq + 1, "Next entry ›", "next"), " ",
    link(`/t/${page.tape.ref}@${raw.seq}`, "The tape at this entry"), " ", link(`/t/${page.tape.ref}/context/${raw.seq}`, "What the model would see")),
  h("h2", {}, `Entry ${raw.seq}`), h("dl", { class: "facts-list" }, about.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  page.message ? h("section", { "aria-labelledby": "says" }, h("h2", { id: "says-title" }, "What it says"), h("div", { class: `message ${speaker(page.message)}` }, h("div", { class: "body" }, parts(page.message, { ref: page.tape.ref, seq: raw.seq })))) : null,
  h("h2", {}, "Payload"), h("pre", { class: "json", tabindex: "0", "aria-label": "Payload as JSON" }, page.payload.text),
  page.payload.length ? h("p", { class: "cutoff" }, `${bytes(page.payload.text.length)} of ${bytes(page.payload.length)}. `) : null,
  source.report ? null : h("p", {}, h("button", { type: "button", onclick: () => source.save(`/e/${page.tape.ref}/${raw.seq}/raw`, `entry-${raw.seq}.json`) }, "Save the whole entry as JSON")));
}

export function usage(page, main) {
  const totals = page.totals;
  put(main, heading(page), h("dl", { class: "totals" }, [["Calls", plain(totals.calls)], ["Input tokens", plain(totals.input_tokens)], ["Output tokens", plain(totals.output_tokens)], ["Cached tokens", plain(totals.cached_tokens)], ["Cost", cost(totals.cost)]].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    page.plots.length ? h("div", { class: "plots" }, page.plots.map((plot) => h("figure", {}, h("figcaption", {}, plot[1]["aria-label"]), svg(plot)))) : h("p", { class: "empty" }, "No usage is recorded on this tape."),
    page.models.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "By model" }, h("table", {}, h("thead", {}, h("tr", {}, ["Model", "Calls", "Input", "Output", "Cached", "Cost"].map((title, place) => h("th", { scope: "col", class: place ? "number" : null }, title)))),
      h("tbody", {}, page.models.map((model) => h("tr", {}, h("th", { scope: "row" }, model.model), [plain(model.calls), plain(model.input_tokens), plain(model.output_tokens), plain(model.cached_tokens), cost(model.cost)].map((value) => h("td", { class: "number" }, value))))))) : null);
}

export function health(page, main) {
  const found = h("ul", { class: "findings" });
  const bar = h("progress", { hidden: true, "aria-label": "Progress" });
  const button = h("button", { type: "button", class: "main", onclick: () => {
    button.disabled = true;
    put(found);
    bar.hidden = false;
    const finding = ({ check, level, what, mend }) => {
      found.append(h("li", { class: level }, chip(level, level), h("strong", {}, ` ${check} `), what, mend ? h("p", {}, "Fix: ", h("code", {}, mend)) : null));
    };
    const progress = ({ done, total }) => {
      bar.max = total || 1;
      bar.value = done;
    };
    const over = (error) => {
      bar.hidden = true;
      if (error) found.append(h("li", { class: "error" }, error.message));
      button.disabled = false;
      say(`Checked: ${count(found.children.length, "finding")}`);
    };
    source.listen("/health/live", { finding, progress, over });
  } }, "Check now");
  put(main, h("div", { class: "heading" }, h("h1", {}, "Health")), h("p", { class: "chips" }, chip(page.ok ? "ok" : "not ok", page.ok ? "completed" : "bad")),
    h("dl", { class: "facts-list" }, [["Engine", `${page.engine} ${page.server}`], ["Schema", page.schema === page.expected_schema ? page.schema : `${page.schema}, this release needs ${page.expected_schema}`], ["Latency", `${(page.latency * 1000).toFixed(1)} ms`],
      ["Search index", page.index_lag === null ? "shared by all owners" : `${plain(page.index_lag)} entries behind`], ["Owner", page.owner ?? "all"],
      ["Last verified", page.verified ? [link(`/t/${page.verified.ref}`, page.verified.tape), ` up to ${page.verified.seq}, `, when(page.verified.at)] : "never"]].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("section", { "aria-labelledby": "examine" }, h("h2", { id: "examine" }, "Doctor and verify"), h("p", {}, "Checks the whole store: every hash, every row of the view, the search index."), h("p", {}, button, " ", bar), found));
}

