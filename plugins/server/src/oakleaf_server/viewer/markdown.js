// Renders Markdown as DOM nodes: paragraphs, headings, lists, quotes, code, tables, emphasis and links.
// HTML stays text. Links may use http, https or mailto only. Images become links: nothing is loaded.

import { h } from "./dom.js";
import { highlight } from "./highlight.js";
import { printable } from "./format.js";

const LONGEST = 100_000, DEEPEST = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const BAR = /^\s*\|?\s*:?-{1,}:?\s*(\|\s*:?-{1,}:?\s*)*\|?\s*$/;

export function markdown(text) {
  const safe = printable(text);
  if (safe.length > LONGEST) return h("div.md.plain", { dir: "auto" }, safe);
  const box = h("div.md", { dir: "auto" });
  box.append(...blocks(safe.split("\n"), 0));
  return box;
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) found.push(node);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, ...inline(heading[2])), at + 1];
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quoted(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return listed(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-")
    && BAR.test(lines[at + 1])) return tabled(lines, at);
  return paragraph(lines, at);
}

function fenced(lines, at, [, marks, language]) {
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(marks) && !lines[end].trim().replaceAll(marks[0], ""))) end++;
  const code = lines.slice(at + 1, end).join("\n");
  return [h("pre.code", { tabindex: 0, dir: "ltr" }, h("code", ...highlight(code, language))), end + 1];
}

function quoted(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [h("blockquote", ...blocks(inner, depth + 1)), end];
}

function listed(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark), items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== isOrdered || RULE.test(lines[end])) break;
    const [inner, next] = belonging(lines, end, item, indent.length);
    items.push(h("li", ...tight(blocks(inner, depth + 1))));
    end = next;
  }
  const start = isOrdered ? Number.parseInt(mark, 10) : 1;
  return [isOrdered ? h("ol", start === 1 ? {} : { start }, ...items) : h("ul", ...items), Math.max(end, at + 1)];
}

/** The lines of one list item: its own and all lines indented below it. */
function belonging(lines, at, item, indent) {
  const inner = [item[3]], wide = item[0].length - item[3].length;
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end], depth = line.length - line.trimStart().length;
    if (!line.trim()) {
      const after = lines[end + 1] ?? "";
      if (after.trim() && after.length - after.trimStart().length > indent) { inner.push(""); continue; }
      break;
    }
    if (depth <= indent && (ITEM.test(line) || inner.at(-1) === "" || HEADING.test(line) || FENCE.test(line))) break;
    inner.push(line.slice(Math.min(depth, wide)));
  }
  while (end < lines.length && !lines[end].trim() && ITEM.test(lines[end + 1] ?? "")) end++;
  return [inner, end];
}

function tight(nodes) {
  return nodes.length && nodes[0].tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function tabled(lines, at) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const head = h("tr", cells(lines[at]).map((cell) => h("th", ...inline(cell))));
  const rows = lines.slice(at + 2, end).map((line) => h("tr", cells(line).map((cell) => h("td", ...inline(cell)))));
  return [h("div.wide", { tabindex: 0 }, h("table", h("thead", head), h("tbody", rows))), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines[end])) end++;
  return [h("p", ...inline(lines.slice(at, end).join("\n"))), end];
}

function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

// Each alternative ends at a character it cannot contain, so a long line is matched in linear time.
const INLINE = /(`+)([^`]+?)\1(?!`)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|(?<![\p{L}\p{N}*])\*([^*\s][^*\n]*)\*|(?<![\p{L}\p{N}_])_([^_\s][^_\n]*)_(?![\p{L}\p{N}])|~~([^~\n]+)~~|!?\[([^\][\n]*)\]\(([^()\s]+)(?:\s+"[^"\n]*")?\)|(https?:\/\/[^\s<>()"'`]+[^\s<>()"'`.,;:!?])/gu;

function inline(text, depth = 0) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(piece(match, depth));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function piece(match, depth) {
  const [all, , code, bold, strong, slant, stress, struck, words, target, bare] = match;
  const inner = (said) => (depth < DEEPEST ? inline(said, depth + 1) : [said]);
  if (code !== undefined) return h("code", code);
  if (bold ?? strong) return h("strong", ...inner(bold ?? strong));
  if (slant ?? stress) return h("em", ...inner(slant ?? stress));
  if (struck) return h("s", ...inner(struck));
  if (bare) return link(bare, [bare]);
  return isSafe(target) ? link(target, words ? inner(words) : [target]) : all;
}

function link(target, words) {
  return h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank", title: target }, ...words);
}

function isSafe(target) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(target).protocol);
  } catch {
    return false; // relative or invalid
  }
}
