// A tool call and its result as one card: one line, preview or full.
// Recognizes commands, files and edits by their arguments; everything else is JSON.

import { blobUrl } from "./api.js";
import { button, h, icon } from "./dom.js";
import { highlight, languageOf } from "./highlight.js";
import { jsonTree, parseJson } from "./json_tree.js";
import { sessionLink } from "./route.js";
import { diffLines } from "./text_diff.js";
import { OUTCOMES, bytes, compactJson, firstLine, plural, printable } from "./format.js";

export const STATES = ["none", "preview", "full"];
const PREVIEW_LINES = 8, PREVIEW_LENGTH = 900, ONE_LINE = 120;

export function nextState(state) {
  return STATES[(STATES.indexOf(state) + 1) % STATES.length];
}

/** options: {call, result, state, waiting, changed(state), showAll, approve, omitted} */
export function card(options) {
  const { call, result, state } = options;
  const outcome = outcomeOf(result, options.waiting);
  const kind = kindOf(call);
  const head = h("button.card-head",
    { type: "button", "aria-expanded": String(state !== "none"), title: "Open, close (o)",
    onclick: () => options.changed(nextState(state)) },
    icon(kind.icon), h("span.card-name", { class: kind.isCommand ? "command" : "" },
      kind.isCommand ? "$" : printable(call.name)),
    h("span.card-line", { dir: "ltr" }, kind.line), badge(outcome));
  const box = h("div.card", { class: `is-${outcome} state-${state}`, data: { outcome, state } }, head);
  if (state !== "none") box.append(h("div.card-body", ...input(call, kind, state), ...output(result, state, options),
    showAllButton(options)));
  box.append(...(options.waiting?.approvals ?? []).map((approval) => approvalRow(approval, options.approve)).filter(Boolean));
  return box;
}

export function badge(outcome) {
  const [word, name] = OUTCOMES[outcome] ?? [outcome, "note"];
  return outcome === "done" ? h("span.badge.is-done", { title: "done" }, icon(name, "done")) : h("span.badge",
    { class: `is-${outcome}` }, icon(name), word);
}

export function outcomeOf(result, waiting) {
  if (!result) return waiting?.state ?? "pending";
  if (result.outcome && result.outcome !== "done") return result.outcome;
  return result.error ? "error" : "done";
}

/** The approval row of the call itself or of one in its task. Without `approve`, only those of tasks are shown. */
function approvalRow(approval, approve) {
  if (!approve && !approval.parent_call) return null;
  return h("div.approval-row", { role: "group", "aria-label": `Approval of ${approval.name}` },
    approval.parent_call ? h("span.approval-question", h("strong", printable(approval.name)), " needs approval ",
      h("code", compactJson(approval.arguments, 160)), " in ", taskLink(approval)) : h("span", "Allow this call?"),
    approve && button("check", "Approve", () => approve(approval, true), { class: "primary" }),
    approve && button("denied", "Deny", () => approve(approval, false)));
}

/** Link to the waiting call in its session. */
export function taskLink({ session_id: id, seq }) {
  return h("a.task", { href: sessionLink(id, seq) }, `task ${printable(id)}`);
}

// -- the call ---------------------------------------------------------------------------------

const SHELLS = /^(shell|bash|sh|zsh|run|run_command|run_script|exec|execute|execute_command|terminal|command|local_shell)$/i;
const first = (value, ...names) => names.map((name) => value[name]).find((value) => value !== undefined && value !== null);

function kindOf(call) {
  const args = call.arguments && typeof call.arguments === "object" && !Array.isArray(call.arguments) ? call.arguments : {};
  const command = first(args, "command", "argv", "cmd", "script");
  if (command !== undefined && (SHELLS.test(call.name) || /shell|bash|command|terminal/i.test(call.name))) {
    const text = Array.isArray(command) ? command.map(quoted).join(" ") : String(command);
    return { icon: "shell", isCommand: true, text, line: firstLine(text, 300) };
  }
  const path = first(args, "path", "file_path", "filename", "file");
  if (typeof path === "string") return fileKind(args, path);
  return { icon: "tool", line: Object.keys(args).length ? compactJson(call.arguments, 300) : compactJson(call.arguments ?? "",
    300).replace(/^\{\}$/, ""), json: call.arguments };
}

