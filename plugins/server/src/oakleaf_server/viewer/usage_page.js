// Cost by day, model and agent, and the storage of all sessions.

import { fetchJson } from "./api.js";
import { button, choice, fill, h } from "./dom.js";
import { barChart, columnChart } from "./charts.js";
import { navigate, route, sessionLink, buildUrl } from "./route.js";
import { bytes, cost, count, plural, money, printable, tokens } from "./format.js";

const SINCE = [["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"], ["all", "All"]];
const DAY = 864e5, MOST_DAYS = 365, LARGEST = 25, ROWS = 200;
const SIZE_FIELDS = ["entries", "bytes", "branches", "blobs", "blob_bytes"];

export class UsagePage {
  #isClosed = false;

  constructor() {
    this.element = h("main.page.usage-page", { id: "main", tabindex: -1, "aria-label": "Usage" });
  }

  close() { this.#isClosed = true; }

  async open() {
    const since = route.now.query.since ?? "30d";
    const reply = await fetchJson("/usage/days", { since: since === "all" ? null : since });
    const isPriced = reply.total.cost_microcents > 0;
    const measure = isPriced ? (totals) => totals.cost_microcents : (totals) => totals.input_tokens + totals.output_tokens;
    const format = isPriced ? money : count;
    const storageTable = h("section", h("h2", "Storage"), h("p.muted", { role: "status" }, "Counting…"));
    const replays = reply.buckets.find(({ name }) => name === "replay")?.totals;
    fill(this.element, head(since, reply.total, replays), perDay(reply.days, since, isPriced, measure, format),
      reply.days.length > 0 && h("div.two", groupChart("By model", reply.models, measure, format), groupChart("By agent", reply.agents, measure, format),
        reply.buckets.length > 1 && groupChart("Live and replay", reply.buckets, measure, format)),
      reply.rows.length > 0 && h("section", h("h2", "By day, model and agent"), table(reply.rows)), storageTable);
    try { await this.#count(storageTable); } catch (problem) { fill(storageTable, h("h2", "Storage"), h("p.error-text", problem.message)); }
  }

  /** Wait for a click: of a large store every entry is read. */
  #askForAll(section) {
    return new Promise((resolve) => { section.append(button("chart", "Count all sessions", () => resolve(true))); });
  }

  /** Sum all sessions page by page, showing partial sums. */
  async #count(section) {
    const active = emptySizes(), trashed = emptySizes();
    let isAsked = false;
    for (const [sums, isTrash] of [[active, false], [trashed, true]]) {
      let page = null;
      do {
        const reply = await fetchJson("/storage", { page, query: isTrash ? "is:trashed" : null });
        if (this.#isClosed) return;
        addSizes(sums, reply);
        page = reply.next;
        fill(section, h("h2", "Storage"), storageTable(active, trashed, page !== null || !isTrash));
        if (page !== null && !isAsked) isAsked = await this.#askForAll(section);
      } while (page !== null);
    }
  }
}

function head(since, total, replays) {
  return h("header", h("div.head-line", h("h1", "Usage"), h("span.grow"),
    choice("Time", SINCE, since, (value) => navigate(buildUrl("/usage", { since: value })))), figures([["cost", cost(total)], ["calls", count(total.calls)], ["input", tokens(total, "input_tokens")],
    ["output", tokens(total, "output_tokens")], ["cache read", tokens(total, "cache_read_tokens")],
    ["unpriced", total.unpriced_calls ? plural(total.unpriced_calls, "call") : null],
    ["unknown", total.unknown_calls ? plural(total.unknown_calls, "call") : null],
    ["replays, apart", replays ? cost(replays) : null]]));
}

function figures(pairs) {
  return h("dl.figures", pairs.filter(([, value]) => value !== null)
    .map(([name, value]) => h("div", h("dt", name), h("dd", value))));
}

// -- spending ---------------------------------------------------------------------------------

function perDay(days, since, isPriced, measure, format) {
  return h("section", h("h2", isPriced ? "Cost per day" : "Tokens per day", h("span.muted", "UTC")),
    days.length ? columnChart(everyDay(days, since, measure), "per day, UTC", format)
      : h("p.empty", "No model calls in this period."));
}

/** Every day of the period, including days without calls. */
function everyDay(days, since, measure) {
  const known = new Map(days.map(({ name, totals }) => [name, measure(totals)]));
  const today = Math.floor(Date.now() / DAY) * DAY, last = Math.max(today, Date.parse(days.at(-1).name));
  const start = since === "all" ? Date.parse(days[0].name) : today - Number.parseInt(since, 10) * DAY;
  const first = Math.max(Math.min(start, Date.parse(days[0].name)), last - (MOST_DAYS - 1) * DAY), points = [];
  for (let at = first; at <= last; at += DAY) {
    const name = new Date(at).toISOString().slice(0, 10);
    points.push({ name, value: known.get(name) ?? 0 });
  }
  return points;
}

function groupChart(title, groups, measure, format) {
  const points = groups.slice(0,
    12).map(({ name, totals }) => ({ name: printable(name || "none"), value: measure(totals),
    text: format === money ? cost(totals) : format(measure(totals)), note: plural(totals.calls, "call") }));
  return h("section", h("h2", title), points.length ? barChart(points, title, format) : h("p.empty", "No data."),
    groups.length > 12 && h("p.muted", `and ${groups.length - 12} more`));
}

function table(rows) {
  const shownRows = rows.slice(-ROWS).reverse();
  return h("div.wide", { tabindex: 0 }, h("table",
    heads(["day", "model", "agent", "bucket"], ["calls", "input", "output", "cost"]),
    h("tbody", shownRows.map(({ day, model, agent, bucket, totals }) => h("tr",
      [day, printable(model), printable(agent), bucket].map((cell) => h("td", cell || "–")),
      [count(totals.calls), tokens(totals, "input_tokens"), tokens(totals, "output_tokens"),
        cost(totals)].map((cell) => h("td.number", cell)))))),
    rows.length > ROWS && h("p.muted", `The newest ${ROWS} of ${count(rows.length)} rows.`));
}

function heads(label, numbers) {
  return h("thead", h("tr", label.map((name) => h("th", { scope: "col" }, name)),
    numbers.map((name) => h("th.number", { scope: "col" }, name))));
}

// -- storage ----------------------------------------------------------------------------------

function emptySizes() { return { sessions: 0, largest: [], ...Object.fromEntries(SIZE_FIELDS.map((name) => [name, 0])) }; }

const size = (sizes) => sizes.bytes + sizes.blob_bytes;

function addSizes(sums, reply) {
  for (const name of ["sessions", ...SIZE_FIELDS]) sums[name] += reply[name];
  sums.largest = [...sums.largest, ...reply.largest].sort((a, b) => size(b) - size(a)).slice(0, LARGEST);
}

function storageTable(active, trashed, isCounting) {
  if (!active.sessions && !trashed.sessions) return h("p.empty", isCounting ? "Counting…" : "No sessions.");
  return h("div", figures([["sessions", count(active.sessions)], ["entries", count(active.entries)], ["text", bytes(active.bytes)],
    ["branches", count(active.branches)], ["media", active.blobs ? `${bytes(active.blob_bytes)} in ${count(active.blobs)}` : null],
    ["in the trash", trashed.sessions ? `${plural(trashed.sessions, "session")}, ${bytes(size(trashed))}` : null]]),
  h("p.muted", { role: "status" }, isCounting ? "Counting…"
    : "Content size, without database overhead. Media shared by several sessions is counted for each."),
  h("div.wide", { tabindex: 0 }, h("table.fills", heads(["largest sessions"], ["entries", "branches", "text", "media"]), h("tbody", active.largest.map((row) =>
    h("tr", h("td.cut", h("a", { href: sessionLink(row.id) }, printable(row.heading))),
      [count(row.entries), count(row.branches), bytes(row.bytes), row.blobs ? bytes(row.blob_bytes) : "–"]
        .map((cell) => h("td.number", cell))))))));
}
