// One message: who speaks, what it says, tools and thoughts folded, long texts a piece at a time.

import { bytes, count, facts, h, plain, short, verbatim, when } from "./dom.js";
import { source } from "./source.js";

const PIECES = 16;

function text(part, place, entry) {
  const body = h("div", { class: part.part === "text" ? "text" : "text code" }, verbatim(part.text));
  if (!part.length) return body;
  let shown = part.text.length;
  let pieces = 0;
  const more = h("button", { type: "button", class: "more" });
  const label = () => `Show more (${bytes(shown)} of ${bytes(part.length)})`;
  more.textContent = label();
  more.addEventListener("click", async () => {
    more.disabled = true;
    const address = `/e/${entry.ref}/${entry.seq}/text?part=${place}&from=${shown}`;
    const piece = await source.load(address);
    body.append(verbatim(piece.text));
    shown += piece.text.length;
    pieces += 1;
    more.disabled = false;
    more.textContent = label();
    if (shown >= part.length || pieces >= PIECES) more.remove();
  });
  const whole = source.report ? null : h("button", { type: "button", class: "more", onclick: () => source.save(`/e/${entry.ref}/${entry.seq}/raw`, `entry-${entry.seq}.json`) }, "Save as a file");
  return [body, h("p", { class: "cutoff" }, entry.seq ? more : count(part.length, "character"), " ", entry.seq ? whole : null)];
}

function folded(kind, title, part, body, open) {
  const peek = part.text.replace(/\s+/g, " ").slice(0, 120);
  return h("details", { class: `fold ${kind}`, open },
    h("summary", {}, h("span", { class: "tool" }, title), " ", h("span", { class: "peek" }, verbatim(peek))), body);
}

export function parts(shown, entry) {
  const drawn = shown.parts.map((part, place) => {
    const body = text(part, place, entry);
    switch (part.part) {
      case "text": return body;
      case "call": return folded("call", ["Call ", part.name], part, body);
      case "result": return folded(part.error ? "result failed" : "result", [part.error ? "Failed result" : "Result", part.name ? [" of ", part.name] : null], part, body, part.error);
      case "thinking": return folded("thinking", "Thinking", part, body);
      case "media": return h("p", { class: "media" }, part.href
        ? h("a", { href: part.href, rel: "noreferrer noopener nofollow", target: "_blank" }, part.label) : part.label, part.text ? body : null);
      default: return folded("other", part.kind, part, body);
    }
  });
  if (shown.more) drawn.push(h("p", { class: "cutoff" }, `and ${count(shown.more, "more part")}`));
  return drawn.length ? drawn : [h("p", { class: "empty" }, "(empty)")];
}

export function speaker({ role, parts: listed }) {
  if (listed.length && listed.every((part) => part.part === "result")) return "tool";
  return { user: "user", human: "user", assistant: "assistant", ai: "assistant", tool: "tool", function: "tool", system: "system", developer: "system" }[role] ?? "other";
}

// A message of a conversation. `tape` is the card of the tape, `tools` adds what a page offers to do with it.
export function message(shown, tape, tools) {
  const entry = { ref: tape.ref, seq: shown.inherited ? 0 : shown.revision };
  const branches = shown.branches;
  const branch = (id, label, sign) => id
    ? h("a", { href: source.href(`/t/${tape.ref}?branch=${encodeURIComponent(id)}`), "aria-label": label }, sign)
    : h("span", { class: "off", "aria-hidden": "true" }, sign);
  const title = `m-${shown.seq}-title`;
  return h("article", { class: `message ${speaker(shown)}`, tabindex: "-1", "aria-labelledby": title, "data-item": "", id: `m-${shown.seq}` },
    h("header", {},
      h("h2", { id: title }, shown.role, speaker(shown) === "tool" && shown.role !== "tool" ? " · tool results" : null, shown.name ? h("span", { class: "who" }, " ", shown.name) : null),
      branches ? h("span", { class: "branches" }, branch(branches.previous, "Previous branch", "‹"),
        h("span", {}, `${branches.at}/${branches.of}`), branch(branches.next, "Next branch", "›")) : null,
      shown.revision !== shown.seq ? chip(shown, tape) : null,
      facts(shown.inherited ? "inherited" : null,
        shown.tokens ? h("span", { title: `about ${plain(shown.tokens)} tokens` }, `${short(shown.tokens)} tok`) : null,
        when(shown.at),
        shown.inherited ? null : h("a", { href: source.href(`/e/${tape.ref}/${shown.revision}`), class: "seq", "data-open": "" }, `#${shown.revision}`)),
      tools ? tools(shown) : null),
    h("div", { class: "body" }, parts(shown, entry)));
}

function chip(shown, tape) {
  return h("a", { class: "chip", href: source.href(`/diff?a=${tape.ref}@${shown.revision - 1}&b=${tape.ref}@${shown.revision}`) }, "revised");
}

export function words(spans) {
  return h("div", { class: "text words" }, spans.map(([kind, said]) =>
    kind === "equal" ? verbatim(said) : h(kind === "added" ? "ins" : "del", {}, verbatim(said))));
}
