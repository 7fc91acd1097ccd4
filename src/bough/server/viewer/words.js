// How values are said: money, tokens, times, places, and text that could mislead the eye.
// Knows units; knows neither the page nor the server.

/** 10⁻⁸ dollars. Small sums keep enough digits to be told apart. */
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
  const said = money(totals.cost_microcents);
  return totals.unpriced_calls ? (totals.cost_microcents ? `${said}+` : "unpriced") : said;
}

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10000) return number.toLocaleString("en");
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

export function many(number, one, more = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : more}`;
}

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** How long ago, from microseconds. */
export function ago(at, now = Date.now()) {
  const seconds = Math.max(0, now - at / 1000) / 1000;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(at / 1000).toISOString().slice(0, 10);
}

export function clock(at) {
  const when = new Date(at / 1000);
  return Number.isNaN(when.getTime()) ? "–" : when.toLocaleTimeString([],
    { hour: "2-digit", minute: "2-digit", hour12: false });
}

export function whole(at) {
  const when = new Date(at / 1000);
  return Number.isNaN(when.getTime()) ? "–" : when.toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC");
}

const PICTURES = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Text with what steers terminals and the direction of writing made visible, so that it cannot mislead. */
export function shown(text) {
  return String(text).replace(/\r\n/g, "\n").replace(PICTURES, (character) => {
    const code = character.charCodeAt(0);
    const digits = code.toString(16);
    return code < 0x100 ? `\\x${digits.padStart(2, "0")}` : `‹U+${digits.toUpperCase().padStart(4, "0")}›`;
  });
}

export function firstLine(text, most = 160) {
  const line = shown(String(text).slice(0, most * 4)).trim().split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

export function place(leaf) {
  return typeof leaf === "string" ? leaf : `${leaf.branch}:${leaf.seq}`;
}

export function parted(text) {
  const [branch, seq] = String(text).split(":").map(Number);
  return { branch, seq };
}

/** A value as one line of JSON. */
export function compact(value, most = 200) {
  let said;
  try { said = typeof value === "string" ? value : JSON.stringify(value); } catch { said = String(value); }
  return firstLine(said ?? "", most);
}

export const STATUSES = {
  idle: ["idle", "at rest"],
  running: ["running", "running now"],
  waiting: ["waiting", "waits for a person"],
  completed: ["completed", "completed"],
  failed: ["failed", "failed"],
  cancelled: ["cancelled", "cancelled"],
  interrupted: ["interrupted", "interrupted"],
};

/** How a call came out: the word, the icon; the colour is the class of the same name. */
export const OUTCOMES = {
  done: ["done", "check"],
  error: ["error", "error"],
  unknown: ["outcome unknown", "unknown"],
  denied: ["denied", "denied"],
  interrupted: ["interrupted", "interrupted"],
  dry_run: ["dry run", "dry_run"],
  not_recorded: ["not recorded", "not_recorded"],
  waits_for_approval: ["waits for approval", "wait"],
  waits_for_task: ["its task waits for approval", "wait"],
  task_in_trash: ["its task is in the trash", "wait"],
  task_decided: ["its task has a word", "check"],
  approved: ["approved", "check"],
  not_started: ["not started", "wait"],
  running: ["running", "wait"],
  pending: ["no result", "wait"],
};
