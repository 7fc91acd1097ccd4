// A JSON value as a foldable tree. The content of a fold is rendered when it is opened.

import { h } from "./dom.js";
import { printable } from "./format.js";

const MOST_ITEMS = 200, LONG = 2000;

/** `open`: how many levels are expanded at first. */
export function jsonTree(value, { open = 1, name = null } = {}) {
  return h("div.json", { dir: "ltr" }, line(value, name, open));
}

function line(value, name, open) {
  const label = name === null ? null : h("span.json-name", `${printable(name)}: `);
  if (value === null || typeof value !== "object") return h("div.json-line", label, leaf(value));
  const items = Array.isArray(value) ? value.map((item, at) => [at, item]) : Object.entries(value);
  const [begin, end] = Array.isArray(value) ? "[]" : "{}";
  if (!items.length) return h("div.json-line", label, h("span.muted", begin + end));
  const fold = h("details", { open: open > 0 }, h("summary", label, h("span.muted", `${begin}${items.length}${end}`)));
  const children = h("div.json-inside");
  const make = () => { if (!children.hasChildNodes()) appendItems(children, items, 0, open - 1, Array.isArray(value)); };
  if (open > 0) make();
  fold.addEventListener("toggle", make);
  fold.append(children);
  return fold;
}

function appendItems(children, items, from, open, isList) {
  const batch = items.slice(from, from + MOST_ITEMS);
  children.append(...batch.map(([name, item]) => line(item, isList && items.length < 2 ? null : name, open)));
  const remaining = items.length - from - batch.length;
  if (remaining <= 0) return;
  const more = h("button.quiet",
    { type: "button", onclick: () => { more.remove(); appendItems(children, items, from + MOST_ITEMS, open, isList); } },
    `${remaining} more`);
  children.append(more);
}

function leaf(value) {
  if (typeof value !== "string") return h("span.json-plain", String(value));
  if (value.length <= LONG && !value.includes("\n")) return h("span.json-text", `"${printable(value)}"`);
  const text = h("span.json-text.long", printable(value.slice(0, LONG)));
  if (value.length > LONG) {
    const more = h("button.quiet", { type: "button", onclick: () => { more.remove(); text.textContent = printable(value); } },
      `${(value.length - LONG).toLocaleString("en")} more characters`);
    return h("span", text, more);
  }
  return text;
}

/** Parse a text that is a JSON object or array; otherwise return undefined. */
export function parseJson(text) {
  const begin = text.trimStart()[0];
  if ((begin !== "{" && begin !== "[") || text.length > 500_000) return undefined;
  try { return JSON.parse(text); } catch { return undefined; }
}
