// Short forms of an entry: one line with flags, or with long strings truncated.
// They match the server's: a copy looks like the original, and a live entry needs no request.

const LINE = 200, STRING = 4000, ROOM = 16000, MIN_ROOM = 1000, FULL = 900_000;
const FINISHES = { cancelled: "cancelled", interrupted: "interrupted", partial: "interrupted", error: "error",
  ...Object.fromEntries(["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"].map((name) => [name, "cut_off"])) };

const FAILURES = ["error", "unknown", "interrupted", "cut_off"];

export function parts(entry, type) {
  return entry.kind === "message" ? (entry.payload.parts ?? []).filter((part) => part.type === type) : [];
}

/** The plain text of a message. */
export function text(entry) {
  return parts(entry, "text").map((part) => part.text).join("");
}

export function oneLine(value) {
  const line = value.slice(0, LINE * 4).trim().split(/\s+/u).join(" ");
  return line.length > LINE ? `${line.slice(0, LINE - 1)}…` : line;
}

export function isInput(entry) { return entry.turn > 0 && entry.turn === entry.seq; }

export function outlineLine(entry) {
  const { branch, seq, turn, step, kind, role, internal, at } = entry;
  return { branch, seq, turn, step, kind, role, text: oneLine(describe(entry)), flags: flags(entry), internal, at };
}

function describe({ kind, payload }) {
  switch (kind) {
    case "message": return (payload.parts ?? []).slice(0, 20).map(part).filter(Boolean).join(" ");
    case "compaction": return !payload.summary
      ? `results shortened at ${(payload.shortened ?? []).map(([seq]) => seq).join(", ")}`
      : `summary of all before ${payload.first_kept}: ${payload.summary}`;
    case "uncompaction": return `cancels the compaction at ${payload.cancels}`;
    case "branch_summary": return `left a branch at ${payload.leaf_seq}: ${payload.summary}`;
    case "settings": return settingsWords(payload).join(" · ");
    default: return JSON.stringify(payload);
  }
}

/** A phrase for each setting that is set. */
function settingsWords(set) {
  const all = (values) => Object.entries(values ?? {}), isSet = (value) => value !== undefined && value !== null;
  const phrases = [];
  if (isSet(set.model)) phrases.push(`model ${set.model}`);
  for (const [name, value] of all(set.options)) phrases.push(value === null ? `no ${name}` : `${name} ${words(value)}`);
  if (isSet(set.tools)) phrases.push(set.tools.length ? `only the tools ${set.tools.join(", ")}` : "none of the tools");
  if (isSet(set.tool_definitions)) phrases.push(`tools: ${set.tool_definitions.names.join(", ") || "none"}`);
  if (isSet(set.limits)) phrases.push(`limits: ${words(set.limits) || "none"}`);
  if (isSet(set.max_messages)) phrases.push(set.max_messages ? `at most ${set.max_messages} messages` : "all messages");
  if (isSet(set.effects)) phrases.push(`effects ${set.effects}`);
  for (const [name, window] of all(set.windows)) phrases.push(`${name} has a window of ${window.toLocaleString("en")} tokens`);
  for (const [name, endpoint] of all(set.endpoints)) phrases.push(`${name} is served by ${endpoint.host || "the vendor"}`);
  if (isSet(set.prompt)) phrases.push(`prompt: ${set.prompt}`);
  if (isSet(set.prompt_patch)) phrases.push(`prompt, added: ${set.prompt_patch}`);
  return phrases;
}

