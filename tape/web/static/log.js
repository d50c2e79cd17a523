// The log: every entry of a tape as a row, by seq; with a filter, those that pass it.

import { h, one, put, say, when } from "./dom.js";
import { heading, list, scrubber } from "./frame.js";
import { follow } from "./conversation.js";
import { at, query, source } from "./source.js";
import { virtual } from "./virtual.js";

const PAGE = 200;
const KEPT = 40;

// Without a filter row n is seq n + 1, so that any place can be asked for at once.
class Dense {
  constructor(page, changed) {
    this.head = page.seq;
    this.pages = new Map();
    this.asked = new Set();
    this.changed = changed;
    this.ref = at(page.tape.ref, page.seq, page.head);
    this.keep(page);
  }

  keep(page) {
    if (page.after % PAGE === 0) this.pages.set(page.after / PAGE, page.entries);
    while (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
  }

  count() {
    return this.head;
  }

  row(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  want(first, last) {
    for (let number = Math.floor(first / PAGE); number * PAGE < last; number += 1) {
      const kept = this.pages.get(number);
      if (this.asked.has(number) || (kept && kept.length >= Math.min(PAGE, this.head - number * PAGE))) continue;
      this.asked.add(number);
      source.load(`/t/${this.ref}/log?after=${number * PAGE}`).then((page) => this.keep(page)).finally(() => {
        this.asked.delete(number);
        this.changed();
      });
    }
  }
}

// With a filter the rows are those found so far, and more are looked for near the end.
class Sparse {
  constructor(page, filter, changed) {
    this.rows = page.entries;
    this.next = page.next;
    this.filter = filter;
    this.changed = changed;
    this.ref = at(page.tape.ref, page.seq, page.head);
  }

  count() {
    return this.rows.length;
  }

  row(index) {
    return this.rows[index];
  }

  async want(first, last) {
    if (this.next === null || this.asking || last < this.rows.length) return;
    this.asking = true;
    try {
      const page = await source.load(`/t/${this.ref}/log${query({ ...this.filter, after: this.next })}`);
      this.rows = [...this.rows, ...page.entries];
      this.next = page.next;
    } finally {
      this.asking = false;
      this.changed();
    }
  }
}

export function log(page, main) {
  const filter = { kinds: page.filter.kinds.join(","), failed: page.filter.failed ? "1" : "" };
  const filtered = filter.kinds || filter.failed;
  const ref = at(page.tape.ref, page.seq, page.head);
  const changed = () => {
    rows.update();
    put(told, filtered ? `${model.count()} found${model.next === null ? "" : ", scroll for more"}` : "");
  };
  const row = (entry) => h("div", { role: "row", class: `row ${entry.failed ? "failed" : ""}`, tabindex: "-1", "data-kind": entry.kind },
    h("span", { role: "cell", class: "seq" }, h("a", { href: source.href(`/e/${page.tape.ref}/${entry.seq}`), "data-open": "", tabindex: "-1" }, `#${entry.seq}`)),
    h("span", { role: "cell", class: "kind" }, entry.kind),
    h("span", { role: "cell", class: "gist" }, entry.failed ? h("span", { class: "bad" }, "failed ") : null, entry.gist),
    h("span", { role: "cell", class: "actor" }, entry.actor ?? ""),
    h("span", { role: "cell", class: "at" }, when(entry.at)));
  const model = filtered ? new Sparse(page, filter, () => changed()) : new Dense(page, () => changed());
  const told = h("span", { class: "facts", role: "status" });
  const rows = virtual("Entries", model, row);

  const go = (wanted) => {
    source.go(`/t/${ref}/log${query({ ...filter, ...wanted })}`);
  };
  const kinds = h("select", { id: "kinds", onchange: () => go({ kinds: kinds.value }) },
    h("option", { value: "" }, "all kinds"), page.kinds.map((kind) => h("option", { value: kind, selected: kind === filter.kinds }, kind)));
  const failures = h("button", { type: "button", "aria-pressed": String(Boolean(filter.failed)), onclick: () => go({ failed: filter.failed ? "" : "1" }) }, "Failures");
  const { bar } = scrubber(page, (seq) => rows.show((seq ?? page.seq) - 1));
  put(main, heading(page), h("p", { class: "filters" }, h("label", { for: "kinds" }, "Show "), kinds, " ", failures, " ", told), rows.box, filtered ? null : bar);
  Object.assign(list, {
    move: rows.move,
    end: rows.end,
    fail: () => failures.click(),
    enter: () => Boolean(rows.current() && (one("a[data-open]", rows.current()).click(), true)),
  });
  changed();
  if (!filtered) {
    if (page.seq === page.head) rows.end(1);
    follow(page, async () => {
      const end = rows.atEnd();
      const now = await source.load(`/t/${page.tape.ref}/log?after=${Math.floor(model.head / PAGE) * PAGE}`);
      model.head = now.head;
      model.keep(now);
      rows.update();
      if (end) rows.end(1);
      say(`${now.head} entries`);
    });
  }
}
