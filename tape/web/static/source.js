// Where pages come from: the server that the page was opened from, or the data in a report.

export const source = {
  base: "",
  report: null,

  href(address) {
    return this.report ? `#${address}` : this.base + address;
  },

  // A page is ready (`data-ready` on its root) when nothing is asked for any more, and what came was drawn.
  waiting: 0,

  hold() {
    this.waiting += 1;
    delete document.documentElement.dataset.ready;
  },

  release() {
    // Whoever awaits the answer draws it before the next task begins.
    setTimeout(() => {
      this.waiting -= 1;
      if (!this.waiting) document.documentElement.dataset.ready = "";
    });
  },

  async load(address, signal) {
    this.hold();
    try {
      return await (this.report ? this.report.load(address) : this.fetched(address, signal));
    } finally {
      this.release();
    }
  },

  async fetched(address, signal) {
    const response = await fetch(this.base + address, { headers: { accept: "application/json" }, signal });
    if (!response.ok) {
      const told = await response.json().catch(() => ({}));
      throw new Error(told.error ?? `the server answered with ${response.status}`);
    }
    return response.json();
  },

  // Another page: a report draws it itself.
  go(address) {
    location.href = this.href(address);
  },

  moved(address) {
    try {
      history.replaceState(null, "", this.href(address));
    } catch {
      // A page inside a notebook has no history of its own.
    }
  },
};

export const at = (ref, seq, head) => (seq === undefined || seq === head ? ref : `${ref}@${seq}`);

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const written = new URLSearchParams(given).toString();
  return written ? `?${written}` : "";
}