/** A JSON value as words: the names and values in it, without quotes and brackets. */
function words(value) {
  if (Array.isArray(value)) return value.map(words).join(", ");
  if (value && typeof value === "object") return Object.entries(value).filter(([, item]) => item !== null).map(([name, item]) => `${name} ${words(item)}`).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function part(one) {
  switch (one.type) {
    case "text": return one.text.slice(0, LINE * 2);
    case "reasoning": return "";
    case "provider_block": return `[${one.text || one.kind}]`;
    case "tool_call": return `→ ${one.name}(${Object.entries(one.arguments ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`;
    case "tool_result": return `← ${one.outcome ? `[${one.outcome}] ` : ""}${(one.content ?? []).slice(0, 5).map(part).join(" ")}`;
    default: return `[${one.mime ?? "?"}]`;
  }
}

/** The failures of an entry: of tool calls, and of the answer itself. */
export function failures(entry) {
  return [...parts(entry, "tool_result").map(outcomeOf), FINISHES[entry.finish]].filter((outcome) => FAILURES.includes(outcome));
}

function outcomeOf(result) {
  return result.outcome && result.outcome !== "done" ? result.outcome : result.error ? "error" : "done";
}

/** Whether an entry is a line of an outline. */
export function isListed(entry, kinds) {
  if (kinds === "inputs") return isInput(entry);
  if (kinds === "errors") return failures(entry).length > 0;
  return kinds === "all" || ((entry.role === "user" || entry.role === "assistant") && text(entry).trim() !== "");
}

function flags(entry) {
  const results = parts(entry, "tool_result").map(outcomeOf), items = [];
  if (isInput(entry)) items.push("input");
  if (parts(entry, "tool_call").length) items.push("calls");
  if (results.length) items.push("result");
  for (const outcome of results) if (outcome !== "done") items.push(outcome);
  if (FINISHES[entry.finish]) items.push(FINISHES[entry.finish]);
  if (parts(entry, "reasoning").length) items.push("reasoning");
  if (mediaOf(entry).length) items.push("media");
  return [...new Set(items)];
}

/** The media of an entry, including those in tool results. */
export function mediaOf(entry) {
  return [...parts(entry, "media"), ...parts(entry, "tool_result").flatMap((result) => (result.content ?? []).filter((piece) => piece.type === "media"))];
}

// -- truncating -------------------------------------------------------------------------------

/** Truncates one value; `omitted` counts the characters left out. */
class Truncator {
  constructor(string, room) {
    this.string = string;
    this.room = room;
    this.omitted = 0;
  }

  truncate(value) {
    if (typeof value === "string") return this.#text(value);
    if (Array.isArray(value)) return this.#items(value.entries()).map(([, item]) => item);
    if (value && typeof value === "object") return Object.fromEntries(this.#items(Object.entries(value)));
    this.room -= 8;
    return value;
  }

  #text(value) {
    const length = Math.max(0, Math.min(value.length, this.string, this.room));
    this.room -= length;
    this.omitted += value.length - length;
    return length === value.length ? value : value.slice(0, length);
  }

  #items(items) {
    const kept = [];
    for (const [name, value] of items) {
      if (this.room <= 0 && kept.length) { this.omitted += JSON.stringify(value).length; continue; }
      this.room -= 4 + String(name).length;
      kept.push([name, this.truncate(value)]);
    }
    return kept;
  }
}

/** An entry as in a window of a path. */
export function truncateEntry(entry) { return truncated(entry, STRING, ROOM); }

/** An entry with as much content as one response may contain. */
export function fullEntry(entry) { return truncated(entry, FULL, FULL); }

function truncated(entry, string, room) {
  const { parts: all, ...rest } = entry.payload, truncator = new Truncator(string, room);
  const payload = truncator.truncate(rest);
  let omitted = truncator.omitted;
  if (Array.isArray(all)) {
    payload.parts = all.map((one) => {
      const own = new Truncator(string, Math.max(room, MIN_ROOM)), begun = own.room;
      const shorter = own.truncate(one);
      room -= begun - own.room;
      omitted += own.omitted;
      return own.omitted ? { ...shorter, omitted_chars: own.omitted } : shorter;
    });
  }
  return omitted ? { ...entry, payload, omitted_chars: omitted } : entry;
}
