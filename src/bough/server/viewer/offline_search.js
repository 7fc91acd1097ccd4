// Search within a copy: words, "phrases", -without, role: tool: kind:, by looking at every text there is.

import { parts, text } from "./offline_lines.js";

const AROUND = 60, FILTERS = ["role", "tool", "kind"];

/** {words, without, filters}, or a sentence saying what it cannot do. */
export function understood(query) {
  const found = { words: [], without: [], filters: {} };
  for (const [, minus, name, quoted, plain] of query.matchAll(/(-?)(?:(\w+):)?(?:"([^"]*)"|(\S+))/gu)) {
    const said = (quoted ?? plain).toLowerCase();
    if (name && !FILTERS.includes(name)) return `a copy is searched by words and by ${FILTERS.map((one) => `${one}:`).join(" ")}, not by ${name}:`;
    if (name) found.filters[name] = said;
    else (minus ? found.without : found.words).push(quoted === undefined ? said.replace(/\*$/, "") : said);
  }
  return found;
}

/** What of an entry is searched, and the name of the tool it speaks of. */
function searched(entry) {
  const calls = parts(entry, "tool_call"), results = parts(entry, "tool_result");
  const said = [
    text(entry), entry.payload.summary ?? "", ...calls.map((call) => `${call.name} ${call.malformed ?? JSON.stringify(call.arguments)}`),
    ...results.flatMap((result) => (result.content ?? []).map((piece) => piece.text ?? "")),
  ];
  return { said: said.filter(Boolean).join("\n"), tools: calls.map((call) => call.name) };
}

/** The hits in one session, newest first. */
export function hits(session, { words, without, filters }, title) {
  const found = [], tools = new Map();
  for (const entry of session.entries()) {
    for (const call of parts(entry, "tool_call")) tools.set(call.id, call.name);
    const { said, tools: called } = searched(entry), low = said.toLowerCase();
    const names = [...called, ...parts(entry, "tool_result").map((result) => tools.get(result.call_id) ?? "")];
    const isMeant = (!filters.role || entry.role === filters.role) && (!filters.kind || entry.kind === filters.kind) && (!filters.tool || names.some((name) => name.toLowerCase() === filters.tool));
    if (!isMeant || !words.every((word) => low.includes(word)) || without.some((word) => low.includes(word))) continue;
    found.push({
      session_id: session.id, branch: entry.branch, seq: entry.seq, role: entry.role, kind: entry.kind, tool: names[0] ?? null, at: entry.at,
      title, on_path: session.isOnPath(session.row.leaf, entry), ...snippet(said, low, words),
    });
  }
  return found.reverse();
}

/** Some text around the first hit; marks are counted in characters, not in units of UTF-16. */
function snippet(said, low, words) {
  const isSame = low.length === said.length; // a few letters change their length with their case
  const first = isSame && words.length ? Math.max(0, low.indexOf(words[0])) : 0, from = Math.max(0, first - AROUND);
  const piece = said.slice(from, first + AROUND * 2).replace(/\s/gu, " "), under = piece.toLowerCase();
  const count = (end) => [...piece.slice(0, end)].length;
  const places = isSame ? words.map((word) => [under.indexOf(word), word.length]).filter(([at]) => at >= 0).sort(([a], [b]) => a - b) : [];
  const marks = [];
  for (const [at, length] of places) if (!marks.length || count(at) >= marks.at(-1)[1]) marks.push([count(at), count(at + length)]);
  return { snippet: piece, marks };
}
