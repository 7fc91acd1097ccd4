// What everything cost: by day, by model, by agent; and what all sessions take on disk.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { bars, columns } from "./plots.js";
import { go, route, sessionLink, to } from "./route.js";
import { bytes, cost, count, many, money, shown } from "./words.js";

const SINCE = [["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"], ["", "All"]];
const DAY = 864e5, MOST_DAYS = 365, LARGEST = 25, ROWS = 200;
const HELD = ["entries", "bytes", "branches", "blobs", "blob_bytes"];

export class UsagePage {
  #isClosed = false;

  constructor() {
    this.element = h("main.page.usage-page", { id: "main", tabindex: -1, "aria-label": "Usage" });
  }

  close() { this.#isClosed = true; }

  async open() {
    const since = route.now.query.since ?? "30d";
    const told = await ask("/usage", { since: since === "all" ? null : since });
    const isPriced = told.total.cost_microcents > 0;
    const measure = isPriced ? (totals) => totals.cost_microcents : (totals) => totals.input_tokens + totals.output_tokens;
    const say = isPriced ? money : count;
    const stored = h("section", h("h2", "Storage"), h("p.muted", { role: "status" }, "Counting…"));
    fill(this.element, head(since, told.total), perDay(told.days, since, isPriced, measure, say),
      told.days.length > 0 && h("div.two", named("By model", told.models, measure, say), named("By agent", told.agents, measure, say),
        told.buckets.length > 1 && named("Live and replayed", told.buckets, measure, say)),
      told.rows.length > 0 && h("section", h("h2", "Every day, model and agent"), table(told.rows)), stored);
    try { await this.#count(stored); } catch (problem) { fill(stored, h("h2", "Storage"), h("p.said-bad", problem.message)); }
  }

  /** All sessions, a page at a time; what is known by then is shown. */
  async #count(section) {
    const kept = nothing(), trashed = nothing();
    for (const [sums, isTrash] of [[kept, false], [trashed, true]]) {
      let page = null;
      do {
        const told = await ask("/storage", { page, trashed: isTrash || null });
        if (this.#isClosed) return;
        add(sums, told);
        page = told.next;
        fill(section, h("h2", "Storage"), stored(kept, trashed, page !== null || !isTrash));
      } while (page !== null);
    }
  }
}

function head(since, total) {
  return h("header", h("div.head-line", h("h1", "Usage"), h("span.grow"),
    h("div.choice", { role: "radiogroup", "aria-label": "Time" }, SINCE.map(([value, words]) => h("button", {
    type: "button", role: "radio", "aria-checked": String((value || "all") === since), onclick: () => go(to("/usage",
      { since: value || "all" })),
  }, words)))), figures([["cost", cost(total)], ["calls", count(total.calls)], ["input", count(total.input_tokens)],
    ["output", count(total.output_tokens)], ["cache read", count(total.cache_read_tokens)],
    ["unpriced", total.unpriced_calls ? many(total.unpriced_calls, "call") : null],
    ["unknown", total.unknown_calls ? many(total.unknown_calls, "call") : null]]));
}

function figures(pairs) {
  return h("dl.figures", pairs.filter(([, value]) => value !== null)
    .map(([name, value]) => h("div", h("dt", name), h("dd", value))));
}

// -- spending ---------------------------------------------------------------------------------

function perDay(days, since, isPriced, measure, say) {
  return h("section", h("h2", isPriced ? "Cost per day" : "Tokens per day", h("span.muted", "UTC")),
    days.length ? columns(everyDay(days, since, measure), "per day, UTC", say)
      : h("p.empty", "No model was called in this time."));
}

/** Every day of the time asked for: days without a call are days too. */
function everyDay(days, since, measure) {
  const known = new Map(days.map(({ name, totals }) => [name, measure(totals)]));
  const today = Math.floor(Date.now() / DAY) * DAY, last = Math.max(today, Date.parse(days.at(-1).name));
  const asked = since === "all" ? Date.parse(days[0].name) : today - Number.parseInt(since, 10) * DAY;
  const first = Math.max(Math.min(asked, Date.parse(days[0].name)), last - (MOST_DAYS - 1) * DAY), found = [];
  for (let at = first; at <= last; at += DAY) {
    const name = new Date(at).toISOString().slice(0, 10);
    found.push({ name, value: known.get(name) ?? 0 });
  }
  return found;
}

function named(title, groups, measure, say) {
  const points = groups.slice(0,
    12).map(({ name, totals }) => ({ name: shown(name || "none"), value: measure(totals),
    note: many(totals.calls, "call") }));
  return h("section", h("h2", title), points.length ? bars(points, title, say) : h("p.empty", "Nothing."),
    groups.length > 12 && h("p.muted", `and ${groups.length - 12} more`));
}

function table(rows) {
  const shownRows = rows.slice(-ROWS).reverse();
  return h("div.wide", h("table",
    heads(["day", "model", "agent", "for"], ["calls", "input", "output", "cost"]),
    h("tbody", shownRows.map(({ day, model, agent, bucket, totals }) => h("tr",
      [day, shown(model), shown(agent), bucket].map((cell) => h("td", cell || "–")),
      [count(totals.calls), count(totals.input_tokens), count(totals.output_tokens),
        cost(totals)].map((cell) => h("td.number", cell)))))),
    rows.length > ROWS && h("p.muted", `The newest ${ROWS} of ${count(rows.length)} rows.`));
}

function heads(words, numbers) {
  return h("thead", h("tr", words.map((name) => h("th", { scope: "col" }, name)),
    numbers.map((name) => h("th.number", { scope: "col" }, name))));
}

// -- storage ----------------------------------------------------------------------------------

function nothing() { return { sessions: 0, largest: [], ...Object.fromEntries(HELD.map((name) => [name, 0])) }; }

const size = (held) => held.bytes + held.blob_bytes;

function add(sums, told) {
  for (const name of ["sessions", ...HELD]) sums[name] += told[name];
  sums.largest = [...sums.largest, ...told.largest].sort((a, b) => size(b) - size(a)).slice(0, LARGEST);
}

function stored(kept, trashed, isCounting) {
  if (!kept.sessions && !trashed.sessions) return h("p.empty", isCounting ? "Counting…" : "No session.");
  return h("div", figures([["sessions", count(kept.sessions)], ["entries", count(kept.entries)], ["text", bytes(kept.bytes)],
    ["branches", count(kept.branches)], ["media", kept.blobs ? `${bytes(kept.blob_bytes)} in ${count(kept.blobs)}` : null],
    ["in the trash", trashed.sessions ? `${many(trashed.sessions, "session")}, ${bytes(size(trashed))}` : null]]),
  h("p.muted", { role: "status" }, isCounting ? "Counting…"
    : "As written, before the database adds its pages and indexes. Media that several sessions name is counted for each."),
  h("div.wide", h("table.fills", heads(["largest sessions"], ["entries", "branches", "text", "media"]), h("tbody", kept.largest.map((one) =>
    h("tr", h("td.cut", h("a", { href: sessionLink(one.id) }, shown(one.heading))),
      [count(one.entries), count(one.branches), bytes(one.bytes), one.blobs ? bytes(one.blob_bytes) : "–"]
        .map((cell) => h("td.number", cell))))))));
}
