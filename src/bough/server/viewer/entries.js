// One entry as a row of the transcript.
// Knows every kind of entry. What it needs of its surroundings (results, card states, actions) comes in `around`.

import { ask, sessionPath } from "./api.js";
import { card, media } from "./cards.js";
import { button, h, icon } from "./dom.js";
import { json } from "./json.js";
import { labelBadge } from "./labels.js";
import { markdown } from "./markdown.js";
import { partsOf } from "./path.js";
import { clock, count, firstLine, many, shown, whole } from "./words.js";

const ROLES = { user: "User", assistant: "Assistant", system: "System", tool: "Tool result" };
const FINISHES = {
  cancelled: ["cancelled", "denied", "denied"], interrupted: ["interrupted", "interrupted", "interrupted"],
  error: ["stopped by an error", "error", "error"], length: ["cut off by the token limit", "error", "unknown"],
};
const LONG_SYSTEM = 600;

/** The row, or null for one that is shown with another. */
export function entryRow(entry, around) {
  if (entry.role === "tool" && around.path.answerOf(entry)) return null;
  const [name, label, body] = content(entry, around);
  const isInput = entry.turn > 0 && entry.turn === entry.seq;
  return h("article.entry", {
    class: `kind-${entry.kind} role-${entry.role ?? "none"} ${isInput ? "is-input" : ""} ${entry.internal ? "is-internal" : ""}`,
    data: { seq: entry.seq, branch: entry.branch, place: `${entry.branch}:${entry.seq}` },
    tabindex: -1, "aria-posinset": entry.seq, "aria-setsize": around.path.of, "aria-label": `${label}, entry ${entry.seq}`,
  }, head(entry, name, label, around), h("div.entry-body", ...body));
}

function head(entry, name, label, around) {
  return h("header.entry-head", icon(name), h("span.entry-label", label),
    entry.model && h("span.muted.model", shown(entry.model)),
    FINISHES[entry.finish] && finish(entry.finish), labelBadge(around.label?.(entry)),
    h("span.grow"),
    h("time.muted", { title: whole(entry.at), datetime: new Date(entry.at / 1000).toISOString() }, clock(entry.at)),
    h("a.seq", { href: around.link(entry), title: "Link to this entry" }, `${entry.branch}:${entry.seq}`));
}

function finish(name) {
  const [word, drawn, kind] = FINISHES[name];
  return h("span.badge", { class: `is-${kind}` }, icon(drawn), word);
}

function content(entry, around) {
  const payload = entry.payload ?? {};
  switch (entry.kind) {
    case "message": return [entry.role, ROLES[entry.role] ?? entry.role, message(entry, around)];
    case "compaction": return ["compaction", "Compaction", compaction(entry, around)];
    case "uncompaction": return ["undo", `Compaction ${payload.cancels} undone`,
      [h("p.muted", "The model sees the entries again that it had replaced.")]];
    case "branch_summary": return ["fork", "Branch summary",
      [h("p.muted", `What the branch left at ${payload.leaf_seq} had found:`), markdown(payload.summary ?? "")]];
    case "settings": return ["settings", "Settings from here on", settings(payload)];
    case "note": return ["note", "Note of the host", [json(payload.state ? payload : payload.data, { open: 1 })]];
    default: return ["note", entry.kind, [json(payload, { open: 1 })]];
  }
}

// -- messages ---------------------------------------------------------------------------------

function message(entry, around) {
  const results = entry.role === "assistant" ? around.path.results(entry) : new Map();
  let index = 0;
  const body = (entry.payload?.parts ?? []).map((part) => {
    switch (part.type) {
      case "text": return text(part, entry, around);
      case "reasoning": return reasoning(part);
      case "media": return media(part);
      case "tool_call": return call(part, index++, entry, results.get(part.id), around);
      case "tool_result": return lone(part, entry, around);
      default: return json(part, { open: 1 });
    }
  });
  return body.length ? body : [h("p.muted", entry.role === "assistant" ? "Nothing was said." : "Empty.")];
}

function text(part, entry, around) {
  const said = entry.role === "tool" ? h("pre.code", shown(part.text)) : markdown(part.text);
  if (part.cut) said.append(more(part.cut, entry, around));
  if (entry.role !== "system" || part.text.length < LONG_SYSTEM) return said;
  return h("details.fold", h("summary", firstLine(part.text, 120),
    h("span.muted", ` ${count(part.text.length + (part.cut ?? 0))} characters`)), said);
}

