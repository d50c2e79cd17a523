// A report: the data are in this file, packed, and unpacked when a page needs them.

import { draw } from "./app.js";
import { all, h, one, put } from "./dom.js";
import { keys } from "./frame.js";
import { source } from "./source.js";

const WINDOW = 60;
const PAGE = 200;
const CUT = 8192;
const PIECE = 65536;
const KEPT = 24;
const FOUND = 50;
const MARKS = new Set(["anchor", "handoff", "compact", "fork", "merge", "discard", "status", "switch", "clear", "retract"]);
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const VALUES = new Uint8Array(128);
[...DIGITS].forEach((digit, value) => { VALUES[digit.charCodeAt(0)] = value; });

function bytesOf(text) {
  const whole = Math.ceil(text.length / 5);
  const raw = new Uint8Array(whole * 4);
  for (let place = 0; place < whole; place += 1) {
    let number = 0;
    for (let digit = place * 5; digit < place * 5 + 5; digit += 1) {
      number = number * 85 + (digit < text.length ? VALUES[text.charCodeAt(digit)] : 84);
    }
    raw[place * 4] = number >>> 24;
    raw[place * 4 + 1] = number >>> 16;
    raw[place * 4 + 2] = number >>> 8;
    raw[place * 4 + 3] = number;
  }
  return raw.subarray(0, raw.length - (whole * 5 - text.length));
}

