// One entry as a row of the transcript.
// Knows every kind of entry. Results, card states and actions come from `context`.

import { fetchJson, sessionPath } from "./api.js";
import { card, media } from "./tool_cards.js";
import { button, h, icon } from "./dom.js";
import { jsonTree } from "./json_tree.js";
import { labelBadge } from "./labels.js";
import { markdown } from "./markdown.js";
import { partsOf } from "./path.js";
import { sessionLink } from "./route.js";
import { cost, count, duration, firstLine, modelName, money, plural, printable, timeOfDay, timestamp } from "./format.js";

const ROLES = { user: "User", assistant: "Assistant", system: "System", tool: "Tool result" };
const FINISHES = {
  cancelled: ["cancelled", "denied", "denied"], interrupted: ["interrupted", "interrupted", "interrupted"],
  partial: ["interrupted", "interrupted", "interrupted"],
  error: ["stopped by an error", "error", "error"], 
  ...Object.fromEntries(["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"]
    .map((name) => [name, ["cut off by the token limit", "error", "unknown"]])),
  refusal: ["refused", "denied", "denied"],
};
const LONG_SYSTEM = 600;

/** The row, or null if the entry is shown as part of another row. */
export function entryRow(entry, context) {
  if (entry.role === "tool" && context.path.answerOf(entry)) return null;
  const [name, label, body] = content(entry, context);
  const isInput = entry.turn > 0 && entry.turn === entry.seq;
  return h("article.entry", {
    class: `kind-${entry.kind} role-${entry.role ?? "none"} ${isInput ? "is-input" : ""} ${entry.internal ? "is-internal" : ""}`,
    data: { seq: entry.seq, branch: entry.branch, place: `${entry.branch}:${entry.seq}` },
    tabindex: -1, "aria-posinset": entry.seq, "aria-setsize": context.path.total, "aria-label": `${label}, entry ${entry.seq}`,
  }, head(entry, name, label, context), h("div.entry-body", ...body), (context.tasks?.(entry) ?? []).map(subAgent), (context.failures?.(entry) ?? []).map((failure) => failureNode(failure, context)), isInput && context.turnFigures?.(entry));
}

function head(entry, name, label, context) {
  const position = `${entry.branch}:${entry.seq}`;
  return h("header.entry-head", icon(name), h("span.entry-label", label),
    entry.model && h("span.muted.model", { title: printable(entry.model) }, modelName(entry.model)),
    FINISHES[entry.finish] && finish(entry.finish), labelBadge(context.label?.(entry)),
    h("span.grow"), context.tools && h("span.entry-tools", { role: "group", "aria-label": "Actions" }, context.tools(entry)), figures(entry, context),
    h("time.muted", { title: timestamp(entry.at), datetime: new Date(entry.at / 1000).toISOString() }, timeOfDay(entry.at)),
    h("a.seq", { href: context.link(entry), title: `Entry ${position}` }, entry.step ? `entry ${entry.seq} · step ${entry.step}` : `entry ${entry.seq}`));
}

/** How long the model took, and what the call cost. */
function figures(entry, context) {
  if (entry.role !== "assistant") return null;
  const before = context.path.entry(entry.seq - 1), call = context.call?.(entry);
  const micros = before && before.turn === entry.turn && entry.turn ? entry.at - context.times.startOfModel(before, entry) : 0;
  const facts = [micros >= 50_000 && duration(micros), call && call.cost_microcents !== null && money(call.cost_microcents)].filter(Boolean);
  return facts.length ? h("span.muted.entry-figures", { title: "Duration and cost of this model call" }, facts.join(" · ")) : null;
}

function finish(name) {
  const [label, iconName, kind] = FINISHES[name];
  return h("span.badge", { class: `is-${kind}` }, icon(iconName), label);
}

