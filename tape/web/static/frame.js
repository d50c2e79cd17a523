// What is around every page: the bar on top, the heading of a tape, its tabs, and the keys.

import { all, chip, cost, count, dialog, facts, h, one, plain, put, short, when } from "./dom.js";
import { at, source } from "./source.js";

export function top(page) {
  if (page.still) return one("#top").remove();
  const stores = page.stores ?? [];
  put(one("#top"),
    h("a", { class: "brand", href: source.href("/") }, h("span", { "aria-hidden": "true", class: "reel" }), "tape"),
    stores.length > 1
      ? h("nav", { "aria-label": "Stores", class: "stores" }, stores.map((store) =>
        h("a", { href: `${store.base}/`, title: store.title, "aria-current": store.name === page.store ? "true" : null }, store.name)))
      : h("span", { class: "where", title: stores[0]?.title }, page.store),
    h("form", { role: "search", class: "find", onsubmit: (event) => {
      event.preventDefault();
      source.go(`/search?q=${encodeURIComponent(one("#q").value)}`);
    } }, h("input", { id: "q", type: "search", name: "q", placeholder: "Search all tapes  /", "aria-label": "Search all tapes", value: page.page === "search" ? page.q : null })),
    h("nav", { "aria-label": "Store", class: "links" },
      h("a", { href: source.href("/diff") }, "Compare"), source.report ? null : h("a", { href: source.href("/health") }, "Health"),
      h("button", { type: "button", onclick: help, "aria-label": "Keyboard shortcuts" }, "?")));
}

const TABS = [["conversation", "Conversation", ""], ["log", "Log", "/log"], ["graph", "Graph", "/graph"], ["context", "Context", "/context"], ["usage", "Usage", "/usage"]];

export function heading(page) {
  const tape = page.tape;
  const ref = at(tape.ref, page.seq, page.head);
  return h("div", { class: "heading" },
    page.still ? null : h("p", { class: "crumbs" }, h("a", { href: source.href("/") }, "Tapes"),
      tape.parent ? [" / ", h("a", { href: source.href(`/t/${tape.parent.ref}`), rel: "up" }, "fork of ", tape.parent.id)] : null,
      " / ", h("span", {}, tape.id)),
    h("h1", {}, tape.name ?? tape.id),
    h("p", { class: "chips" }, chip(tape.status, page.still ? "" : tape.status), tape.agent ? chip(tape.agent) : null,
      tape.owner ? chip(["owner ", tape.owner]) : null, tape.labels.map((label) => chip(label, "label")),
      facts(count(tape.messages, "message"), tape.tokens ? `${short(tape.tokens)} tokens` : null, tape.cost ? `cost ${cost(tape.cost)}` : null, when(tape.updated_at))),
    page.still ? null : h("nav", { class: "tabs", "aria-label": "Views of this tape" }, TABS.map(([name, label, path]) =>
      h("a", { href: source.href(`/t/${ref}${path}`), "aria-current": name === page.page ? "page" : null }, label))));
}

// Time travel: a slider over the seqs of a tape. `go` is called with a seq, or null for now.
export function scrubber(page, go) {
  const now = () => Number(slider.value);
  const slider = h("input", { type: "range", min: "1", max: String(page.head || 1), value: String(page.seq || 1), id: "scrub", "aria-label": "Point in time, as a seq of the tape" });
  const output = h("output", { for: "scrub" });
  const step = (by) => {
    slider.value = String(now() + by);
    moved();
  };
  const shown = (seq, head) => {
    slider.max = String(head || 1);
    slider.value = String(seq || 1);
    slider.setAttribute("aria-valuetext", `${seq} of ${head}`);
    put(output, `${plain(seq)} / ${plain(head)}`);
  };
  const moved = () => {
    const seq = now();
    const last = seq >= Number(slider.max);
    put(output, `${plain(seq)} / ${plain(Number(slider.max))}`);
    slider.setAttribute("aria-valuetext", `${seq} of ${slider.max}`);
    go(last ? null : seq);
  };
  slider.addEventListener("input", moved);
  shown(page.seq, page.head);
  const bar = h("section", { class: "scrubber", "aria-label": "Time travel" },
    h("button", { type: "button", id: "back", "aria-label": "One entry back", onclick: () => step(-1) }, "‹"), slider,
    h("button", { type: "button", id: "forth", "aria-label": "One entry forward", onclick: () => step(1) }, "›"), output,
    h("button", { type: "button", class: "now", onclick: () => { slider.value = slider.max; moved(); } }, "Now"));
  return { bar, shown };
}

// Keys.

const KEYS = [["j k", "next and previous item"], ["Enter", "open or expand it"], ["/", "search"], ["g G", "first and last"], ["[ ]", "one entry back and forward in time"], ["f", "show only failures, in the log"], ["?", "show these keys"], ["Esc", "close, or return to the page"]];

export function help() {
  const box = dialog("Keys", h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, key.split(" ").map((part) => h("kbd", {}, part))), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  return box;
}

function pick(item) {
  if (!item) return;
  for (const other of all("[data-item].current")) other.classList.remove("current");
  item.classList.add("current");
  item.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const items = all("main [data-item]");
  const current = items.indexOf(one("[data-item].current"));
  if (current >= 0) return pick(items[Math.min(Math.max(current + by, 0), items.length - 1)]);
  const visible = items.find((item) => item.getBoundingClientRect().bottom > 80);
  return pick(visible ?? items[0]);
}

function end(by) {
  pick(all("main [data-item]").at(by < 0 ? 0 : -1));
}

function enter() {
  const item = one("[data-item].current");
  if (!item) return false;
  const fold = one("details", item);
  if (fold) {
    const open = !fold.open;
    for (const other of all("details", item)) other.open = open;
  } else one("a[data-open]", item)?.click();
  return true;
}

// Pages with a list of their own (the log) take over the moves.
export const list = { move: null, end: null, enter: null, fail: null };

const ACTIONS = {
  j: () => (list.move ?? move)(1),
  k: () => (list.move ?? move)(-1),
  "/": () => one("#q")?.focus(),
  g: () => (list.end ?? end)(-1),
  G: () => (list.end ?? end)(1),
  "[": () => one("#back")?.click(),
  "]": () => one("#forth")?.click(),
  f: () => list.fail?.(),
  "?": help,
};

export function keys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=range]), textarea, select, dialog");
    if (event.key === "Escape" && typing && !typing.closest("dialog")) typing.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    if (event.key === "Enter" && !event.target.closest?.("a, button, summary, input")) {
      if ((list.enter ?? enter)()) event.preventDefault();
      return;
    }
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
