// A tool call and its result as one card: shut, a preview, or all of it.
// Knows what commands, files and edits look like among arguments; everything else is JSON.

import { blobAddress } from "./api.js";
import { button, h, icon } from "./dom.js";
import { highlighted, languageOf } from "./highlight.js";
import { json, parsed } from "./json.js";
import { sessionLink } from "./route.js";
import { lines } from "./textdiff.js";
import { OUTCOMES, bytes, compact, firstLine, many, shown } from "./words.js";

export const STATES = ["none", "preview", "full"];
const PREVIEW_LINES = 8, PREVIEW_LENGTH = 900, ONE_LINE = 120;

export function nextState(state) {
  return STATES[(STATES.indexOf(state) + 1) % STATES.length];
}

/** told: {call, result, state, waiting, changed(state), showAll, approve, isCut} */
export function card(told) {
  const { call, result, state } = told;
  const outcome = outcomeOf(result, told.waiting);
  const kind = kindOf(call);
  const head = h("button.card-head",
    { type: "button", "aria-expanded": String(state !== "none"), title: "Open, close (o)",
    onclick: () => told.changed(nextState(state)) },
    icon(kind.icon), h("span.card-name", { class: kind.isCommand ? "command" : "" },
      kind.isCommand ? "$" : shown(call.name)),
    h("span.card-line", { dir: "ltr" }, kind.line), badge(outcome));
  const box = h("div.card", { class: `is-${outcome} state-${state}`, data: { outcome, state } }, head);
  if (state !== "none") box.append(h("div.card-body", ...input(call, kind, state), ...output(result, state, told),
    cutLine(told)));
  box.append(...(told.waiting?.asked ?? []).map((asked) => asking(asked, told.approve)).filter(Boolean));
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

/** What a person is asked about: the call itself, or one of its task. Where nobody can say a word, only the latter is told. */
function asking(asked, approve) {
  if (!approve && !asked.task_of) return null;
  return h("div.asking", { role: "group", "aria-label": `Approval of ${asked.name}` },
    asked.task_of ? h("span.asking-words", h("strong", shown(asked.name)), " waits for approval ",
      h("code", compact(asked.arguments, 160)), " in ", taskLink(asked)) : h("span", "May it run?"),
    approve && button("check", "Approve", () => approve(asked, true), { class: "primary" }),
    approve && button("denied", "Deny", () => approve(asked, false)));
}

/** To the call that waits, where it was made. */
export function taskLink({ session_id: id, seq }) {
  return h("a.task", { href: sessionLink(id, seq) }, `task ${shown(id)}`);
}

// -- what is called ---------------------------------------------------------------------------

const SHELLS = /^(shell|bash|sh|zsh|run|run_command|run_script|exec|execute|execute_command|terminal|command|local_shell)$/i;
const first = (value, ...names) => names.map((name) => value[name]).find((found) => found !== undefined && found !== null);

function kindOf(call) {
  const given = call.arguments && typeof call.arguments === "object" && !Array.isArray(call.arguments) ? call.arguments : {};
  const command = first(given, "command", "argv", "cmd", "script");
  if (command !== undefined && (SHELLS.test(call.name) || /shell|bash|command|terminal/i.test(call.name))) {
    const text = Array.isArray(command) ? command.map(quoted).join(" ") : String(command);
    return { icon: "shell", isCommand: true, text, line: firstLine(text, 300) };
  }
  const path = first(given, "path", "file_path", "filename", "file");
  if (typeof path === "string") return fileKind(given, path);
  return { icon: "tool", line: Object.keys(given).length ? compact(call.arguments, 300) : compact(call.arguments ?? "",
    300).replace(/^\{\}$/, ""), json: call.arguments };
}

function fileKind(given, path) {
  const before = first(given, "old", "old_string", "old_str"), after = first(given, "new", "new_string", "new_str");
  const text = first(given, "text", "content", "file_text");
  const line = firstLine(path, 300), told = { icon: "file", path, line };
  if (typeof before === "string" && typeof after === "string") return { ...told, before, after };
  if (typeof text === "string") return { ...told, after: text, before: "" };
  const rest = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== path));
  return { ...told, line: Object.keys(rest).length ? `${line} ${compact(rest, 120)}` : line };
}

