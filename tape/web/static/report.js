// A report: the pages of a server, from the data in this file.

import { draw } from "./app.js";
import { pairs, spans } from "./compare.js";
import { all, h, one, put } from "./dom.js";
import { keys } from "./frame.js";
import { Tape, saysOf, textOf } from "./packed.js";
import { source } from "./source.js";

const ROWS = 300;
const READ = 5000;

class Report {
  constructor(index) {
    this.index = index;
    this.tapes = new Map((index.tapes ?? []).map((about, number) => [about.tape.ref, new Tape(number, about, index.chunk)]));
  }

  async load(address) {
    const [path, search] = address.split("?");
    const query = new URLSearchParams(search ?? "");
    if (this.index.pages?.[path]) return this.index.pages[path];
    if (path === "/") return { page: "tapes", title: "Report", tapes: [...this.tapes.values()].map((tape) => tape.card), cursor: null, filters: {} };
    if (path === "/activity") {
      const busy = await Promise.all([...this.tapes].map(async ([ref, tape]) => [ref, (await tape.made("activity"))[0]]));
      return { activity: Object.fromEntries(busy) };
    }
    if (path === "/diff") return this.compare(query.get("a"), query.get("b"));
    if (path === "/search") {
      const words = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
      const hits = words.length ? (await Promise.all([...this.tapes.values()].map((tape) => tape.search(words)))).flat() : [];
      return { page: "search", title: "Search", q: query.get("q") ?? "", within: null, hits, more: false };
    }
    const [, view, named, ...rest] = path.split("/");
    const [ref, point] = (named ?? "").split("@");
    const tape = this.tapes.get(ref);
    if (!tape) throw new Error("This is not in the report.");
    const seq = Math.min(Number(view === "e" ? rest[0] : point ?? tape.head), tape.head);
    const about = { title: tape.card.name ?? tape.card.id, tape: tape.card, seq, head: tape.head };
    if (view === "e") return rest[1] === "text" ? tape.text(seq, query) : { ...about, ...await tape.raw(seq) };
    if (rest[0] === "log") return { ...about, kinds: this.index.kinds, ...await tape.log(seq, query) };
    if (rest[0] === "context") return { ...about, page: "context", ...await tape.context(Number(rest[1] ?? seq), this.index.block) };
    if (rest[0]) return { ...about, page: rest[0], ...await tape.made(rest[0]) };
    return { ...about, ...await tape.conversation(seq, query, this.index.marks) };
  }

  point(named) {
    const [ref, seq] = named.split("@");
    const tape = this.tapes.get(ref);
    if (!tape) throw new Error(`${named} is not in the report.`);
    return [tape, Math.min(Number(seq ?? tape.head) || 1, tape.head)];
  }

  async compare(a, b) {
    const page = { page: "diff", title: "Compare", a, b, rows: null };
    if (!a || !b) return page;
    const [[left, from], [right, to]] = [this.point(a), this.point(b)];
    let [before, after] = [await left.side(from), await right.side(to)];
    let same = 0;
    while (same < before.length && same < after.length && before[same].key === after[same].key) same += 1;
    let end = 0;
    while (end < before.length - same && end < after.length - same && before.at(-1 - end).key === after.at(-1 - end).key) end += 1;
    [before, after] = [before.slice(same, before.length - end), after.slice(same, after.length - end)];
    // Few enough are known by their ids, as a fork's are after a merge, or else by what they say.
    let [old, now] = [before.map((each) => each.place), after.map((each) => each.place)];
    if (before.length && after.length && before.length + after.length <= READ) {
      const read = (side) => Promise.all(side.map((each) => each.load()));
      const [ours, theirs] = [await read(before), await read(after)];
      const ids = new Set(ours.map((each) => each.id));
      const known = same || end || theirs.some((each) => ids.has(each.id)) ? (each) => each.id : (each) => saysOf(each.whole);
      [old, now] = [ours.map(known), theirs.map(known)];
    }
    const rows = same ? [{ same }] : [];
    let differing = 0;
    for (const [i, j] of pairs(old, now)) {
      const last = rows.at(-1);
      if (rows.length >= ROWS) {
        differing += 1;
        continue;
      }
      const [one_, other] = [i < 0 ? null : await before[i].load(), j < 0 ? null : await after[j].load()];
      if (one_ && other && old[i] === now[j] && saysOf(one_.whole) === saysOf(other.whole)) {
        if (last && "same" in last) last.same += 1;
        else rows.push({ same: 1 });
        continue;
      }
      differing += 1;
      rows.push({ a: one_, b: other, words: one_ && other ? spans(textOf(one_.whole), textOf(other.whole)) : null });
    }
    if (end) rows.push({ same: end });
    return { ...page, left: left.card, right: right.card, differing, rows };
  }
}

async function show(address) {
  try {
    const page = await source.load(address);
    draw({ store: source.report.index.redacted ? "report, redacted" : "report", base: "", write: false, ...page });
    if (page.still) for (const link of all("a[href^='#/']")) link.removeAttribute("href");
    if (page.note) one("#main").prepend(h("p", { class: "travelled" }, page.note));
  } catch (error) {
    put(one("#main"), h("h1", {}, "Not found"), h("p", {}, error.message), h("p", {}, h("a", { href: "#/" }, "All tapes of this report")));
  }
  document.documentElement.dataset.shown = address;
}

const data = one("#report");
if (data) {
  source.report = new Report(JSON.parse(data.textContent));
  keys();
  const start = source.report.index.start ?? "/";
  const go = (address) => {
    try {
      history.pushState(null, "", `#${address}`);
    } catch {
      // A page inside a notebook has no history of its own.
    }
    scrollTo(0, 0);
    return show(address);
  };
  source.go = go;
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#/']");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(link.getAttribute("href").slice(1));
  });
  addEventListener("popstate", () => show(location.hash.slice(1) || start));
  show(location.hash.startsWith("#/") ? location.hash.slice(1) : start);
}
