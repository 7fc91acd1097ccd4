// JSON that folds: a value as a tree of lines, the inside of a fold made when it is opened.

import { h } from "./dom.js";
import { shown } from "./words.js";

const MOST_ITEMS = 200, LONG = 2000;

/** `open`: so many levels are unfolded at first. */
export function json(value, { open = 1, name = null } = {}) {
  return h("div.json", { dir: "ltr" }, line(value, name, open));
}

function line(value, name, open) {
  const label = name === null ? null : h("span.json-name", `${shown(name)}: `);
  if (value === null || typeof value !== "object") return h("div.json-line", label, leaf(value));
  const items = Array.isArray(value) ? value.map((item, at) => [at, item]) : Object.entries(value);
  const [begin, end] = Array.isArray(value) ? "[]" : "{}";
  if (!items.length) return h("div.json-line", label, h("span.muted", begin + end));
  const fold = h("details", { open: open > 0 }, h("summary", label, h("span.muted", `${begin}${items.length}${end}`)));
  const inside = h("div.json-inside");
  const make = () => { if (!inside.hasChildNodes()) some(inside, items, 0, open - 1, Array.isArray(value)); };
  if (open > 0) make();
  fold.addEventListener("toggle", make);
  fold.append(inside);
  return fold;
}

function some(inside, items, from, open, isList) {
  const now = items.slice(from, from + MOST_ITEMS);
  inside.append(...now.map(([name, item]) => line(item, isList && items.length < 2 ? null : name, open)));
  const left = items.length - from - now.length;
  if (left <= 0) return;
  const more = h("button.quiet",
    { type: "button", onclick: () => { more.remove(); some(inside, items, from + MOST_ITEMS, open, isList); } },
    `${left} more`);
  inside.append(more);
}

function leaf(value) {
  if (typeof value !== "string") return h("span.json-plain", String(value));
  if (value.length <= LONG && !value.includes("\n")) return h("span.json-text", `"${shown(value)}"`);
  const text = h("span.json-text.long", shown(value.slice(0, LONG)));
  if (value.length > LONG) {
    const more = h("button.quiet", { type: "button", onclick: () => { more.remove(); text.textContent = shown(value); } },
      `${(value.length - LONG).toLocaleString("en")} more characters`);
    return h("span", text, more);
  }
  return text;
}

/** A text as JSON if it is an object or a list, else undefined. */
export function parsed(text) {
  const begin = text.trimStart()[0];
  if ((begin !== "{" && begin !== "[") || text.length > 500_000) return undefined;
  try { return JSON.parse(text); } catch { return undefined; }
}
