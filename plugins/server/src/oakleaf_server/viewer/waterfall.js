// A turn over time: one bar per model call and tool call. The time in which all of it waited for a person is told, not drawn.

import { fetchJson, sessionPath } from "./api.js";
import { h } from "./dom.js";
import { cost, duration, money, plural, printable } from "./format.js";
import { partsOf } from "./path.js";

const MOST = 200;

/** The figures of a turn as a fold that opens to its waterfall. summary: a turn of /turns; times: a CallTimes. */
export function turnFigures(id, leaf, summary, times) {
  const { usage, steps, at, ended_at: ended, tools = [], errors = 0 } = summary;
  const sum = (name) => tools.reduce((so_far, tool) => so_far + tool[name], 0), calls = sum("calls"), denied = sum("denied");
  const waited = times.idle(at, ended);
  const facts = [ended > at && duration(ended - at - waited), waited > 0 && `waited ${duration(waited)}`, steps > 1 && `${steps} steps`,
    calls > 0 && `${calls} tool ${calls === 1 ? "call" : "calls"}`, denied > 0 && `${denied} denied`, usage?.calls > 0 && cost(usage)].filter(Boolean);
  if (!facts.length && !errors) return null;
  const box = h("div.waterfall"), fold = h("details.fold.turn-figures", h("summary", h("span.muted", facts.join(" · ")), errors > 0 && h("span.error-text", ` ${plural(errors, "error")}`)), box);
  fold.addEventListener("toggle", () => { if (fold.open && !box.hasChildNodes()) draw(box, id, leaf, summary, times); });
  return fold;
}

async function draw(box, id, leaf, { turn, last }, times) {
  try {
    const end = Math.min(last, turn + MOST - 1);
    const [path, { calls, facts }] = await Promise.all([fetchJson(sessionPath(id, "/path"), { leaf, first: turn, limit: MOST }), fetchJson(sessionPath(id, "/calls"), { leaf, first: turn, last: end })]);
    times.add(facts);
    const entries = path.entries.filter((entry) => entry.seq <= end && entry.kind === "message"), bars = barsOf(entries, calls, times);
    const elapsed = (at) => at - entries[0].at - times.idle(entries[0].at, at), all = Math.max(1, ...bars.map((bar) => elapsed(bar.end)));
    box.append(...bars.map((bar) => row(bar, elapsed, all)));
    if (end < last) box.append(h("p.muted", `The first ${MOST} entries of this turn.`));
  } catch (problem) {
    box.append(h("p.error-text", problem.message));
  }
}

/** A model call takes from the entry before the answer to the answer; a tool call from its start to its result. */
function barsOf(entries, calls, times) {
  const bars = [], costs = new Map(calls.map((call) => [call.answer_seq, call.cost_microcents])), open = new Map();
  entries.forEach((entry, at) => {
    if (entry.role === "assistant") {
      const start = at ? times.startOfModel(entries[at - 1], entry) : entry.at;
      bars.push({ kind: "model", name: entry.model ?? "model", start, end: entry.at, note: costs.get(entry.seq) && money(costs.get(entry.seq)) });
      partsOf(entry, "tool_call").forEach((call, index) => open.set(call.id, { call, index, answer: entry }));
    }
    for (const result of partsOf(entry, "tool_result")) {
      if (!open.has(result.call_id)) continue;
      const { call, index, answer } = open.get(result.call_id), { start, waited } = times.ofTool(answer, index, { result, entry });
      bars.push({ kind: result.error ? "error" : "tool", name: call.name, start, end: entry.at, note: waited > 0 && `waited ${duration(waited)}` });
      open.delete(result.call_id);
    }
  });
  return bars;
}

/** A call without a start was denied. */
function row({ kind, name, start, end, note }, elapsed, all) {
  const bar = h(`span.is-${kind}`), isDenied = start === null;
  bar.style.left = `${(elapsed(start ?? end) / all) * 100}%`;
  bar.style.width = `${Math.max(0.4, ((end - start) / all) * 100)}%`;
  const words = [isDenied ? "denied" : duration(end - start), note].filter(Boolean).join(" · ");
  return h("div.waterfall-row", h("span.ellipsis", printable(name)), h("span.waterfall-bar", !isDenied && bar), h("span.muted", words));
}
