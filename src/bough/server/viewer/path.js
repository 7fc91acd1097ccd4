// The entries of one path, as far as they were asked for: windows of it, loaded where somebody looks.
// Knows which calls and results belong together. Does not know the page.

import { ask, sessionPath } from "./api.js";

const WINDOW = 60, MOST_KEPT = 4000;

export class Path {
  #known = new Map(); // seq → entry, or null for one that is not shown here

  /** leaf: branch:seq, or null for where the session stands. */
  constructor(id, leaf, isPublic) {
    this.id = id;
    this.asked = leaf;
    this.isPublic = isPublic;
    this.of = 0;
    this.leaf = leaf;
  }

  entry(seq) { return this.#known.get(seq) ?? undefined; }
  isKnown(seq) { return this.#known.has(seq); }

  /** One window: {newest: true}, {around: seq}, {first: seq} or {last: seq}. What it covers comes back. */
  async load(where) {
    const leaf = this.asked ?? (this.of ? this.leaf : null);
    const told = await ask(sessionPath(this.id, "/path"), { leaf, limit: WINDOW, public: this.isPublic || null, ...where });
    if (!this.of) { this.of = told.of; this.leaf = told.leaf; }
    for (let seq = told.first; seq <= told.last; seq++) this.#known.set(seq, null);
    for (const entry of told.entries) this.#known.set(entry.seq, whole(entry, told.leaf));
    this.#forget(told.first, told.last);
    return [told.first, told.last];
  }

  /** A new entry at the end; false if it does not follow what is here. */
  push(entry) {
    if (entry.seq !== this.of + 1) return false;
    const told = whole(entry, this.leaf);
    this.of = entry.seq;
    this.leaf = `${told.branch}:${entry.seq}`;
    this.#known.set(entry.seq, this.isPublic && entry.internal ? null : told);
    return true;
  }

  replace(entry) { this.#known.set(entry.seq, entry); }

  /** The first seq in a range that was not asked for yet. */
  missing(first, last) {
    for (let seq = Math.max(1, first); seq <= Math.min(last, this.of); seq++) if (!this.#known.has(seq)) return seq;
    return null;
  }

  lastMissing(first, last) {
    for (let seq = Math.min(last, this.of); seq >= Math.max(1, first); seq--) if (!this.#known.has(seq)) return seq;
    return null;
  }

  /** The results of an answer's calls, by the id of the call: {result, entry}. */
  results(answer) {
    const found = new Map();
    for (let seq = answer.seq + 1; seq <= this.of; seq++) {
      const entry = this.#known.get(seq);
      if (entry === undefined) break;
      if (entry === null || entry.kind !== "message") continue;
      if (entry.role !== "tool") break;
      for (const result of partsOf(entry, "tool_result")) if (!found.has(result.call_id)) found.set(result.call_id,
        { result, entry });
    }
    return found;
  }

  /** The answer that made the calls whose results this entry holds; undefined if it was not loaded. */
  answerOf(entry) {
    const ids = partsOf(entry, "tool_result").map((part) => part.call_id);
    for (let seq = entry.seq - 1; seq > 0; seq--) {
      const before = this.#known.get(seq);
      if (before === undefined) return undefined;
      if (before === null || before.kind !== "message" || before.role === "tool") continue;
      const calls = partsOf(before, "tool_call").map((part) => part.id);
      return ids.every((id) => calls.includes(id)) ? before : undefined;
    }
    return undefined;
  }

  /** What lies far from the newest window goes first; it can be asked for again. */
  #forget(first, last) {
    if (this.#known.size <= MOST_KEPT) return;
    const middle = (first + last) / 2;
    const far = [...this.#known.keys()].sort((a, b) => Math.abs(b - middle) - Math.abs(a - middle));
    for (const seq of far.slice(0, this.#known.size - MOST_KEPT / 2)) this.#known.delete(seq);
  }
}

export function partsOf(entry, type) {
  return (entry.payload?.parts ?? []).filter((part) => part.type === type);
}

/** A client is told less of an entry; it is shown as the message it is. */
function whole(entry, leaf) {
  if (entry.payload) return entry;
  const parts = [{ type: "text", text: entry.text ?? "", ...(entry.cut ? { cut: entry.cut } : {}) }];
  return { branch: Number(String(leaf).split(":")[0]), turn: 0, step: 0, kind: "message", internal: false,
    payload: { role: entry.role, parts }, ...entry };
}
