// An entry in fewer words: as one line with its marks, or with its long strings ended early.
// Says them as the server does, so that a copy looks like what it was made of.

const LINE = 200, STRING = 4000, ROOM = 16000, LEAST = 1000, WHOLE = 900_000;
const FINISHES = { cancelled: "cancelled", interrupted: "interrupted", error: "error", length: "cut_off" };

export function parts(entry, type) {
  return entry.kind === "message" ? (entry.payload.parts ?? []).filter((part) => part.type === type) : [];
}

/** What a message says in plain text. */
export function text(entry) {
  return parts(entry, "text").map((part) => part.text).join("");
}

export function oneLine(said) {
  const line = said.slice(0, LINE * 4).trim().split(/\s+/u).join(" ");
  return line.length > LINE ? `${line.slice(0, LINE - 1)}…` : line;
}

export function isInput(entry) { return entry.turn > 0 && entry.turn === entry.seq; }

export function lineOf(entry) {
  const { branch, seq, turn, step, kind, role, internal, at } = entry;
  return { branch, seq, turn, step, kind, role, line: oneLine(described(entry)), marks: marks(entry), internal, at };
}

function described({ kind, payload }) {
  switch (kind) {
    case "message": return (payload.parts ?? []).slice(0, 20).map(part).filter(Boolean).join(" ");
    case "compaction": return `summary of all before ${payload.first_kept}: ${payload.summary}`;
    case "uncompaction": return `cancels the compaction at ${payload.cancels}`;
    case "branch_summary": return `left a branch at ${payload.leaf_seq}: ${payload.summary}`;
    default: return JSON.stringify(payload);
  }
}

function part(one) {
  switch (one.type) {
    case "text": return one.text.slice(0, LINE * 2);
    case "reasoning": return "";
    case "tool_call": return `→ ${one.name}(${Object.entries(one.arguments ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`;
    case "tool_result": return `← ${one.outcome ? `[${one.outcome}] ` : ""}${(one.content ?? []).slice(0, 5).map(part).join(" ")}`;
    default: return `[${one.mime ?? "?"}]`;
  }
}

function marks(entry) {
  const results = parts(entry, "tool_result"), found = [];
  if (isInput(entry)) found.push("input");
  if (parts(entry, "tool_call").length) found.push("calls");
  if (results.length) found.push("result");
  for (const result of results) if (result.outcome ?? (result.error && "error")) found.push(result.outcome ?? "error");
  if (FINISHES[entry.finish]) found.push(FINISHES[entry.finish]);
  if (parts(entry, "reasoning").length) found.push("reasoning");
  if (mediaOf(entry).length) found.push("media");
  return [...new Set(found)];
}

/** The handles an entry names, those in results too. */
export function mediaOf(entry) {
  return [...parts(entry, "media"), ...parts(entry, "tool_result").flatMap((result) => (result.content ?? []).filter((piece) => piece.type === "media"))];
}

// -- cutting ----------------------------------------------------------------------------------

/** Cuts one value; `left` tells how many characters were left out. */
class Scissors {
  constructor(string, room) {
    this.string = string;
    this.room = room;
    this.left = 0;
  }

  cut(value) {
    if (typeof value === "string") return this.#text(value);
    if (Array.isArray(value)) return this.#many(value.entries()).map(([, item]) => item);
    if (value && typeof value === "object") return Object.fromEntries(this.#many(Object.entries(value)));
    this.room -= 8;
    return value;
  }

  #text(said) {
    const kept = Math.max(0, Math.min(said.length, this.string, this.room));
    this.room -= kept;
    this.left += said.length - kept;
    return kept === said.length ? said : said.slice(0, kept);
  }

  #many(items) {
    const found = [];
    for (const [name, value] of items) {
      if (this.room <= 0 && found.length) { this.left += JSON.stringify(value).length; continue; }
      this.room -= 4 + String(name).length;
      found.push([name, this.cut(value)]);
    }
    return found;
  }
}

/** As a window of a path tells an entry. */
export function shortened(entry) { return cut(entry, STRING, ROOM); }

/** As much of one entry as a page can show at once. */
export function nearlyWhole(entry) { return cut(entry, WHOLE, WHOLE); }

function cut(entry, string, room) {
  const { parts: all, ...rest } = entry.payload, scissors = new Scissors(string, room);
  const payload = scissors.cut(rest);
  let left = scissors.left;
  if (Array.isArray(all)) {
    payload.parts = all.map((one) => {
      const own = new Scissors(string, Math.max(room, LEAST)), begun = own.room;
      const shorter = own.cut(one);
      room -= begun - own.room;
      left += own.left;
      return own.left ? { ...shorter, cut: own.left } : shorter;
    });
  }
  return left ? { ...entry, payload, cut: left } : entry;
}
