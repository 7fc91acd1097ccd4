// A turn over time: one bar per model call and tool call, from the times of its entries.

import { fetchJson, sessionPath } from "./api.js";
import { h } from "./dom.js";
import { cost, duration, money, printable } from "./format.js";
import { partsOf } from "./path.js";

const MOST = 200;

/** The figures of a turn as a fold that opens to its waterfall. summary: a turn of /turns. */
export function turnFigures(id, leaf, summary) {
  const { usage, steps, at, ended_at: ended, tools = [] } = summary;
  const calls = tools.reduce((sum, tool) => sum + tool.calls, 0), errors = tools.reduce((sum, tool) => sum + tool.errors, 0);
  const facts = [ended > at && duration(ended - at), steps > 1 && `${steps} steps`, calls > 0 && `${calls} tool ${calls === 1 ? "call" : "calls"}`,
    usage?.calls > 0 && cost(usage)].filter(Boolean);
  if (!facts.length) return null;
  const box = h("div.waterfall"), fold = h("details.fold.turn-figures", h("summary", h("span.muted", facts.join(" · ")), errors > 0 && h("span.error-text", ` ${errors} failed`)), box);
  fold.addEventListener("toggle", () => { if (fold.open && !box.hasChildNodes()) draw(box, id, leaf, summary); });
  return fold;
}

async function draw(box, id, leaf, { turn, last }) {
  try {
    const end = Math.min(last, turn + MOST - 1);
    const [path, calls] = await Promise.all([fetchJson(sessionPath(id, "/path"), { leaf, first: turn, limit: MOST }), fetchJson(sessionPath(id, "/calls"), { leaf, first: turn, last: end })]);
    const entries = path.entries.filter((entry) => entry.seq <= end && entry.kind === "message"), bars = barsOf(entries, calls.calls);
    const begin = entries[0].at, all = Math.max(1, ...bars.map((bar) => bar.end - begin));
    box.append(...bars.map((bar) => row(bar, begin, all)));
    if (end < last) box.append(h("p.muted", `The first ${MOST} entries of this turn.`));
  } catch (problem) {
    box.append(h("p.error-text", problem.message));
  }
}

/** A model call takes from the entry before the answer to the answer; a tool call from the answer to its result. */
function barsOf(entries, calls) {
  const bars = [], costs = new Map(calls.map((call) => [call.answer_seq, call.cost_microcents])), open = new Map();
  entries.forEach((entry, at) => {
    if (entry.role === "assistant") {
      bars.push({ kind: "model", name: entry.model ?? "model", start: entries[at - 1]?.at ?? entry.at, end: entry.at, note: costs.get(entry.seq) });
      for (const call of partsOf(entry, "tool_call")) open.set(call.id, { name: call.name, start: entry.at });
    }
    for (const result of partsOf(entry, "tool_result")) {
      const call = open.get(result.call_id);
      if (call) bars.push({ kind: result.error ? "error" : "tool", ...call, end: entry.at });
      open.delete(result.call_id);
    }
  });
  return bars;
}

function row({ kind, name, start, end, note }, begin, all) {
  const bar = h(`span.is-${kind}`);
  bar.style.left = `${((start - begin) / all) * 100}%`;
  bar.style.width = `${Math.max(0.4, ((end - start) / all) * 100)}%`;
  return h("div.waterfall-row", h("span.ellipsis", printable(name)), h("span.waterfall-bar", bar), h("span.muted", duration(end - start), note ? ` · ${money(note)}` : ""));
}
