// A conversation: a window of messages that grows at both ends, the same at any seq, and live.

import { count, h, one, put, say } from "./dom.js";
import { heading, scrubber } from "./frame.js";
import { message } from "./message.js";
import { at, query, source } from "./source.js";
import { mark, tools } from "./act.js";

const MOST = 240;
const SETTLED = 150;
// Milliseconds after which a page that lost its server asks for it again.
const AGAIN = 5000;

export function conversation(page, main) {
  let shown = page;
  let asking = null;
  const list = h("div", { class: "messages", role: "feed", "aria-label": "Messages" });
  const kept = new Map();

  // Elements are kept by what they show, so that folds, focus and the place on the page survive an update.
  function item(key, make) {
    if (!kept.has(key)) kept.set(key, make());
    return kept.get(key);
  }

  function rows() {
    const between = [...shown.between];
    const items = [];
    const past = (seq) => {
      while (between.length && between[0].seq < seq) {
        const entry = between.shift();
        items.push(item(`e${entry.seq}`, () => mark(entry, shown)));
      }
    };
    for (const each of shown.messages) {
      if (!each.inherited) past(each.seq);
      const key = `m${each.id} ${each.revision} ${JSON.stringify(each.branches ?? "")}`;
      items.push(item(key, () => message(each, shown.tape, shown.write ? tools(shown, refresh) : null)));
    }
    past(Infinity);
    return items;
  }

  function draw() {
    const items = rows();
    const wanted = new Set(items);
    for (const [key, element] of kept) if (!wanted.has(element)) kept.delete(key);
    for (const old of [...list.children]) if (!wanted.has(old)) old.remove();
    items.forEach((element, place) => {
      if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
    });
    earlier.hidden = !shown.earlier;
    later.hidden = !shown.later;
    empty.hidden = items.length > 0;
    travelled.hidden = shown.seq === shown.head;
    put(travelled, `You see the tape as of entry ${shown.seq} of ${shown.head}.`);
  }

  const ref = () => at(shown.tape.ref, shown.seq, shown.head);

  async function grow(side) {
    const cursor = shown[side];
    if (!cursor || asking) return;
    asking = new AbortController();
    try {
      const asked = { [side === "earlier" ? "before" : "after"]: cursor, branch: shown.branch };
      const more = await source.load(`/t/${ref()}${query(asked)}`, asking.signal);
      const bottom = document.documentElement.scrollHeight - scrollY;
      if (side === "earlier") {
        const messages = [...more.messages, ...shown.messages];
        const over = messages.length > MOST;
        shown = { ...shown, messages: messages.slice(0, MOST), earlier: more.earlier, later: over ? messages[MOST - 1].id : shown.later };
      } else {
        const messages = [...shown.messages, ...more.messages];
        const over = messages.length > MOST;
        shown = { ...shown, messages: messages.slice(-MOST), later: more.later, earlier: over ? messages.at(-MOST).id : shown.earlier };
      }
      const seqs = new Set(shown.between.map((entry) => entry.seq));
      const between = [...shown.between, ...more.between.filter((entry) => !seqs.has(entry.seq))];
      shown.between = between.sort((a, b) => a.seq - b.seq).slice(-100);
      draw();
      if (side === "earlier") scrollTo(0, document.documentElement.scrollHeight - bottom);
    } finally {
      asking = null;
    }
  }

  const earlier = h("button", { type: "button", class: "more wide", onclick: () => grow("earlier") }, "Earlier messages");
  const later = h("button", { type: "button", class: "more wide", onclick: () => grow("later") }, "Later messages");
  const empty = h("p", { class: "empty" }, "No messages yet.");
  const travelled = h("p", { class: "travelled", hidden: true });
  const branches = shown.heads.length > 1
    ? h("details", { class: "fold branches-list" }, h("summary", {}, count(shown.heads.length, "branch").replace("branchs", "branches")),
      h("ul", {}, shown.heads.map((end) => h("li", {}, h("a", { href: source.href(`/t/${shown.tape.ref}?branch=${encodeURIComponent(end.id)}`), "aria-current": end.id === shown.branch ? "true" : null }, `#${end.seq} `, end.text || end.id)))))
    : null;

  // Time travel: only the newest wish is carried out, and the last answer is the one that is shown.
  let wish = 0;
  let running = false;
  let wanted = null;
  let settling = 0;
  async function travel(seq) {
    wanted = seq;
    wish += 1;
    stay();
    if (running) return;
    running = true;
    try {
      for (let mine = -1; mine !== wish;) {
        mine = wish;
        const address = wanted === null ? `/t/${shown.tape.ref}` : `/t/${shown.tape.ref}@${wanted}`;
        shown = await source.load(wanted === null ? address : `${address}?quick=1`);
        if (mine !== wish) continue;
        source.moved(address);
        arrived();
        performance.mark("scrubbed");
        if (shown.quick) {
          source.hold();
          settling = setTimeout(settle, SETTLED);
        }
      }
    } finally {
      running = false;
    }
  }

  function stay() {
    if (!settling) return;
    clearTimeout(settling);
    settling = 0;
    source.release();
  }

  // Where the slider stops, the rest is asked for: what was counted then, and the branches.
  async function settle() {
    const mine = wish;
    stay();
    const whole = await source.load(`/t/${shown.tape.ref}@${shown.seq}`);
    if (mine !== wish) return;
    shown = whole;
    arrived();
  }

  function arrived() {
    draw();
    control.shown(shown.seq, shown.head);
    if (!shown.quick) one(".heading", main).replaceWith(heading({ ...shown, page: "conversation" }));
    say(`Entry ${shown.seq} of ${shown.head}, ${count(shown.messages.length, "message")}`);
  }

  async function refresh() {
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
    const fresh = await source.load(`/t/${shown.tape.ref}`);
    if (!shown.live && shown.seq !== shown.head) return control.shown(shown.seq, fresh.head);
    const first = fresh.messages[0]?.seq ?? 0;
    const above = shown.messages.filter((each) => each.seq < first && !each.inherited);
    const grown = fresh.head - shown.head;
    const messages = [...above, ...fresh.messages].slice(-MOST);
    const seqs = new Set(fresh.between.map((entry) => entry.seq));
    const between = [...shown.between.filter((entry) => !seqs.has(entry.seq)), ...fresh.between].sort((a, b) => a.seq - b.seq);
    shown = { ...fresh, messages, between, earlier: above.length ? shown.earlier : fresh.earlier };
    draw();
    control.shown(shown.seq, shown.head);
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
    if (grown > 0) say(`${count(grown, "new entry")}`.replace("entrys", "entries"));
  }

  const control = scrubber(shown, travel);
  put(main, heading({ ...shown, page: "conversation" }), branches, travelled, earlier, list, empty, later, shown.still ? null : control.bar,
    shown.write ? h("p", { class: "acts" }, tools(shown, refresh)(null)) : null);
  draw();
  follow(page, refresh);
  const target = new URLSearchParams(location.search).get("m");
  const wantedMessage = target && shown.messages.find((each) => each.id === target);
  const place = wantedMessage ? one(`#m-${wantedMessage.seq}`, main) : null;
  if (place) {
    place.classList.add("current");
    place.scrollIntoView({ block: "center" });
  } else if (location.hash.startsWith("#m-")) one(`[id="${CSS.escape(location.hash.slice(1))}"]`)?.scrollIntoView();
  new IntersectionObserver((seen) => {
    for (const each of seen) if (each.isIntersecting && scrollY > 0) grow(each.target === earlier ? "earlier" : "later");
  }).observe(earlier);
}

export function follow(page, changed) {
  if (source.report || page.seq !== page.head) return;
  let after = page.head;
  let running = false;
  let again = false;
  let stop = null;
  const head = async (event) => {
    after = event.head;
    if (running) {
      again = true;
      return;
    }
    running = true;
    do {
      again = false;
      await changed().catch(() => {});
    } while (again);
    running = false;
  };
  const listen = () => {
    stop = source.listen(`/t/${page.tape.ref}/live?after=${after}`, { head, over: () => setTimeout(listen, AGAIN) });
  };
  listen();
  addEventListener("pagehide", () => stop());
}
