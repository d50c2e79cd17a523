// The page that was asked for, drawn from its data.

import { clean, h, one, put } from "./dom.js";
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
  document.title = `${clean(page.title)} · tape`;
  performance.mark("drawn");
  source.release();
}

function lost(error) {
  const title = error.status === 404 ? "Not found" : "Refused";
  document.title = `${title} · tape`;
  const main = put(one("#main"), h("h1", {}, title), h("p", {}, error.message), h("p", {}, h("a", { href: "/" }, "All tapes")));
  main.classList.add("lost");
}

async function start() {
  source.hold();
  keys();
  try {
    await source.enter();
    draw(await source.load(location.pathname + location.search));
  } catch (error) {
    lost(error);
  }
  source.release();
}

if ("served" in document.documentElement.dataset) start();
