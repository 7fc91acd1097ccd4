// Differences between two texts: by line for files and prompts, by word for answers.
// Texts too long to compare quickly are returned as fully different.

import { h } from "./dom.js";
import { printable } from "./format.js";

const MOST_CELLS = 2_000_000;

/** Pieces in order: {side: "both" | "a" | "b", items: […]}. */
export function compare(a, b) {
  let start = 0, end = 0;
  const short = Math.min(a.length, b.length);
  while (start < short && a[start] === b[start]) start++;
  while (end < short - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const pieces = [];
  push(pieces, "both", a.slice(0, start));
  between(pieces, a.slice(start, a.length - end), b.slice(start, b.length - end));
  push(pieces, "both", a.slice(a.length - end));
  return pieces;
}

function push(pieces, side, items) {
  if (!items.length) return;
  const last = pieces.at(-1);
  if (last?.side === side) last.items.push(...items);
  else pieces.push({ side, items: [...items] });
}

function between(pieces, a, b) {
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) {
    push(pieces, "a", a);
    push(pieces, "b", b);
    return;
  }
  const lengths = commonLengths(a, b), wide = b.length + 1;
  let x = 0, y = 0;
  while (x < a.length && y < b.length) {
    if (a[x] === b[y]) { push(pieces, "both", [a[x]]); x++; y++; }
    else if (lengths[(x + 1) * wide + y] >= lengths[x * wide + y + 1]) push(pieces, "a", [a[x++]]);
    else push(pieces, "b", [b[y++]]);
  }
  push(pieces, "a", a.slice(x));
  push(pieces, "b", b.slice(y));
}

/** The length of the longest common subsequence for every pair of suffixes. */
function commonLengths(a, b) {
  const wide = b.length + 1, lengths = new Uint32Array((a.length + 1) * wide);
  for (let x = a.length - 1; x >= 0; x--) {
    for (let y = b.length - 1; y >= 0; y--) {
      lengths[x * wide + y] = a[x] === b[y]
        ? lengths[(x + 1) * wide + y + 1] + 1
        : Math.max(lengths[(x + 1) * wide + y], lengths[x * wide + y + 1]);
    }
  }
  return lengths;
}

export function diffLines(a, b) {
  return compare(a.split("\n"), b.split("\n"));
}

/** Compare word by word; texts that share little are returned as fully different. */
export function diffWords(a, b) {
  const parts = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
  const pieces = compare(parts(a), parts(b)).map(({ side, items }) => ({ side, text: items.join("") }));
  const shared = pieces.filter((piece) => piece.side === "both").reduce((sum, piece) => sum + piece.text.trim().length, 0);
  if (shared * 6 >= a.length + b.length) return pieces;
  return [{ side: "a", text: a }, { side: "b", text: b }].filter((piece) => piece.text);
}

/** Both texts in two columns, with the differing words highlighted. */
export function markedColumns(a, b) {
  const pieces = diffWords(printable(a), printable(b));
  const column = (mine, tag) => h(`div.side.side-${mine}`, { dir: "auto" },
    pieces.filter((piece) => piece.side === "both" || piece.side === mine)
    .map((piece) => (piece.side === "both" ? piece.text : h(tag, piece.text))));
  return h("div.diff-columns", a ? column("a", "del") : h("div.side.nothing", "nothing"),
    b ? column("b", "ins") : h("div.side.nothing", "nothing"));
}
