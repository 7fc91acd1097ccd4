// What a tool call looks like: recognizes commands, files, edits, searches, to-do lists and tasks by name and arguments.
// Everything else is JSON. Knows tools of common agents by the shape of their arguments, not by a list of products.

import { h } from "./dom.js";
import { highlight, languageOf } from "./highlight.js";
import { jsonTree } from "./json_tree.js";
import { markdown } from "./markdown.js";
import { diffLines } from "./text_diff.js";
import { compactJson, firstLine, plural, printable } from "./format.js";

export const PREVIEW_LINES = 8;
export const PREVIEW_LENGTH = 900;
const SHELLS = /^(shell|bash|sh|zsh|run|run_command|run_script|exec|execute|execute_command|terminal|command|local_shell)$/i;
const SEARCHES = /grep|glob|ripgrep|^rg$|search_files|find_files|list_files|codebase_search/i;
const TASKS = /^(task|agent|delegate|spawn|subagent|run_agent)|_task$|_agent$/i;
const first = (value, ...names) => names.map((name) => value[name]).find((item) => item !== undefined && item !== null);
const isText = (value) => typeof value === "string";

/** {icon, line, isCommand?, text?, path?, edits?, patch?, todos?, pattern?, prompt?, json?} */
export function kindOf(call) {
  const args = call.arguments && typeof call.arguments === "object" && !Array.isArray(call.arguments) ? call.arguments : {};
  const command = first(args, "command", "argv", "cmd", "script");
  if (command !== undefined && (SHELLS.test(call.name) || /shell|bash|command|terminal/i.test(call.name))) {
    const text = Array.isArray(command) ? command.map(quoted).join(" ") : String(command);
    return { icon: "shell", isCommand: true, text, line: firstLine(text, 300) };
  }
  return todoKind(args) ?? patchKind(args) ?? searchKind(call, args) ?? fileKind(args) ?? taskKind(call, args) ?? {
    icon: "tool", json: call.arguments,
    line: Object.keys(args).length ? compactJson(call.arguments, 300) : compactJson(call.arguments ?? "", 300).replace(/^\{\}$/, ""),
  };
}

function todoKind(args) {
  const list = first(args, "todos", "todo_list", "plan", "items");
  if (!Array.isArray(list) || !list.length || !list.every((item) => isText(item?.status) && isText(todoText(item)))) return null;
  const done = list.filter((item) => /complete|done/i.test(item.status)).length;
  return { icon: "check", todos: list, line: `${done} of ${plural(list.length, "item")} done` };
}

const todoText = (item) => first(item, "content", "step", "title", "text", "task", "description");

function patchKind(args) {
  const patch = first(args, "patch", "diff", "input");
  if (!isText(patch) || !/^(\*\*\* Begin Patch|--- |diff --git |@@ )/m.test(patch)) return null;
  const files = [...patch.matchAll(/^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b\/)?)(\S+)/gm)].map((match) => match[1]);
  return { icon: "file", patch, line: files.join(" ") || "patch" };
}

function searchKind(call, args) {
  const pattern = first(args, "pattern", "query", "regex", "glob");
  if (!SEARCHES.test(call.name) || !isText(pattern)) return null;
  const rest = Object.entries(args).filter(([, value]) => value !== pattern && isText(value)).map(([, value]) => value);
  return { icon: "search", pattern, json: call.arguments, line: [firstLine(pattern, 200), rest.length ? `in ${firstLine(rest.join(" "), 100)}` : ""].join("  ").trim() };
}

function fileKind(args) {
  const path = first(args, "path", "file_path", "filename", "file", "notebook_path");
  if (!isText(path)) return null;
  const before = first(args, "old", "old_string", "old_str"), after = first(args, "new", "new_string", "new_str");
  const text = first(args, "text", "content", "file_text", "new_source");
  const line = firstLine(path, 300), kind = { icon: "file", path, line };
  if (isText(before) && isText(after)) return { ...kind, edits: [[before, after]] };
  if (Array.isArray(args.edits) && args.edits.every((edit) => editOf(edit))) {
    return { ...kind, line: `${line} ${plural(args.edits.length, "edit")}`, edits: args.edits.map(editOf) };
  }
  if (isText(text)) return { ...kind, edits: [["", text]] };
  const rest = Object.fromEntries(Object.entries(args).filter(([, value]) => value !== path));
  return { ...kind, line: Object.keys(rest).length ? `${line} ${compactJson(rest, 120)}` : line, json: args };
}

