// What everything cost: by day, by model, by agent; and what the newest sessions take on disk.

import { ask, sessionPath } from "./api.js";
import { fill, h } from "./dom.js";
import { bars, columns } from "./plots.js";
import { go, route, sessionLink, to } from "./route.js";
import { bytes, cost, count, many, money, shown } from "./words.js";

const SINCE = [["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"], ["", "All"]];
const STORED = 25;

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
    const stored = h("tbody");
    fill(this.element, head(since, told.total),
      h("section", h("h2", isPriced ? "Cost per day" : "Tokens per day"),
        told.days.length ? columns(everyDay(told.days, measure), "per day, UTC", say) : h("p.empty",
        "No model was called in this time.")),
      h("div.two", named("By model", told.models, measure, say), named("By agent", told.agents, measure, say)),
      told.buckets.length > 1 && named("By purpose", told.buckets, measure, say),
      h("section", h("h2", "Every day, model and agent"), table(told.rows)),
      h("section", h("h2", "Storage of the newest sessions"),
        h("div.wide", h("table", h("thead",
        h("tr", ["session", "entries", "branches", "size", "blobs"].map((name) => h("th", name)))), stored))));
    await this.#stored(stored);
  }

  async #stored(body) {
    const { sessions } = await ask("/sessions", { all: true, limit: STORED });
    for (const row of sessions) {
      if (this.#isClosed) return;
      const held = await ask(sessionPath(row.id, "/storage"));
      body.append(h("tr", h("td", h("a", { href: sessionLink(row.id) }, shown(row.heading))),
        [count(held.entries), count(held.branches), bytes(held.bytes),
        held.blobs ? `${held.blobs}, ${bytes(held.blob_bytes)}` : "–"].map((cell) => h("td.number", cell))));
    }
  }
}

function head(since, total) {
  return h("header", h("div.head-line", h("h1", "Usage"), h("span.grow"),
    h("div.choice", { role: "radiogroup", "aria-label": "Time" }, SINCE.map(([value, words]) => h("button", {
    type: "button", role: "radio", "aria-checked": String((value || "all") === since), onclick: () => go(to("/usage",
      { since: value || "all" })),
  }, words)))), h("dl.figures", [["cost", cost(total)], ["calls", count(total.calls)], ["input", count(total.input_tokens)], ["output", count(total.output_tokens)],
    ["cache read", count(total.cache_read_tokens)], ["unpriced",
      total.unpriced_calls ? many(total.unpriced_calls, "call") : null], ["unknown",
      total.unknown_calls ? many(total.unknown_calls, "call") : null]]
    .filter(([, value]) => value !== null).map(([name, value]) => h("div", h("dt", name), h("dd", value)))));
}

/** Days without a call are days too. */
function everyDay(days, measure) {
  const known = new Map(days.map(({ name, totals }) => [name, measure(totals)]));
  const first = Date.parse(days[0].name), last = Date.parse(days.at(-1).name), found = [];
  for (let at = Math.max(first, last - 364 * 864e5); at <= last; at += 864e5) {
    const name = new Date(at).toISOString().slice(0, 10);
    found.push({ name, value: known.get(name) ?? 0 });
  }
  return found;
}

function named(title, groups, measure, say) {
  const points = groups.slice(0,
    12).map(({ name, totals }) => ({ name: shown(name || "none"), value: measure(totals),
    note: many(totals.calls, "call") }));
  return h("section", h("h2", title), points.length ? bars(points, title, say) : h("p.empty", "Nothing."));
}

function table(rows) {
  const shownRows = rows.slice(-200).reverse();
  return h("div.wide", h("table",
    h("thead", h("tr", ["day", "model", "agent", "for", "calls", "input", "output", "cost"].map((name) => h("th", name)))),
    h("tbody", shownRows.map(({ day, model, agent, bucket, totals }) => h("tr",
      [day, shown(model), shown(agent), bucket].map((cell) => h("td", cell || "–")),
      [count(totals.calls), count(totals.input_tokens), count(totals.output_tokens),
        cost(totals)].map((cell) => h("td.number", cell)))))));
}
