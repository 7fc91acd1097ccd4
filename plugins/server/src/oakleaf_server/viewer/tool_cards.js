// A tool call and its result as one card: one line, preview or full, with its outcome, its duration and its approval.
// What the arguments and the result look like is in tool_views.js.

import { blobUrl } from "./api.js";
import { button, h, icon } from "./dom.js";
import { jsonTree, parseJson } from "./json_tree.js";
import { sessionLink } from "./route.js";
import { argumentNodes, excerpt, inputNodes, kindOf, resultNode, PREVIEW_LENGTH } from "./tool_views.js";
import { OUTCOMES, bytes, duration, printable } from "./format.js";

const STATES = ["none", "preview", "full"];
const ONE_LINE = 120;

export function nextState(state) {
  return STATES[(STATES.indexOf(state) + 1) % STATES.length];
}

/** options: {call, result, state, waiting, since, micros, waited, changed(state), showAll, omitted} */
export function card(options) {
  const { call, result, state } = options;
  const outcome = outcomeOf(result, options.waiting);
  const kind = kindOf(call);
  const head = h("button.card-head",
    { type: "button", "aria-expanded": String(state !== "none"), title: "Open, close (o)",
    onclick: () => options.changed(nextState(state)) },
    icon(kind.icon), h("span.card-name", { class: kind.isCommand ? "command" : "" },
      kind.isCommand ? "$" : printable(call.name)),
    h("span.card-line", { dir: "ltr" }, kind.line),
    options.waited >= 50_000 && h("span.muted.card-wait", { title: "Waited for a person" }, icon("wait", "waited"), duration(options.waited)),
    outcome === "running" && runningClock(options.since),
    options.micros >= 50_000 && h("span.muted.card-time", { title: "Ran this long" }, duration(options.micros)),
    result?.details?.reused && h("span.muted", { title: "Not run here: the result it had on a path that was left" }, "reused"), badge(outcome));
  const box = h("div.card", { class: `is-${outcome} state-${state}`, data: { outcome, state } }, head);
  const more = () => { options.changed("full"); if (options.omitted) options.showAll?.(); };
  if (state !== "none") box.append(h("div.card-body", ...inputNodes(call, kind, state, more), ...output(result, kind, options, more),
    showAllButton(options)));
  return box;
}

/** How long a call has been running, second by second while the row is drawn. */
function runningClock(since) {
  const clock = h("span.muted.card-time", { title: "Running since" });
  const tick = () => { clock.textContent = duration(Math.max(0, Date.now() * 1000 - since)); };
  const timer = setInterval(() => (clock.isConnected ? tick() : clearInterval(timer)), 1000);
  tick();
  return clock;
}

export function badge(outcome) {
  const [word, name] = OUTCOMES[outcome] ?? [outcome, "note"];
  return outcome === "done" ? h("span.badge.is-done", { title: "done" }, icon(name, "done")) : h("span.badge",
    { class: `is-${outcome}` }, icon(name), word);
}

function outcomeOf(result, waiting) {
  if (!result) return waiting?.state ?? "pending";
  if (result.outcome && result.outcome !== "done") return result.outcome;
  return result.error ? "error" : "done";
}

/** A call that waits for approval, with all its arguments; one of a task links to its session. decide(allow, button) */
export function approvalNode(call, words, decide) {
  return h("div.approval", { role: "group", "aria-label": `Approval of ${call.name}` },
    h("div.approval-head", icon("wait"), h("span.grow", h("strong", printable(call.name)), words, call.parent_call && [" in ", taskLink(call)], elsewhere(call)),
      decide && button("check", "Approve", (event) => decide(true, event.currentTarget), { class: "primary" }),
      decide && button("denied", "Deny", (event) => decide(false, event.currentTarget))),
    h("div.approval-arguments", { tabindex: 0 }, ...argumentNodes(call)), earlierNode(call));
}

/** A decision that came with an import does not count here. */
function elsewhere({ decided_elsewhere: decision }) {
  return decision && ` It was ${decision} elsewhere, which does not count here.`;
}

/** The same call on a path that was left, and its result: why a person is asked. */
function earlierNode({ earlier }) {
  return earlier && h("div.approval-earlier", "Made before, on a path that was left: ", leftLink(earlier), " → ", printable(leftOutcome(earlier)));
}

/** Link to a call that was left behind. */
export function leftLink({ session: id, seq, name }) {
  return h("a", { href: sessionLink(id, seq) }, `${printable(name)} at ${seq}`);
}

/** What became of a call that was left behind, in one line. */
export function leftOutcome({ content, error, outcome }) {
  const text = content.map((part) => part.text ?? `[${part.mime}]`).join(" ").slice(0, 300);
  return [outcome === "done" ? error && "error:" : `${outcome}:`, text].filter(Boolean).join(" ");
}

/** Link to the waiting call in its session. */
function taskLink({ session_id: id, seq }) {
  return h("a.task", { href: sessionLink(id, seq) }, `task ${printable(id)}`);
}

function output(result, kind, { call, state }, more) {
  if (!result) return [];
  const isError = Boolean(result.error), pieces = (result.content ?? []).map((piece) => (piece.type === "media" ? media(piece)
    : resultText(piece.text ?? "", kind, call, { state, isError, more })));
  if (state === "full" && result.details) pieces.push(h("div.label", "details (not sent to the model)"),
    jsonTree(result.details, { open: 1 }));
  if (result.ends_turn) pieces.push(h("div.label", "this result ended the turn"));
  return pieces.length ? pieces : [h("div.label", "empty result")];
}

function resultText(text, kind, call, how) {
  const value = parseJson(text);
  if (value !== undefined && how.state === "full") return jsonTree(value, { open: 3 });
  if (value !== undefined && text.length < PREVIEW_LENGTH) {
    return excerpt(text.length < ONE_LINE ? JSON.stringify(value) : JSON.stringify(value, null, 1), { ...how, language: "json" });
  }
  return resultNode(text, call, kind, how);
}

function showAllButton({ omitted, showAll, changed, state }) {
  if (!omitted || !showAll) return null;
  return h("button.quiet.show-all", { type: "button", onclick: () => { if (state !== "full") changed("full"); showAll(); } },
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