function fileKind(args, path) {
  const before = first(args, "old", "old_string", "old_str"), after = first(args, "new", "new_string", "new_str");
  const text = first(args, "text", "content", "file_text");
  const line = firstLine(path, 300), options = { icon: "file", path, line };
  if (typeof before === "string" && typeof after === "string") return { ...options, before, after };
  if (typeof text === "string") return { ...options, after: text, before: "" };
  const rest = Object.fromEntries(Object.entries(args).filter(([, value]) => value !== path));
  return { ...options, line: Object.keys(rest).length ? `${line} ${compactJson(rest, 120)}` : line };
}

function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function input(call, kind, state) {
  if (call.malformed) return [h("div.error-text", "Arguments are not valid JSON:"), pre(call.malformed, state)];
  if (kind.isCommand) return kind.text.includes("\n") || kind.text.length > 120 ? [pre(kind.text, state, "sh")] : [];
  if (kind.after !== undefined) return [fileDiff(kind.before, kind.after, state, languageOf(kind.path))];
  if (kind.json && state === "full" && Object.keys(kind.json).length) return [h("div.label", "arguments"),
    jsonTree(kind.json, { open: 2 })];
  if (state === "full" && kind.path) return [h("div.label", "arguments"), jsonTree(call.arguments, { open: 1 })];
  return [];
}

/** Removed and added lines with a few lines of context. */
export function fileDiff(before, after, state, language) {
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
  const more = rows.length - limit;
  return h("div.filediff", { dir: "ltr", tabindex: 0 }, rows.slice(0, limit),
    more > 0 && h("div.more-lines", `${plural(more, "more line")}`));
}

// -- the result -------------------------------------------------------------------------------

function output(result, state, options) {
  if (!result) return [];
  const pieces = (result.content ?? []).map((piece) => (piece.type === "media" ? media(piece) : resultText(piece.text ?? "",
    state, options.call)));
  if (state === "full" && result.details) pieces.push(h("div.label", "details (not sent to the model)"),
    jsonTree(result.details, { open: 1 }));
  if (result.ends_turn) pieces.push(h("div.label", "this result ended the turn"));
  return pieces.length ? pieces : [h("div.label", "empty result")];
}

function resultText(text, state, call) {
  const value = parseJson(text);
  if (value !== undefined && state === "full") return jsonTree(value, { open: 3 });
  if (value !== undefined && text.length < PREVIEW_LENGTH) return pre(text.length < ONE_LINE ? JSON.stringify(value)
    : JSON.stringify(value, null, 1), state, "json");
  const path = call?.arguments?.path;
  return pre(text, state, typeof path === "string" && /read|cat|view/.test(call.name) ? languageOf(path) : "");
}

function pre(text, state, language = "") {
  let excerpt = text, hiddenLines = 0;
  if (state !== "full") {
    const all = text.split("\n");
    excerpt = all.slice(0, PREVIEW_LINES).join("\n").slice(0, PREVIEW_LENGTH);
    hiddenLines = all.length - excerpt.split("\n").length;
  }
  const omitted = excerpt.length < text.length;
  const note = hiddenLines > 0 ? plural(hiddenLines, "more line") : `${(text.length - excerpt.length).toLocaleString("en")} more characters`;
  return h("pre.code", { dir: "ltr", tabindex: 0 }, h("code", ...highlight(printable(excerpt), language)),
    omitted && h("span.more-lines", `\n${note}`));
}

function showAllButton({ omitted, showAll, state }) {
  if (!omitted || state !== "full" || !showAll) return null;
  return h("button.quiet.show-all", { type: "button", onclick: showAll },
    `Show all: ${omitted.toLocaleString("en")} more characters`);
}

/** A blob: images are shown, everything else is a download link. */
export function media(part) {
  const url = blobUrl(part.hash);
  const name = part.name ? printable(part.name) : part.mime;
  if (url === null) return h("span.missing", icon("note"), `${name}, ${bytes(part.size)}: not in this copy`);
  if (/^image\/(png|jpeg|gif|webp|avif)$/.test(part.mime)) {
    const picture = h("img.media", { src: url, alt: name, loading: "lazy", title: `${name}, ${bytes(part.size)}` });
    picture.addEventListener("error",
      () => picture.replaceWith(h("span.missing", icon("note"), `${name}, ${bytes(part.size)}: missing from this store`)));
    return h("a", { href: url,
      ...(url.startsWith("data:") ? { download: part.name ?? part.hash.slice(0, 12) } : { target: "_blank",
      rel: "noopener" }) }, picture);
  }
  return h("a.file", { href: url, download: part.name ?? part.hash.slice(0, 12) }, icon("file"),
    `${name}, ${bytes(part.size)}`);
}