function editOf(edit) {
  const before = first(edit ?? {}, "old", "old_string", "old_str"), after = first(edit ?? {}, "new", "new_string", "new_str");
  return isText(before) && isText(after) ? [before, after] : null;
}

function taskKind(call, args) {
  const prompt = first(args, "prompt", "instructions", "task", "message");
  if (!TASKS.test(call.name) || !isText(prompt)) return null;
  const label = first(args, "description", "title", "subagent_type", "agent") ?? prompt;
  return { icon: "task", prompt, line: firstLine(String(label), 200) };
}

function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// -- arguments --------------------------------------------------------------------------------

/** The arguments of a call as far as its line does not show them. `more` expands an excerpt. */
export function inputNodes(call, kind, state, more) {
  if (call.malformed) return [h("div.error-text", "Arguments are not valid JSON:"), excerpt(call.malformed, { state, more })];
  if (kind.isCommand) return kind.text.includes("\n") || kind.text.length > 120 ? [excerpt(kind.text, { state, more, language: "sh" })] : [];
  if (kind.todos) return [todoList(kind.todos)];
  if (kind.patch) return [patchView(kind.patch, state, more)];
  if (kind.edits) return kind.edits.map(([before, after]) => fileDiff(before, after, state, languageOf(kind.path), more));
  if (kind.prompt) return [state === "full" ? markdown(kind.prompt) : excerpt(kind.prompt, { state, more })];
  const args = kind.json;
  if (state === "full" && args && Object.keys(args).length) return [h("div.label", "arguments"), jsonTree(args, { open: 2 })];
  return [];
}

/** Every argument in full, for someone who decides about the call. */
export function argumentNodes(call) {
  const kind = kindOf(call);
  if (call.malformed || kind.todos || kind.patch || kind.edits) return [kind.path && h("div.label", printable(kind.path)), ...inputNodes(call, kind, "full")];
  if (kind.isCommand) return [h("pre.code", { dir: "ltr", tabindex: 0 }, h("code", ...highlight(printable(kind.text), "sh")))];
  const args = call.arguments, isObject = args && typeof args === "object" && !Array.isArray(args);
  if (!isObject) return args === undefined || args === null ? [] : [h("pre.code", { tabindex: 0 }, printable(isText(args) ? args : JSON.stringify(args, null, 1)))];
  if (!Object.keys(args).length) return [h("p.muted", "No arguments.")];
  return [h("dl.arguments", { dir: "ltr" }, Object.entries(args).flatMap(([name, value]) => [h("dt", printable(name)),
    h("dd", isText(value) ? printable(value) : JSON.stringify(value, null, 1))]))];
}

function todoList(todos) {
  const state = (item) => (/complete|done/i.test(item.status) ? "done" : /progress|active|doing/i.test(item.status) ? "doing" : "open");
  return h("ul.todos", todos.map((item) => h("li", { class: `is-${state(item)}` },
    h("span.todo-mark", { role: "img", "aria-label": printable(item.status) }, { done: "✓", doing: "▸", open: "○" }[state(item)]),
    h("span", printable(todoText(item))))));
}

function patchView(patch, state, more) {
  const lines = printable(patch).split("\n"), limit = state === "full" ? lines.length : PREVIEW_LINES * 2;
  const rows = lines.slice(0, limit).map((line) => h("div", { class: /^\+(?!\+\+)/.test(line) ? "diff-b" : /^-(?!--)/.test(line) ? "diff-a" : "diff-both" }, line || " "));
  return h("div.filediff", { dir: "ltr", tabindex: 0 }, rows, lines.length > limit && moreButton(plural(lines.length - limit, "more line"), more));
}

/** Removed and added lines with a few lines of context. */
export function fileDiff(before, after, state, language, more) {
  const rows = [];
  for (const { side, items } of before ? diffLines(before, after) : [{ side: "b", items: after.split("\n") }]) {
    const visible = side === "both" && items.length > 7 ? [...items.slice(0, 3), null, ...items.slice(-3)] : items;
    for (const line of visible) {
      const mark = line === null ? "⋯" : { both: " ", a: "−", b: "+" }[side];
      const content = line === null ? [] : side === "both" ? [printable(line)] : highlight(printable(line), language);
      rows.push(h(`div.diff-${side}`, h("span.diff-mark", mark), ...content));
    }
  }
  const limit = state === "full" ? rows.length : PREVIEW_LINES * 2;
  return h("div.filediff", { dir: "ltr", tabindex: 0 }, rows.slice(0, limit),
    rows.length > limit && moreButton(plural(rows.length - limit, "more line"), more));
}