async function unpack(id) {
  const packed = bytesOf(document.getElementById(id).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}

// Every text of a value, in the order in which the writer counted them.
function texts(value, found = []) {
  if (typeof value === "string") found.push(value);
  else if (value && typeof value === "object") for (const item of Object.values(value)) texts(item, found);
  return found;
}

const idOf = (payload, seq) => String(payload.id || payload.message?.id || seq);
const instant = (stamp) => new Date(stamp / 1000).toISOString();
const cut = (text, most = CUT) => (text.length <= most ? { text } : { text: text.slice(0, most), length: text.length });
const refOf = (id) => [...new TextEncoder().encode(id)].map((byte, place) => {
  const letter = String.fromCharCode(byte);
  return /[A-Za-z0-9_-]/.test(letter) || (letter === "." && place) ? letter : `~${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}).join("");

class Tape {
  constructor(number, about, size) {
    Object.assign(this, { number, about, size, card: about.tape, head: about.head, chunks: new Map(), places: new Map() });
  }

  async chunk(place) {
    if (!this.chunks.has(place)) {
      this.chunks.set(place, unpack(`c${this.number}-${place}`).then((columns) => {
        let stamp = 0;
        columns.stamp = columns.stamp.map((step) => { stamp += step; return stamp; });
        return columns;
      }));
      if (this.chunks.size > KEPT) this.chunks.delete(this.chunks.keys().next().value);
    }
    return this.chunks.get(place);
  }

  async entry(seq) {
    const columns = await this.chunk(Math.floor((seq - 1) / this.size));
    const place = (seq - 1) % this.size;
    const [payload, shown] = columns.body[place];
    const more = columns.more[place] || {};
    return { tape: this.card.id, seq, kind: columns.kind[place], key: columns.key[place], actor: columns.actor[place], at: instant(columns.stamp[place]),
      hash: columns.hash[place], source: null, meta: null, version: 1, ...more, payload, shown, failed: Boolean(more.failed) };
  }

  view(entry) {
    if (typeof entry.shown !== "object") return null;
    const listed = texts(entry.payload);
    const parts = (entry.shown.parts ?? []).map((part) => ({ ...part, text: typeof part.text === "number" ? listed[part.text] : part.text }));
    return { name: null, more: 0, ...entry.shown, parts };
  }

  short(entry) {
    const view = this.view(entry);
    return view ? { ...view, parts: view.parts.map(({ text, ...part }) => ({ ...part, ...cut(text) })) } : null;
  }

  row(entry) {
    const view = this.view(entry);
    const said = view ? `${view.role}: ${view.parts.map((part) => (part.part === "call" ? `calls ${part.name}(${part.text.slice(0, 160)})` : part.text.slice(0, 160))).join(" ")}` : entry.shown;
    return { seq: entry.seq, kind: entry.kind, actor: entry.actor, at: entry.at, gist: said.replace(/\s+/g, " ").slice(0, 160), failed: entry.failed,
      child: entry.kind === "fork" ? refOf(entry.payload.child) : null, other: ["merge", "discard"].includes(entry.kind) ? refOf(entry.payload.tape) : null };
  }

  async path(seq) {
    this.kept ??= unpack(`p${this.number}`);
    const kept = await this.kept;
    let path = [];
    for (const [end, same, steps] of kept.frames) {
      if (end < seq) break;
      let number = 0;
      const rest = steps.map((step) => { number += step; return number; });
      path = path.slice(0, same).concat(rest);
    }
    return path.filter((number) => number < 0 || number <= seq);
  }

  async message(number, seq) {
    const kept = await this.kept;
    if (number < 0) return kept.inherited[-1 - number];
    const revision = (kept.revised[number] ?? []).filter((each) => each <= seq).at(-1) ?? number;
    const [placed, body] = [await this.entry(number), await this.entry(revision)];
    const id = idOf(placed.payload, number);
    this.places.set(id, number);
    return { ...this.short(body), id, seq: number, revision, inherited: null, tokens: body.payload.tokens ?? 0, at: body.at };
  }

  // The newest seq at which a message was on the path: one of another branch is not on the last.
  async reaching(seq, id) {
    const number = this.places.get(id) ?? Number(id);
    for (const [end] of (await this.kept).frames) if (end <= seq && (await this.path(end)).includes(number)) return end;
    return seq;
  }

  async conversation(seq, query) {
    let path = await this.path(seq);
    const place = (id) => path.indexOf(this.places.get(id) ?? Number(id));
    if (query.get("m") && place(query.get("m")) < 0) {
      seq = await this.reaching(seq, query.get("m"));
      path = await this.path(seq);
    }
    let [first, last] = [Math.max(0, path.length - WINDOW), path.length];
    if (query.get("before")) {
      last = Math.max(0, place(query.get("before")));
      first = Math.max(0, last - WINDOW);
    } else if (query.get("after")) {
      first = place(query.get("after")) + 1;
      last = Math.min(path.length, first + WINDOW);
    } else if (query.get("m")) {
      first = Math.max(0, place(query.get("m")) - WINDOW / 2);
      last = Math.min(path.length, first + WINDOW);
    }
    const messages = await Promise.all(path.slice(first, last).map((number) => this.message(number, seq)));
    const low = Math.max(first > 0 ? path[first] : 0, 0);
    const high = last < path.length ? path[last] : seq;
    const between = [];
    for (let each = Math.max(low + 1, high - 2000); each <= high; each += 1) {
      const columns = await this.chunk(Math.floor((each - 1) / this.size));
      if (MARKS.has(columns.kind[(each - 1) % this.size])) between.push(this.row(await this.entry(each)));
    }
    const kept = await this.kept;
    const names = new Map(messages.flatMap((each) => each.parts).filter((part) => part.part === "call").map((part) => [part.call, part.name]));
    for (const part of messages.flatMap((each) => each.parts)) if (part.part === "result") part.name ??= names.get(part.call);
    return { page: "conversation", seq, branch: null, heads: [], live: false, messages, between, earlier: first > 0 ? messages[0]?.id : null, later: last < path.length ? messages.at(-1)?.id : null,
      note: seq < kept.first ? "The report knows no path this far back. The log has every entry." : null };
  }

  async log(seq, query) {
    const kinds = (query.get("kinds") ?? "").split(",").filter(Boolean);
    const failed = query.get("failed") === "1";
    const entries = [];
    let each = Number(query.get("after") ?? 0);
    const after = each;
    while (each < seq && entries.length < PAGE) {
      each += 1;
      const entry = await this.entry(each);
      if ((!kinds.length || kinds.includes(entry.kind)) && (!failed || entry.failed)) entries.push(this.row(entry));
    }
    const listed = ["append", "anchor", "block", "clear", "compact", "discard", "erase", "event", "fork", "handoff", "label", "merge", "open", "restore", "retract", "revise", "state", "status", "switch", "usage"];
    return { page: "log", kinds: listed, filter: { kinds, failed }, after, entries, next: each < seq ? each : null };
  }

  async raw(seq) {
    const { shown, failed, payload, ...entry } = await this.entry(seq);
    const message = this.short({ shown, payload });
    if (entry.source) entry.source = { ...entry.source, ref: refOf(entry.source.tape) };
    return { page: "entry", entry, message, payload: cut(JSON.stringify(payload, null, 2), 32768) };
  }

  async text(seq, query) {
    const text = this.view(await this.entry(seq)).parts[Number(query.get("part"))].text;
    const from = Number(query.get("from"));
    return { text: text.slice(from, from + PIECE), from, length: text.length };
  }

  async made(name) {
    this.pages ??= unpack(`x${this.number}`);
    return (await this.pages)[name];
  }

  async search(words) {
    const hits = [];
    for (let seq = this.head; seq > 0 && hits.length < FOUND; seq -= 1) {
      const entry = await this.entry(seq);
      const view = this.view(entry);
      if (!view || entry.kind !== "append") continue;
      const text = view.parts.map((part) => part.text).join("\n");
      const small = text.toLowerCase();
      if (!words.every((word) => small.includes(word))) continue;
      const place = small.indexOf(words[0]);
      const near = text.slice(Math.max(0, place - 60), place) + `«${text.slice(place, place + words[0].length)}»` + text.slice(place + words[0].length, place + 120);
      const id = idOf(entry.payload, seq);
      this.places.set(id, seq);
      hits.push({ tape: this.card.id, ref: this.card.ref, seq, message: id, role: view.role, snippet: near.replace(/\s+/g, " "), at: entry.at });
    }
    return hits;
  }
}

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
    if (path === "/activity") return { activity: {} };
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
    if (rest[0] === "log") return { ...about, ...await tape.log(seq, query) };
    if (rest[0] === "context") {
      const step = rest[1] ?? tape.head;
      const made = await tape.made(`context/${step}`);
      if (!made || made.error) throw new Error(made?.error ?? "The report has only the last recorded contexts.");
      return { ...about, page: "context", ...made };
    }
    if (rest[0]) return { ...about, page: rest[0], ...await tape.made(rest[0]) };
    return { ...about, ...await tape.conversation(seq, query) };
  }
}

async function show(address) {
  try {
    const page = await source.load(address);
    draw({ store: source.report.index.redacted ? "report, redacted" : "report", base: "", write: false, ...page });
    if (page.still) for (const link of all("a[href^='#/']")) link.removeAttribute("href");
    if (page.note) one("#main").prepend(h("p", { class: "travelled" }, page.note));
  } catch (error) {
    put(one("#main"), h("h1", {}, "Not here"), h("p", {}, error.message), h("p", {}, h("a", { href: "#/" }, "All tapes of this report")));
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
