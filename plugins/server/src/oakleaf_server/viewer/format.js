// Formats money, tokens, times, positions and untrusted text.
// Pure functions without DOM or server access.

/** From units of 10⁻⁸ dollars. Small amounts keep enough digits to be distinguishable. */
export function money(microcents) {
  if (microcents === null || microcents === undefined) return "–";
  const dollars = microcents / 1e8;
  if (dollars === 0) return "$0";
  if (dollars < 0.00001) return "<$0.00001";
  if (dollars < 0.01) return `$${dollars.toFixed(5).replace(/0+$/, "")}`;
  return `$${dollars.toFixed(dollars < 1 ? 3 : 2)}`;
}

export function cost(totals) {
  if (!totals) return "–";
  const text = money(totals.cost_microcents);
  return totals.unpriced_calls ? (totals.cost_microcents ? `${text}+` : "unpriced") : text;
}

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10000) return number.toLocaleString("en");
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

/** One of the token sums. Calls that reported none are unknown, not zero: some make the sum a lower bound. */
export function tokens(totals, key) {
  if (!totals) return "–";
  if (totals.calls && totals.unknown_calls === totals.calls) return "unknown";
  return `${count(totals[key] ?? 0)}${totals.unknown_calls ? "+" : ""}`;
}

export function plural(number, singular, pluralForm = `${singular}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? singular : pluralForm}`;
}

/** An error's text, which begins with a small letter at the command line. A command stays as it is typed. */
export function sentence(text) { return text && !text.startsWith("oakleaf ") ? text[0].toUpperCase() + text.slice(1) : text; }

/** A number of sessions, of which the server counts 1,000 at most. */
export function sessionCount(number) { return number >= 1000 ? "1,000+" : String(number); }

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** Time since a timestamp in microseconds. */
export function ago(at, now = Date.now()) {
  const seconds = Math.max(0, now - at / 1000) / 1000;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(at / 1000).toISOString().slice(0, 10);
}

/** A length of time given in microseconds. */
export function duration(micros) {
  const seconds = micros / 1e6;
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** The day of a timestamp: Today, Yesterday, a weekday of the last week, or a date. */
export function dayName(at, now = Date.now()) {
  const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
  const days = Math.round((midnight(now) - midnight(at / 1000)) / 864e5), when = new Date(at / 1000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return when.toLocaleDateString("en", { weekday: "long" });
  const isThisYear = when.getFullYear() === new Date(now).getFullYear();
  return when.toLocaleDateString("en", { day: "numeric", month: "long", ...(isThisYear ? {} : { year: "numeric" }) });
}

export function timeOfDay(at) {
  const when = new Date(at / 1000);
  return Number.isNaN(when.getTime()) ? "–" : when.toLocaleTimeString([],
    { hour: "2-digit", minute: "2-digit", hour12: false });
}

export function timestamp(at) {
  const when = new Date(at / 1000);
  return Number.isNaN(when.getTime()) ? "–" : when.toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC");
}

const PICTURES = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Text with control and bidirectional characters made visible, so that it cannot mislead. */
export function printable(text) {
  return String(text).replace(/\r\n/g, "\n").replace(PICTURES, (character) => {
    const code = character.charCodeAt(0);
    const digits = code.toString(16);
    return code < 0x100 ? `\\x${digits.padStart(2, "0")}` : `‹U+${digits.toUpperCase().padStart(4, "0")}›`;
  });
}

export function firstLine(text, limit = 160) {
  const line = printable(String(text).slice(0, limit * 4)).trim().split("\n", 1)[0];
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

/** "step 3 of the turn from entry 207"; null before the first turn. */
export function turnText({ turn, step }) {
  if (!turn) return null;
  return step ? `step ${step} of the turn from entry ${turn}` : `its input is entry ${turn}`;
}

/** A model's name for people, without its provider, endpoint and date; the whole name belongs into a title. */
export function modelName(name) {
  return printable(name).replace(/^[\w-]+:/u, "").replace(/@.*$/u, "").replace(/^.*\//u, "").replace(/-\d{4}-?\d{2}-?\d{2}$/u, "") || printable(name);
}

export function formatPosition(leaf) {
  return typeof leaf === "string" ? leaf : `${leaf.branch}:${leaf.seq}`;
}

export function parsePosition(text) {
  const [branch, seq] = String(text).split(":").map(Number);
  return { branch, seq };
}

/** A value as one line of JSON. */
export function compactJson(value, limit = 200) {
  let text;
  try { text = typeof value === "string" ? value : JSON.stringify(value); } catch { text = String(value); }
  return firstLine(text ?? "", limit);
}

/** Label and icon for each outcome of a tool call; the CSS class of the same name sets its colour. */
export const OUTCOMES = {
  done: ["done", "check"],
  error: ["error", "error"],
  unknown: ["outcome unknown", "unknown"],
  denied: ["denied", "denied"],
  interrupted: ["interrupted", "interrupted"],
  dry_run: ["dry run", "dry_run"],
  not_recorded: ["not recorded", "not_recorded"],
  waits_for_approval: ["needs approval", "wait"],
  waits_for_task: ["task needs approval", "wait"],
  task_in_trash: ["task is in the trash", "wait"],
  task_decided: ["task decided", "check"],
  approved: ["approved", "check"],
  not_accepted: ["left open elsewhere", "wait"],
  not_started: ["not started", "wait"],
  no_start_recorded: ["no start recorded", "wait"],
  running: ["running", "wait"],
  pending: ["no result", "wait"],
};
