// A list of any length of which only the rows in sight exist. Every row is as high as any other.

import { h } from "./dom.js";

const ROW = 30;
const SPARE = 20;
// Browsers end an element at some height. A longer list is scrolled in proportion.
const TALLEST = 12_000_000;

// `model` has count(), row(index) (undefined while it is on its way) and want(first, last); `draw` makes a row.
export function virtual(label, model, draw) {
  const space = h("div", { class: "space", role: "presentation" });
  const window_ = h("div", { class: "rows", role: "rowgroup" });
  const box = h("div", { class: "virtual", role: "table", "aria-label": label, tabindex: "0" }, space, window_);
  const drawn = new Map();
  let current = -1;

  const tall = () => Math.min(model.count() * ROW, TALLEST);
  const scale = () => (model.count() * ROW) / (tall() || 1);

  function update() {
    space.style.height = `${tall()}px`;
    box.setAttribute("aria-rowcount", String(model.count()));
    const top = box.scrollTop * scale();
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(model.count(), Math.ceil((top + box.clientHeight) / ROW) + SPARE);
    const shift = box.scrollTop - top;
    model.want(first, last);
    for (const [index, element] of drawn) {
      if (index < first || index >= last || element.dataset.waiting) {
        if (element.contains(document.activeElement)) box.focus({ preventScroll: true });
        element.remove();
        drawn.delete(index);
      }
    }
    let before = null;
    for (let index = last - 1; index >= first; index -= 1) {
      let element = drawn.get(index);
      if (!element) {
        const row = model.row(index);
        element = row ? draw(row) : h("div", { role: "row", class: "row waiting", "data-waiting": "1" }, h("span", { role: "cell" }, "…"));
        element.setAttribute("aria-rowindex", String(index + 1));
        drawn.set(index, element);
        window_.insertBefore(element, before);
      }
      element.style.top = `${index * ROW + shift}px`;
      element.classList.toggle("current", index === current);
      before = element;
    }
  }

  function show(index) {
    current = Math.min(Math.max(index, 0), model.count() - 1);
    const place = (current * ROW) / scale();
    if (place < box.scrollTop + ROW) box.scrollTop = Math.max(0, place - ROW);
    else if (place + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = place + 2 * ROW - box.clientHeight;
    update();
    return drawn.get(current);
  }

  box.addEventListener("scroll", () => requestAnimationFrame(update), { passive: true });
  new ResizeObserver(update).observe(box);
  return {
    box,
    update,
    forget() {
      for (const element of drawn.values()) element.remove();
      drawn.clear();
    },
    move: (by) => {
      const from = current < 0 ? Math.floor((box.scrollTop * scale()) / ROW) - (by > 0 ? 1 : 0) : current;
      const row = show(from + by);
      if (row) row.focus({ preventScroll: true });
    },
    end: (by) => show(by < 0 ? 0 : model.count() - 1),
    show,
    current: () => drawn.get(current),
    atEnd: () => box.scrollTop + box.clientHeight >= tall() - 2 * ROW,
  };
}
