// The list of tapes.

import { all, chip, cost, h, one, plain, put, short, svg, when } from "./dom.js";
import { query, source } from "./source.js";

function row(tape) {
  return h("tr", { "data-item": "", tabindex: "-1", "data-ref": tape.ref },
    h("td", { class: "name" }, h("a", { href: source.href(`/t/${tape.ref}`), "data-open": "" }, tape.name ?? tape.id),
      tape.name ? h("span", { class: "id" }, tape.id) : null,
      h("span", { class: "chips" }, tape.parent ? chip("fork") : null, tape.labels.map((label) => chip(label, "label")))),
    h("td", {}, chip(tape.status, tape.status)),
    h("td", { class: "agent" }, tape.agent ?? "", h("span", { class: "model" })),
    h("td", { class: "owner" }, tape.owner ?? ""),
    h("td", { class: "number" }, plain(tape.messages)),
    h("td", { class: "number" }, tape.tokens ? short(tape.tokens) : "–"),
    h("td", { class: "number" }, tape.cost ? cost(tape.cost) : "–"),
    h("td", { class: "activity" }),
    h("td", { class: "at" }, when(tape.updated_at)));
}

async function lately(rows) {
  const refs = all("tr[data-ref]:not([data-asked])", rows).map((each) => {
    each.dataset.asked = "1";
    return each.dataset.ref;
  });
  if (!refs.length) return;
  const { activity } = await source.load(`/activity?of=${refs.join(",")}`);
  for (const each of all("tr[data-ref]", rows)) {
    const about = activity[each.dataset.ref];
    if (!about) continue;
    put(one(".activity", each), svg(about.spark));
    if (about.model) put(one(".model", each), about.model);
  }
}

export function tapes(page, main) {
  let cursor = page.cursor;
  const owned = page.tapes.some((tape) => tape.owner);
  const filters = page.filters;
  const body = h("tbody", {}, page.tapes.map(row));
  const field = (name, label, type = "text") => h("p", {}, h("label", { for: `by-${name}` }, label), h("input", { id: `by-${name}`, name, type, value: filters[name] ?? "" }));
  const form = h("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    source.go(`/${query(Object.fromEntries(new FormData(form)))}`);
  } }, field("q", "Name, id or label", "search"), field("agent", "Agent"), field("label", "Label"), field("owner", "Owner"),
  h("p", {}, h("label", { for: "by-status" }, "Status"), h("select", { id: "by-status", name: "status", onchange: () => form.requestSubmit() },
    ["", "active", "completed", "abandoned", "ended", "discarded"].map((status) => h("option", { value: status, selected: status === (filters.status ?? "") }, status || "any")))),
  h("p", {}, h("button", { class: "main" }, "Filter")));
  const more = h("button", { type: "button", class: "more wide", hidden: !cursor, onclick: async () => {
    const next = await source.load(`/${query({ ...filters, cursor })}`);
    body.append(...next.tapes.map(row));
    cursor = next.cursor;
    more.hidden = !cursor;
    lately(body);
  } }, "More tapes");
  put(main, h("div", { class: "heading" }, h("h1", {}, "Tapes")), source.report ? null : form,
    page.tapes.length ? h("table", { class: owned ? "tapes" : "tapes unowned" }, h("thead", {}, h("tr", {}, [["Tape"], ["Status"], ["Agent, model", "agent"], ["Owner", "owner"], ["Messages", "number"], ["Tokens", "number"], ["Cost", "number"], ["Activity", "activity"], ["Last change", "at"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), body)
      : h("p", { class: "empty" }, "No tape matches these filters."), more);
  lately(body);
}