function content(entry, context) {
  const payload = entry.payload ?? {};
  switch (entry.kind) {
    case "message": return [entry.role, ROLES[entry.role] ?? entry.role, message(entry, context)];
    case "compaction": return ["compaction", "Compaction", compaction(entry, context)];
    case "uncompaction": return ["undo", `Compaction ${payload.cancels} undone`,
      [h("p.muted", "The model sees the replaced entries again.")]];
    case "branch_summary": return ["fork", "Branch summary",
      [h("p.muted", `Summary of the branch left at ${payload.leaf_seq}:`), markdown(payload.summary ?? "")]];
    case "settings": return ["settings", "Settings changed", settings(payload)];
    case "note": return ["note", "Note", [jsonTree(payload.state ? payload : payload.data, { open: 1 })]];
    default: return ["note", entry.kind, [jsonTree(payload, { open: 1 })]];
  }
}

/** A task that a call of this entry started: its session and its cost. */
function subAgent(task) {
  return h("a.sub-agent", { href: sessionLink(task.id) }, icon("task"), h("span.muted", "task"), h("span.ellipsis.grow", { dir: "auto" }, printable(task.heading)),
    h("span.muted", [task.status, task.totals && cost(task.totals)].filter(Boolean).join(" · ")));
}

/** A failed model call, in its place: behind the entry after which it was made. */
function failureNode(failure, context) {
  const { at, why, ended } = failure;
  return h("section.call-failure", { role: "group", "aria-label": "Failed model call" }, icon("error"),
    h("div.grow", h("strong", "The model call failed"), h("p.breaks", printable(why ?? "The provider gave no reason.")),
      h("p.muted", ended ? context.failureTools?.(failure) ?? "The run ended here." : "The model was called again.")),
    h("time.muted", { title: timestamp(at), datetime: new Date(at / 1000).toISOString() }, timeOfDay(at)));
}

// -- messages ---------------------------------------------------------------------------------

function message(entry, context) {
  const results = entry.role === "assistant" ? context.path.results(entry) : new Map();
  let index = 0;
  const body = (entry.payload?.parts ?? []).map((part) => {
    switch (part.type) {
      case "text": return text(part, entry, context);
      case "reasoning": return reasoning(part, entry, context);
      case "media": return media(part);
      case "provider_block": return providerBlock(part, entry, context);
      case "tool_call": return call(part, index++, entry, results.get(part.id), context);
      case "tool_result": return loneResult(part, entry, context);
      default: return jsonTree(part, { open: 1 });
    }
  });
  return body.length ? body : [h("p.muted", entry.role === "assistant" ? "No text." : "Empty.")];
}

function text(part, entry, context) {
  const body = entry.role === "tool" ? h("pre.code", printable(part.text)) : markdown(part.text);
  if (part.omitted_chars) body.append(more(part.omitted_chars, entry, context));
  if (entry.role !== "system" || part.text.length < LONG_SYSTEM) return body;
  return h("details.fold", h("summary", firstLine(part.text, 120),
    h("span.muted", ` ${count(part.text.length + (part.omitted_chars ?? 0))} characters`)), body);
}

function more(cut, entry, context) {
  return h("button.quiet.show-all", { type: "button", onclick: () => context.showAll(entry) },
    `Show all: ${cut.toLocaleString("en")} more characters`);
}

function reasoning(part, entry, context) {
  return h("details.fold.reasoning",
    h("summary", icon("reasoning"), "Reasoning", h("span.muted", ` ${firstLine(part.text, 90)}`)), markdown(part.text),
    part.omitted_chars > 0 && more(part.omitted_chars, entry, context));
}

/** What the provider did itself, such as a search. */
function providerBlock(part, entry, context) {
  const text = part.text ?? "";
  return h("details.fold.provider-block",
    h("summary", part.kind, h("span.muted", ` ${firstLine(text, 90)}`)), h("pre.code", printable(text)),
    part.omitted_chars > 0 && more(part.omitted_chars, entry, context));
}

function call(part, index, entry, match, context) {
  const name = `${entry.branch}:${entry.seq}:${index}`;
  const waiting = context.openCall(entry, index), times = match && context.times.ofTool(entry, index, match);
  return card({
    call: part, result: match?.result, waiting: match ? null : waiting, state: context.cardState(name),
    changed: (state) => context.setCard(name, state, entry),
    since: context.times.startOfTool(entry, index), omitted: (part.omitted_chars ?? 0) + (match?.result.omitted_chars ?? 0),
    micros: times && times.start !== null && match.entry.at - times.start, waited: times?.waited,
    showAll: async () => {
      if (part.omitted_chars) await context.showAll(entry);
      if (match?.result.omitted_chars) await context.showAll(match.entry, entry);
    },
  });
}