function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function input(call, kind, state) {
  if (call.malformed) return [h("div.said-bad", "The model wrote arguments that are no JSON:"), pre(call.malformed, state)];
  if (kind.isCommand) return kind.text.includes("\n") || kind.text.length > 120 ? [pre(kind.text, state, "sh")] : [];
  if (kind.after !== undefined) return [fileDiff(kind.before, kind.after, state, languageOf(kind.path))];
  if (kind.json && state === "full" && Object.keys(kind.json).length) return [h("div.label", "arguments"),
    json(kind.json, { open: 2 })];
  if (state === "full" && kind.path) return [h("div.label", "arguments"), json(call.arguments, { open: 1 })];
  return [];
}

/** Lines taken away and put in, with a few of those around them. */
export function fileDiff(before, after, state, language) {
  const rows = [];
  for (const { side, items } of before ? lines(before, after) : [{ side: "b", items: after.split("\n") }]) {
    const kept = side === "both" && items.length > 7 ? [...items.slice(0, 3), null, ...items.slice(-3)] : items;
    for (const line of kept) {
      const mark = line === null ? "⋯" : { both: " ", a: "−", b: "+" }[side];
      const words = line === null ? [] : side === "both" ? [shown(line)] : highlighted(shown(line), language);
      rows.push(h(`div.diff-${side}`, h("span.diff-mark", mark), ...words));
    }
  }
  const most = state === "full" ? rows.length : PREVIEW_LINES * 2;
  const more = rows.length - most;
  return h("div.filediff", { dir: "ltr", tabindex: 0 }, rows.slice(0, most),
    more > 0 && h("div.more-lines", `${many(more, "more line")}`));
}

// -- what came back ---------------------------------------------------------------------------

function output(result, state, told) {
  if (!result) return [];
  const pieces = (result.content ?? []).map((piece) => (piece.type === "media" ? media(piece) : resultText(piece.text ?? "",
    state, told.call)));
  if (state === "full" && result.details) pieces.push(h("div.label", "details, for the host only"),
    json(result.details, { open: 1 }));
  if (result.ends_turn) pieces.push(h("div.label", "this result ended the turn"));
  return pieces.length ? pieces : [h("div.label", "empty result")];
}

function resultText(text, state, call) {
  const value = parsed(text);
  if (value !== undefined && state === "full") return json(value, { open: 3 });
  if (value !== undefined && text.length < PREVIEW_LENGTH) return pre(text.length < ONE_LINE ? JSON.stringify(value)
    : JSON.stringify(value, null, 1), state, "json");
  const path = call?.arguments?.path;
  return pre(text, state, typeof path === "string" && /read|cat|view/.test(call.name) ? languageOf(path) : "");
}

function pre(text, state, language = "") {
  let said = text, left = 0;
  if (state !== "full") {
    const all = text.split("\n");
    said = all.slice(0, PREVIEW_LINES).join("\n").slice(0, PREVIEW_LENGTH);
    left = all.length - said.split("\n").length;
  }
  const isCut = said.length < text.length;
  const remark = left > 0 ? many(left, "more line") : `${(text.length - said.length).toLocaleString("en")} more characters`;
  return h("pre.code", { dir: "ltr", tabindex: 0 }, h("code", ...highlighted(shown(said), language)),
    isCut && h("span.more-lines", `\n${remark}`));
}

function cutLine({ isCut, showAll, state }) {
  if (!isCut || state !== "full" || !showAll) return null;
  return h("button.quiet.show-all", { type: "button", onclick: showAll },
    `Show all: ${isCut.toLocaleString("en")} more characters`);
}

/** A blob by its handle: pictures are shown, everything else is a link to save it. */
export function media(part) {
  const where = blobAddress(part.hash);
  const name = part.name ? shown(part.name) : part.mime;
  if (where === null) return h("span.missing", icon("note"), `${name}, ${bytes(part.size)}: not in this copy`);
  if (/^image\/(png|jpeg|gif|webp|avif)$/.test(part.mime)) {
    const picture = h("img.media", { src: where, alt: name, loading: "lazy", title: `${name}, ${bytes(part.size)}` });
    picture.addEventListener("error",
      () => picture.replaceWith(h("span.missing", icon("note"), `${name}, ${bytes(part.size)}: not in this store`)));
    return h("a", { href: where,
      ...(where.startsWith("data:") ? { download: part.name ?? part.hash.slice(0, 12) } : { target: "_blank",
      rel: "noopener" }) }, picture);
  }
  return h("a.file", { href: where, download: part.name ?? part.hash.slice(0, 12) }, icon("file"),
    `${name}, ${bytes(part.size)}`);
}
