// What happened between messages, and what a page may do on a server that was started with --write.

import { dialog, facts, h, one, put, when } from "./dom.js";
import { source } from "./source.js";

const SIGNS = { fork: "⇢", merge: "⇠", handoff: "⚑", anchor: "⚑", compact: "≡", discard: "×", status: "●", retract: "−", clear: "−", switch: "⇄" };

export function mark(entry, page) {
  const to = entry.child ?? entry.other;
  return h("article", { class: `mark ${entry.kind}`, tabindex: "-1", "data-item": "", "aria-label": `${entry.kind} at ${entry.seq}` },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[entry.kind] ?? "·"),
    h("strong", {}, entry.kind), " ", h("span", { class: "gist" }, entry.gist), " ",
    to ? h("a", { href: source.href(`/t/${to}`), class: "enter" }, entry.kind === "fork" ? "open the fork →" : "open the tape →") : null,
    facts(when(entry.at), h("a", { class: "seq", "data-open": "", href: source.href(`/e/${page.tape.ref}/${entry.seq}`) }, `#${entry.seq}`)));
}

async function send(page, wanted) {
  const headers = { "content-type": "application/json" };
  const response = await source.ask(`${source.base}/t/${page.tape.ref}/act`, { method: "POST", headers, body: JSON.stringify(wanted) });
  return response.json();
}

function receipt(told) {
  const facts = Object.entries(told.receipt).filter(([name, value]) => name !== "ref" && value !== null);
  dialog("Receipt", h("p", {}, `Done: ${told.did}.`),
    h("dl", { class: "facts-list" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
    h("p", {}, h("a", { href: source.href(`/t/${told.receipt.ref}`) }, told.did === "fork" ? "Open the fork" : "Open the tape")),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
}

function ask(title, fields, page, made, done) {
  const problem = h("p", { class: "problem", role: "alert" });
  const inputs = fields.map(([name, label, needed]) => [name, h("input", { name, required: needed, id: `act-${name}` }), label]);
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const told = await send(page, made(Object.fromEntries(inputs.map(([name, input]) => [name, input.value]))));
      box.close();
      receipt(told);
      done?.();
    } catch (error) {
      put(problem, error.message);
    }
  } }, inputs.map(([name, input, label]) => h("p", {}, h("label", { for: `act-${name}` }, label), input)), problem,
  h("p", {}, h("button", { class: "main" }, title), " ", h("button", { type: "button", onclick: () => box.close() }, "Cancel")));
  const box = dialog(title, form);
  one("input", box)?.focus();
}

const listed = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

// Returns what makes the menu of a message, or (for null) that of the whole tape.
export function tools(page, done) {
  const button = (label, act) => h("button", { type: "button", class: "act", onclick: act }, label);
  const fork = (at) => button("Fork here", () => ask("Fork here", [["name", "Name"]], page, ({ name }) => ({ do: "fork", at: at(), name: name || null }), done));
  return (shown) => {
    if (shown === null) {
      return [
        fork(() => page.seq),
        button("Hand off", () => ask("Hand off", [["name", "Name", true], ["summary", "Summary", true], ["steps", "Next steps, separated by commas"]], page,
          ({ name, summary, steps }) => ({ do: "handoff", name, summary, next_steps: listed(steps) }), done)),
        button("Label", () => ask("Label", [["add", "Add, separated by commas"], ["remove", "Remove, separated by commas"]], page,
          ({ add, remove }) => ({ do: "label", add: listed(add), remove: listed(remove) }), () => location.reload())),
        button("Restore", () => ask("Restore", [["message", "Message id", true]], page, ({ message }) => ({ do: "restore", message }), done)),
      ];
    }
    return h("details", { class: "menu" }, h("summary", { "aria-label": `Actions for message ${shown.seq}` }, "⋯"),
      h("div", {}, fork(() => (shown.inherited ? page.seq : shown.revision)),
        button("Retract", () => ask("Retract", [["reason", "Reason"]], page, ({ reason }) => ({ do: "retract", message: shown.id, reason: reason || null }), done))));
  };
}
