// The loaded entries of one path. Windows are loaded as they become visible.
// Matches tool calls with their results. Knows nothing about the page.

import { fetchJson, sessionPath } from "./api.js";

const WINDOW = 60, MOST_KEPT = 4000;

export class Path {
  #entries = new Map(); // seq → entry, or null for a hidden entry

  /** leaf: branch:seq, or null for the current leaf. */
  constructor(id, leaf, isPublic) {
    this.id = id;
    this.requestedLeaf = leaf;
    this.isPublic = isPublic;
    this.total = 0;
    this.leaf = leaf;
    this.facts = 0; // the number of the session's facts when its end was read, or less
  }

  entry(seq) { return this.#entries.get(seq) ?? undefined; }
  isLoaded(seq) { return this.#entries.has(seq); }

  /** One window: {newest: true}, {around: seq}, {first: seq} or {last: seq}. Returns the range it covers. */
  async load(range) {
    const leaf = this.requestedLeaf ?? (this.total ? this.leaf : null);
    const reply = await fetchJson(sessionPath(this.id, "/path"), { leaf, limit: WINDOW, public: this.isPublic || null, ...range });
    if (!this.total) { this.total = reply.total; this.leaf = reply.leaf; this.facts = reply.facts; }
    for (let seq = reply.first; seq <= reply.last; seq++) this.#entries.set(seq, null);
    for (const entry of reply.entries) this.#entries.set(entry.seq, withPayload(entry, reply.leaf));
    this.#forget(reply.first, reply.last);
    return [reply.first, reply.last];
  }

  /** The loaded range around a seq. */
  range(seq) {
    let first = seq, last = seq;
    while (this.#entries.has(first - 1)) first--;
    while (this.#entries.has(last + 1)) last++;
    return this.#entries.has(seq) ? [first, last] : [1, 0];
  }

  /** Append an entry; return false if it does not follow the last one. */
  push(entry) {
    if (entry.seq !== this.total + 1) return false;
    const reply = withPayload(entry, this.leaf);
    this.total = entry.seq;
    this.leaf = `${reply.branch}:${entry.seq}`;
    this.#entries.set(entry.seq, this.isPublic && entry.internal ? null : reply);
    return true;
  }

  replace(entry) { this.#entries.set(entry.seq, entry); }

  /** The first seq in a range that is not loaded. */
  missing(first, last) {
    for (let seq = Math.max(1, first); seq <= Math.min(last, this.total); seq++) if (!this.#entries.has(seq)) return seq;
    return null;
  }

  lastMissing(first, last) {
    for (let seq = Math.min(last, this.total); seq >= Math.max(1, first); seq--) if (!this.#entries.has(seq)) return seq;
    return null;
  }

  /** The results of an answer's calls by call id: {result, entry}. */
  results(answer) {
    const results = new Map();
    for (let seq = answer.seq + 1; seq <= this.total; seq++) {
      const entry = this.#entries.get(seq);
      if (entry === undefined) break;
      if (entry === null || entry.kind !== "message") continue;
      if (entry.role !== "tool") break;
      for (const result of partsOf(entry, "tool_result")) if (!results.has(result.call_id)) results.set(result.call_id,
        { result, entry });
    }
    return results;
  }

  /** The answer that made the calls whose results this entry holds; undefined if it is not loaded. */
  answerOf(entry) {
    const ids = partsOf(entry, "tool_result").map((part) => part.call_id);
    for (let seq = entry.seq - 1; seq > 0; seq--) {
      const before = this.#entries.get(seq);
      if (before === undefined) return undefined;
      if (before === null || before.kind !== "message" || before.role === "tool") continue;
      const calls = partsOf(before, "tool_call").map((part) => part.id);
      return ids.every((id) => calls.includes(id)) ? before : undefined;
    }
    return undefined;
  }

  /** Forget the entries farthest from the newest window; they can be loaded again. */
  #forget(first, last) {
    if (this.#entries.size <= MOST_KEPT) return;
    const middle = (first + last) / 2;
    const far = [...this.#entries.keys()].sort((a, b) => Math.abs(b - middle) - Math.abs(a - middle));
    for (const seq of far.slice(0, this.#entries.size - MOST_KEPT / 2)) this.#entries.delete(seq);
  }
}

export function partsOf(entry, type) {
  return (entry.payload?.parts ?? []).filter((part) => part.type === type);
}

/** Clients receive text only; give the entry the payload of a message. */
function withPayload(entry, leaf) {
  if (entry.payload) return entry;
  const parts = [{ type: "text", text: entry.text ?? "", ...(entry.omitted_chars ? { omitted_chars: entry.omitted_chars } : {}) }];
  return { branch: Number(String(leaf).split(":")[0]), turn: 0, step: 0, kind: "message", internal: false,
    payload: { role: entry.role, parts }, ...entry };
}