// -- results ----------------------------------------------------------------------------------

/** The text of a result; the preview of an error is its end, which says what went wrong. */
export function resultNode(text, call, kind, { state, isError, more }) {
  if (kind.pattern) return searchResult(text, state, more);
  if (kind.prompt && !isError) return state === "full" ? markdown(text) : excerpt(text, { state, more });
  const isFile = kind.path && /read|cat|view|open/i.test(call.name);
  return excerpt(text, { state, more, language: isFile ? languageOf(kind.path) : "", isTail: isError });
}

const HIT = /^(.+?):(\d+):(.*)$/;

/** Hits grouped by file, or plain lines. */
function searchResult(text, state, more) {
  const lines = text.split("\n"), hits = lines.map((line) => HIT.exec(line));
  if (hits.filter(Boolean).length < lines.length / 2) return excerpt(text, { state, more });
  const limit = state === "full" ? lines.length : PREVIEW_LINES, rows = [];
  let file = null;
  for (const [at, hit] of hits.slice(0, limit).entries()) {
    if (hit && hit[1] !== file) rows.push(h("div.hit-file", printable((file = hit[1]))));
    rows.push(h("div.hit-line", h("span.hit-number", hit ? hit[2] : ""), printable(hit ? hit[3] : lines[at])));
  }
  return h("div.filediff.hit-list", { dir: "ltr", tabindex: 0 }, rows, lines.length > limit && moreButton(plural(lines.length - limit, "more line"), more));
}

/** A text in full, or its first lines, or with `isTail` its last ones. */
export function excerpt(text, { state, more, language = "", isTail = false }) {
  let shown = text, hidden = "";
  if (state !== "full") {
    const lines = text.split("\n"), some = isTail ? lines.slice(-PREVIEW_LINES) : lines.slice(0, PREVIEW_LINES);
    shown = isTail ? some.join("\n").slice(-PREVIEW_LENGTH) : some.join("\n").slice(0, PREVIEW_LENGTH);
    const missing = lines.length - shown.split("\n").length;
    if (shown.length < text.length) hidden = missing > 0 ? plural(missing, isTail ? "earlier line" : "more line")
      : `${(text.length - shown.length).toLocaleString("en")} ${isTail ? "earlier" : "more"} characters`;
  }
  const code = h("code", ...(shown.includes("\u001b[") ? ansi(shown) : highlight(printable(shown), language)));
  return h("pre.code", { dir: "ltr", tabindex: 0 }, isTail && hidden && moreButton(hidden, more), code, !isTail && hidden && moreButton(hidden, more));
}

function moreButton(label, more) {
  return more ? h("button.quiet.more-lines", { type: "button", onclick: (event) => { event.stopPropagation(); more(); } }, `Show ${label}`)
    : h("div.more-lines", label);
}

const SGR = /\u001b\[([\d;]*)m/;

/** Terminal colours as spans. Every other control sequence stays visible as text. */
export function ansi(text) {
  const pieces = text.split(SGR), nodes = [];
  let style = {};
  pieces.forEach((piece, at) => {
    if (at % 2) { style = restyled(style, piece); return; }
    if (!piece) return;
    const names = [style.color && `ansi-${style.color}`, style.bold && "ansi-bold", style.dim && "ansi-dim"].filter(Boolean);
    nodes.push(names.length ? h("span", { class: names.join(" ") }, printable(piece)) : printable(piece));
  });
  return nodes;
}

const COLORS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

function restyled(style, codes) {
  const next = { ...style }, list = codes === "" ? [0] : codes.split(";").map(Number);
  for (let at = 0; at < list.length; at++) {
    const code = list[at];
    if (code === 0) Object.assign(next, { color: null, bold: false, dim: false });
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 22) Object.assign(next, { bold: false, dim: false });
    else if (code === 39) next.color = null;
    else if (code >= 30 && code <= 37) next.color = COLORS[code - 30];
    else if (code >= 90 && code <= 97) next.color = COLORS[code - 90];
    else if (code === 38 || code === 48) at += list[at + 1] === 5 ? 2 : 4; // 256 and true colours are left out
  }
  return next;
}