/** A result whose call is not loaded. */
function loneResult(part, entry, context) {
  const name = `${entry.branch}:${entry.seq}:${part.call_id}`;
  return card({
    call: { id: part.call_id, name: "result of", arguments: part.call_id }, result: part, state: context.cardState(name),
    changed: (state) => context.setCard(name, state, entry), omitted: part.omitted_chars ?? 0, showAll: () => context.showAll(entry),
  });
}

// -- the other kinds --------------------------------------------------------------------------

function compaction(entry, context) {
  const { summary = "", first_kept: firstKept, tokens_before: tokens, shortened = [] } = entry.payload;
  const results = shortened.length > 0
    && h("p.muted", `The model sees the results at ${shortened.map(([seq]) => seq).join(", ")} shortened.`);
  const undo = context.canUncompact(entry)
    && h("div.row-actions", button("undo", "Undo this compaction", () => context.uncompact(entry)));
  if (!summary) return [results, undo];
  const replaced = h("div.replaced");
  const fold = h("details.fold", h("summary", `Replaced entries 1–${firstKept - 1}`), replaced);
  fold.addEventListener("toggle",
    () => { if (fold.open && !replaced.hasChildNodes()) appendOutline(replaced, entry, firstKept, 1, context); });
  return [
    h("p.muted", `Summary that replaces ${count(tokens)} tokens:`),
    markdown(summary), results, fold, undo,
  ];
}

async function appendOutline(box, entry, firstKept, first, context) {
  const last = Math.min(firstKept - 1, first + 99);
  try {
    const leaf = `${entry.branch}:${entry.seq}`;
    const reply = await fetchJson(sessionPath(context.path.id, "/outline"), { leaf, first, last });
    box.append(...reply.lines.map((line) => h("a.line", { href: context.link(line) },
      h("span.seq", line.seq), h("span.muted", line.role ?? line.kind), h("span.line-text", printable(line.text)))));
    if (last >= firstKept - 1) return;
    const next = h("button.quiet",
      { type: "button", onclick: () => { next.remove(); appendOutline(box, entry, firstKept, last + 1, context); } },
      plural(firstKept - 1 - last, "more entry", "more entries"));
    box.append(next);
  } catch (problem) {
    box.append(h("p.error-text", problem.message));
  }
}

function settings(payload) {
  const { tool_definitions: tools, ...others } = payload;
  const shown = tools ? { ...others, tools_given: tools.names } : others;
  const rows = Object.entries(shown).filter(([, value]) => value !== null && value !== undefined);
  return [h("dl.facts", rows.flatMap(([name, value]) => [h("dt", name.replace("_", " ")),
    h("dd", typeof value === "string" ? markdown(value) : Array.isArray(value) ? value.map(printable)
      .join(", ") || "none" : jsonTree(value))]))];
}

/** The answer in progress. */
export function draftRow(draft, status) {
  const hasDraft = draft && (draft.text || draft.reasoning);
  return h(hasDraft || status ? "article.draft.is-live" : "div.draft",
    hasDraft || status ? { "aria-label": "Answer in progress" } : {},
    hasDraft && h("header.entry-head", icon("assistant"), h("span.entry-label", "Assistant"),
      h("span.badge.is-running", h("span.pulse"), "answering")),
    hasDraft && draft.reasoning && h("details.fold.reasoning", { open: !draft.text },
      h("summary", icon("reasoning"), "Reasoning"), markdown(draft.reasoning)),
    hasDraft && draft.text && h("div.entry-body", markdown(draft.text)),
    status && h("p.muted.next-action", status));
}

export function hasCalls(entry) {
  return partsOf(entry, "tool_call").length + partsOf(entry, "tool_result").length > 0;
}
