// A tape of a report: packed in the file, and unpacked where a page needs it.

import { spans } from "./compare.js";

const WINDOW = 60;
const PAGE = 200;
const CUT = 8192;
const PIECE = 65536;
const KEPT = 24;
const FOUND = 50;
const STEPS = 50;
const REGIONS = 300;
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

const list = (value) => (Array.isArray(value) ? value : []);
export const textOf = (view) => view.parts.map((part) => part.text).join("\n\n");
export const saysOf = (view) => JSON.stringify([view.role, view.name, view.parts]);

// Numbers that were written as their distances.
function sums(steps) {
  let number = 0;
  return steps.map((step) => { number += step; return number; });
}

const revisionOf = (kept, number, seq) => (number < 0 ? kept.inherited[-1 - number].revision : (kept.revised[number] ?? []).findLast((each) => each <= seq) ?? number);
const idOf = (payload, seq) => String(payload.id || payload.message?.id || seq);
const instant = (stamp) => new Date(stamp / 1000).toISOString();
const cut = (text, most = CUT) => (text.length <= most ? { text } : { text: text.slice(0, most), length: text.length });
const refOf = (id) => [...new TextEncoder().encode(id)].map((byte, place) => {
  const letter = String.fromCharCode(byte);
  return /[A-Za-z0-9_-]/.test(letter) || (letter === "." && place) ? letter : `~${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}).join("");

export class Tape {
  constructor(number, about, size) {
    Object.assign(this, { number, about, size, card: about.tape, head: about.head, chunks: new Map(), places: new Map() });
  }

  async chunk(place) {
    if (!this.chunks.has(place)) {
      this.chunks.set(place, unpack(`c${this.number}-${place}`).then((columns) => {
        columns.stamp = sums(columns.stamp);
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

  get kept() {
    this.unpacked ??= unpack(`p${this.number}`);
    return this.unpacked;
  }

  async path(seq) {
    let path = [];
    for (const [end, same, steps] of (await this.kept).frames) {
      if (end < seq) break;
      path = path.slice(0, same).concat(sums(steps));
    }
    return path.filter((number) => number < 0 || number <= seq);
  }

  // The branches at the end of the tape, each with its path.
  async branches() {
    const kept = await this.kept;
    let path = await this.path(kept.frames.at(-1)?.[0] ?? 0);
    return kept.branches.map(([id, seq, text, same, steps]) => {
      path = path.slice(0, same).concat(sums(steps));
      return { id, seq, text, path };
    });
  }

  async message(number, seq) {
    const kept = await this.kept;
    if (number < 0) return kept.inherited[-1 - number];
    const revision = revisionOf(kept, number, seq);
    const [placed, body] = [await this.entry(number), await this.entry(revision)];
    const id = idOf(placed.payload, number);
    this.places.set(id, number);
    return { ...this.short(body), id, seq: number, revision, inherited: null, tokens: body.payload.tokens ?? 0, at: body.at };
  }

  // One side of a comparison: what is on the path, each by the place where it was recorded.
  async side(seq) {
    const kept = await this.kept;
    if (seq < kept.first) throw new Error("The report knows no path this far back. The log has every entry.");
    const recorded = (number) => (number < 0 ? kept.inherited[-1 - number] : { inherited: this.card.id, seq: number });
    return (await this.path(seq)).map((number) => {
      const place = `${recorded(number).inherited} ${recorded(number).seq}`;
      return { place, key: `${place} ${revisionOf(kept, number, seq)}`, load: () => this.whole(number, seq) };
    });
  }

  // A message as it is shown, and with its texts not cut.
  async whole(number, seq) {
    const message = await this.message(number, seq);
    if (number < 0) return { ...message, whole: message, ref: refOf(message.inherited), seq: message.revision };
    return { ...message, whole: this.view(await this.entry(message.revision)), ref: this.card.ref, seq: message.revision };
  }

  // The newest seq at which a message was on the path: one of another branch is not on the last.
  async reaching(seq, id) {
    const number = this.places.get(id) ?? Number(id);
    for (const [end] of (await this.kept).frames) if (end <= seq && (await this.path(end)).includes(number)) return end;
    return seq;
  }

  async conversation(seq, query, marks) {
    let path = await this.path(seq);
    const branches = seq === this.head ? await this.branches() : [];
    const wanted = query.get("branch");
    const branch = wanted ? branches.findLast((each) => each.id === wanted || each.path.includes(Number(wanted))) : null;
    if (branch) path = branch.path;
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
      if (marks.includes(columns.kind[(each - 1) % this.size])) between.push(this.row(await this.entry(each)));
    }
    const kept = await this.kept;
    const names = new Map(messages.flatMap((each) => each.parts).filter((part) => part.part === "call").map((part) => [part.call, part.name]));
    for (const part of messages.flatMap((each) => each.parts)) if (part.part === "result") part.name ??= names.get(part.call);
    for (const [at, message] of messages.entries()) {
      const siblings = branches.length ? kept.siblings.find((each) => each.includes(path[first + at])) : null;
      if (!siblings) continue;
      const own = siblings.indexOf(path[first + at]);
      messages[at] = { ...message, branches: { at: own + 1, of: siblings.length, previous: siblings[own - 1], next: siblings[own + 1] } };
    }
    return { page: "conversation", seq, branch: branch?.id ?? null, heads: branches, live: false, messages, between, earlier: first > 0 ? messages[0]?.id : null, later: last < path.length ? messages.at(-1)?.id : null,
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
    return { page: "log", filter: { kinds, failed }, after, entries, next: each < seq ? each : null };
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

  // The regions of a recorded context: seqs of the tape that its manifest names, and what is not on the tape as it was shown.
  async recorded(place, seq, blockSize) {
    const number = Math.floor(place / blockSize);
    if (this.block?.number !== number) this.block = { number, ...await unpack(`x${this.number}-${number}`) };
    const { pool, contexts } = this.block;
    const { pooled, ...context } = contexts[place % blockSize];
    if (context.error) throw new Error(context.error);
    const { data } = (await this.entry(seq)).payload;
    const next = pooled.values();
    const regions = ["prompt", "documents", "checkpoint"].filter((name) => data[name]).map(() => pool[next.next().value]);
    for (const item of list(data.included)) {
      const [tape, first, last] = Array.isArray(item) ? item : [null, 0, 0];
      for (let each = first; each <= last; each += 1) {
        const own = tape === this.card.id && /append|revise/.test((await this.entry(each)).kind);
        regions.push(own ? each : pool[next.next().value]);
      }
    }
    return { ...context, data, regions };
  }

  async region(region) {
    if (typeof region !== "number") return region;
    const entry = await this.entry(region);
    return { ...this.short(entry), region: "message", tokens: entry.payload.tokens ?? 0, source: { ref: this.card.ref, seq: region }, actor: entry.actor };
  }

  async context(seq, blockSize) {
    const listed = await this.made("contexts");
    const place = listed.indexOf(seq);
    let page = await this.made("context");
    let kept = place < 0 ? page.moved?.kept_regions : 0;
    if (place >= 0) {
      const { data, regions, cause, moved } = await this.recorded(place, seq, blockSize);
      page = { seq, recorded: true, regions: regions.slice(-REGIONS), left_out: Math.max(0, regions.length - REGIONS), cause, moved: null,
        before: listed[place - 1], after: listed[place + 1], budget: data.budget, tokens: data.tokens, policy: `${data.policy} ${data.version}`,
        excluded: list(data.excluded).map((out) => ({ ...out, ref: refOf(String(out.tape)) })), repairs: list(data.repairs) };
      if (moved) {
        const [kept_bytes, bytes, same, many] = moved;
        kept = same;
        page.moved = { seq: page.before, kept_bytes, bytes, only_grew: same === many, region: same };
        const text = async (each) => textOf(typeof each === "number" ? this.view(await this.entry(each)) : each);
        const old = (await this.recorded(place - 1, page.before, blockSize)).regions[same];
        if (old && regions[same]) page.moved.words = spans(await text(old), await text(regions[same]));
      }
    } else if (seq !== this.head || page.error) throw new Error(page.error ?? "The report has the contexts that were recorded, and the one at its end.");
    const regions = await Promise.all(page.regions.map(async (each, at) => ({ ...await this.region(each), same: at + page.left_out < kept })));
    return { ...page, regions, steps: listed.slice(-STEPS).reverse().map((each) => ({ seq: each })) };
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