function more(cut, entry, around) {
  return h("button.quiet.show-all", { type: "button", onclick: () => around.showAll(entry) },
    `Show all: ${cut.toLocaleString("en")} more characters`);
}

function reasoning(part) {
  return h("details.fold.reasoning",
    h("summary", icon("reasoning"), "Reasoning", h("span.muted", ` ${firstLine(part.text, 90)}`)), markdown(part.text));
}

function call(part, index, entry, found, around) {
  const name = `${entry.branch}:${entry.seq}:${index}`;
  const waiting = around.openCall(entry, index);
  return card({
    call: part, result: found?.result, waiting: found ? null : waiting, state: around.cardState(name),
    changed: (state) => around.setCard(name, state, entry),
    approve: around.approve, isCut: (part.cut ?? 0) + (found?.result.cut ?? 0),
    showAll: () => around.showAll(part.cut ? entry : found.entry, entry),
  });
}

/** A result whose call lies in a part that was not loaded. */
function lone(part, entry, around) {
  const name = `${entry.branch}:${entry.seq}:${part.call_id}`;
  return card({
    call: { id: part.call_id, name: "result of", arguments: part.call_id }, result: part, state: around.cardState(name),
    changed: (state) => around.setCard(name, state, entry), isCut: part.cut ?? 0, showAll: () => around.showAll(entry),
  });
}

// -- the other kinds --------------------------------------------------------------------------

function compaction(entry, around) {
  const { summary = "", first_kept: kept, tokens_before: tokens } = entry.payload;
  const replaced = h("div.replaced");
  const fold = h("details.fold", h("summary", `What it replaced: entries up to ${kept - 1}`), replaced);
  fold.addEventListener("toggle",
    () => { if (fold.open && !replaced.hasChildNodes()) lines(replaced, entry, kept, 1, around); });
  return [
    h("p.muted", `The model now sees this in place of ${count(tokens)} tokens:`),
    markdown(summary), fold,
    around.canChange && h("div.row-actions", button("undo", "Undo this compaction", () => around.uncompact(entry))),
  ];
}

async function lines(box, entry, kept, first, around) {
  const last = Math.min(kept - 1, first + 99);
  try {
    const leaf = `${entry.branch}:${entry.seq}`;
    const told = await ask(sessionPath(around.path.id, "/outline"), { leaf, first, last });
    box.append(...told.lines.map((line) => h("a.line", { href: around.link(line) },
      h("span.seq", line.seq), h("span.muted", line.role ?? line.kind), h("span.line-text", shown(line.line)))));
    if (last >= kept - 1) return;
    const next = h("button.quiet",
      { type: "button", onclick: () => { next.remove(); lines(box, entry, kept, last + 1, around); } },
      many(kept - 1 - last, "more entry", "more entries"));
    box.append(next);
  } catch (problem) {
    box.append(h("p.said-bad", problem.message));
  }
}

function settings(payload) {
  const rows = Object.entries(payload).filter(([, value]) => value !== null && value !== undefined);
  return [h("dl.facts", rows.flatMap(([name, value]) => [h("dt", name.replace("_", " ")),
    h("dd", typeof value === "string" ? markdown(value) : Array.isArray(value) ? value.map(shown)
      .join(", ") : json(value))]))];
}

/** An answer in flight. */
export function draftRow(draft, words) {
  const isSaying = draft && (draft.text || draft.reasoning);
  return h(isSaying || words ? "article.draft.is-live" : "div.draft",
    isSaying || words ? { "aria-label": "Answer in flight" } : {},
    isSaying && h("header.entry-head", icon("assistant"), h("span.entry-label", "Assistant"),
      h("span.badge.is-running", h("span.pulse"), "answering")),
    isSaying && draft.reasoning && h("details.fold.reasoning", { open: !draft.text },
      h("summary", icon("reasoning"), "Reasoning"), markdown(draft.reasoning)),
    isSaying && draft.text && h("div.entry-body", markdown(draft.text)),
    words && h("p.muted.next-action", words));
}

export function hasCalls(entry) {
  return partsOf(entry, "tool_call").length + partsOf(entry, "tool_result").length > 0;
}
