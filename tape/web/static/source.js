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
    return (await this.ask(this.base + address, { signal })).json();
  },

  // Every request carries the secret that this browser keeps for this scheme, host and port, and for no other.
  async ask(path, options = {}) {
    const secret = localStorage.getItem("tape") ?? "";
    const headers = { accept: "application/json", "x-tape-token": secret, ...options.headers };
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    const text = await response.text();
    const error = new Error(text);
    error.status = response.status;
    try {
      error.message = JSON.parse(text).error ?? text;
    } catch {
      // The answer is a sentence already.
    }
    throw error;
  },

  // The link that opens the inspector has a token behind its "#", which no server is sent. It is exchanged once.
  async enter() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return;
    history.replaceState(null, "", location.pathname + location.search);
    const response = await this.ask("/enter", { method: "POST", headers: { "x-tape-token": token } });
    localStorage.setItem("tape", (await response.json()).secret);
  },

  // Events of an address, each given to the function of its name in `on`; `on.over` is called when no more will come,
  // with the error if there was one.
  listen(address, on) {
    const stop = new AbortController();
    const read = async () => {
      const response = await this.ask(this.base + address, { headers: { accept: "text/event-stream" }, signal: stop.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        const events = (rest + piece.value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(event) ?? [];
          if (name) on[name]?.(JSON.parse(data));
        }
      }
    };
    read().then(() => null, (error) => error).then((error) => { if (!stop.signal.aborted) on.over(error); });
    return () => stop.abort();
  },

  async save(address, name) {
    const file = URL.createObjectURL(await (await this.ask(this.base + address)).blob());
    Object.assign(document.createElement("a"), { href: file, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(file), 60000);
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
