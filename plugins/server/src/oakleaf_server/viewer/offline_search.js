// Search within a copy: words, "phrases", -without, role: tool: kind:, by scanning every text.

import { parts, text } from "./entry_lines.js";

const AROUND = 60, FILTERS = ["role", "tool", "kind"];

/** {words, without, filters}, or an error message for an unsupported filter. */
export function parseQuery(query) {
  const matches = { words: [], without: [], filters: {} };
  for (const [, minus, name, quoted, plain] of query.matchAll(/(-?)(?:(\w+):)?(?:"([^"]*)"|(\S+))/gu)) {
    const content = (quoted ?? plain).toLowerCase();
    if (name && !FILTERS.includes(name)) return `this copy supports words and ${FILTERS.map((one) => `${one}:`).join(" ")}, not ${name}:`;
    if (name) matches.filters[name] = content;
    else (minus ? matches.without : matches.words).push(quoted === undefined ? content.replace(/\*$/, "") : content);
  }
  return matches;
}

/** The searchable text of an entry, and the tools it calls. */
function searchableText(entry) {
  const calls = parts(entry, "tool_call"), results = parts(entry, "tool_result");
  const content = [
    text(entry), entry.payload.summary ?? "", ...calls.map((call) => `${call.name} ${call.malformed ?? JSON.stringify(call.arguments)}`),
    ...results.flatMap((result) => (result.content ?? []).map((piece) => piece.text ?? "")),
  ];
  return { content: content.filter(Boolean).join("\n"), tools: calls.map((call) => call.name) };
}

/** The hits in one session, newest first. */
export function hits(session, { words, without, filters }, title) {
  const matches = [], tools = new Map();
  for (const entry of session.entries()) {
    for (const call of parts(entry, "tool_call")) tools.set(call.id, call.name);
    const { content, tools: called } = searchableText(entry), lowered = content.toLowerCase();
    const names = [...called, ...parts(entry, "tool_result").map((result) => tools.get(result.call_id) ?? "")];
    const passesFilters = (!filters.role || entry.role === filters.role) && (!filters.kind || entry.kind === filters.kind) && (!filters.tool || names.some((name) => name.toLowerCase() === filters.tool));
    if (!passesFilters || !words.every((word) => lowered.includes(word)) || without.some((word) => lowered.includes(word))) continue;
    matches.push({
      session_id: session.id, branch: entry.branch, seq: entry.seq, role: entry.role, kind: entry.kind, tool: names[0] ?? null, at: entry.at,
      title, on_path: session.isOnPath(session.row.leaf, entry), ...snippet(content, lowered, words),
    });
  }
  return matches.reverse();
}

/** Text around the first match; marks count characters, not UTF-16 units. */
function snippet(content, lowered, words) {
  const isSame = lowered.length === content.length; // lower-casing changes the length of a few letters
  const first = isSame && words.length ? Math.max(0, lowered.indexOf(words[0])) : 0, from = Math.max(0, first - AROUND);
  const piece = content.slice(from, first + AROUND * 2).replace(/\s/gu, " "), under = piece.toLowerCase();
  const count = (end) => [...piece.slice(0, end)].length;
  const places = isSame ? words.map((word) => [under.indexOf(word), word.length]).filter(([at]) => at >= 0).sort(([a], [b]) => a - b) : [];
  const marks = [];
  for (const [at, length] of places) if (!marks.length || count(at) >= marks.at(-1)[1]) marks.push([count(at), count(at + length)]);
  return { snippet: piece, marks };
}
