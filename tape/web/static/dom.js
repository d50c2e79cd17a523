// Elements from values. Text becomes a text node, never markup: nothing here reads HTML. Invisible marks and
// bidirectional marks are shown as escapes, and each text is isolated from the surrounding text.

const SVG = "http://www.w3.org/2000/svg";

const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const TURNING = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

function escaped(mark) {
  const code = mark.codePointAt(0).toString(16);
  if (mark === "\r") return "\\r";
  return code.length > 4 ? `\\U${code.padStart(8, "0")}` : code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
}

export const clean = (text) => String(text).replaceAll("\r\n", "\n").replace(HIDDEN, escaped);

// The unchanged text of a message. Its bidirectional marks take effect inside it, and its element isolates them.
export const verbatim = (text) => document.createTextNode(text);

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    if (child instanceof Node) element.append(child);
    else if (TURNING.test(child)) element.append(Object.assign(document.createElement("bdi"), { textContent: clean(child) }));
    else element.append(document.createTextNode(clean(child)));
  }
  return element;
}

const SAID = new Set(["title", "aria-label", "placeholder"]);

export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [title, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (title.startsWith("on")) element.addEventListener(title.slice(2), value);
    else if (title === "data") Object.assign(element.dataset, value);
    else element.setAttribute(title, value === true ? "" : SAID.has(title) ? clean(value) : String(value));
  }
  return fill(element, children);
}

// A drawing as the server describes it: [name, attributes, ...children].
const DRAWN = new Set(["svg", "g", "rect", "line", "path", "circle", "text", "title"]);

export function svg(drawing) {
  if (!Array.isArray(drawing)) return document.createTextNode(clean(drawing));
  const [name, attributes, ...children] = drawing;
  if (!DRAWN.has(name)) return document.createTextNode("");
  const element = document.createElementNS(SVG, name);
  for (const [title, value] of Object.entries(attributes)) {
    if (!/^on|href$/i.test(title)) element.setAttribute(title, SAID.has(title) ? clean(value) : value);
  }
  element.append(...children.map(svg));
  return element;
}

export const put = (element, ...children) => {
  element.replaceChildren();
  return fill(element, children);
};

export const one = (selector, within = document) => within.querySelector(selector);
export const all = (selector, within = document) => [...within.querySelectorAll(selector)];

export function say(text) {
  const status = one("#says");
  if (status) status.textContent = text;
}

// Words and numbers.

const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const PLAIN = new Intl.NumberFormat("en");
export const short = (value) => SHORT.format(value ?? 0);
export const plain = (value) => PLAIN.format(value ?? 0);
export const count = (value, word) => `${plain(value)} ${word}${value === 1 ? "" : "s"}`;
export const cost = (value) => (value ? (value / 1e6).toFixed(value < 1e6 ? 4 : 2) : "0");

export function bytes(value) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

export function when(text) {
  if (!text) return "";
  const at = new Date(text);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const full = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = new Date().toDateString() === at.toDateString();
  return h("time", { datetime: text, title: text }, today ? full.slice(11) : full.slice(0, 16));
}

export const chip = (text, kind) => h("span", { class: `chip ${kind ?? ""}` }, text);

export const facts = (...values) => h("span", { class: "facts" }, values.flat().filter(Boolean).map((value) => (value instanceof Node ? value : h("span", {}, value))));

export function dialog(title, ...children) {
  const box = h("dialog", { "aria-label": title, onclose: () => box.remove() }, h("h2", {}, title), children);
  document.body.append(box);
  box.showModal();
  return box;
}
