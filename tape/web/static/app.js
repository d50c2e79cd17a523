// The page that was asked for, drawn from its data.

import { h, one, put } from "./dom.js";
import { conversation } from "./conversation.js";
import { keys, list, top } from "./frame.js";
import { log } from "./log.js";
import { context, diff, entry, graph, health, search, usage } from "./pages.js";
import { source } from "./source.js";
import { tapes } from "./tapes.js";

const VIEWS = { tapes, conversation, log, graph, context, diff, search, entry, usage, health };

export function draw(page) {
  source.hold();
  Object.assign(list, { move: null, end: null, enter: null, fail: null });
  source.base = page.base;
  top(page);
  const main = one("#main");
  const view = VIEWS[page.page];
  if (view) view(page, main);
  else put(main, h("pre", {}, JSON.stringify(page, null, 2)));
  document.title = `${page.title} · tape`;
  performance.mark("drawn");
  source.release();
}

const block = one("#page");
if (block) {
  keys();
  draw(JSON.parse(block.textContent));
}
