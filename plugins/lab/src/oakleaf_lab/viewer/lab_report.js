// A lab run: lanes side by side, effects in words, and the sessions, those that changed most first.
// Draws what it is given; knows neither the server nor whether the page is a file.

import { button, choice, fill, h } from "../dom.js";
import { cost, count, duration, money, plural, printable } from "../format.js";
import { markedColumns } from "../text_diff.js";

const PAGE = 100;
const BADGES = { same: "same", reworded: "reworded", "arguments changed": "arguments", "tool changed": "tool",
  missing: "missing", failed: "missing" };
const SORTS = {
  change: ["Changed most", (row) => row.change],
  cost: ["Cost rises most", (row) => row.candidate.cost_microcents - row.baseline.cost_microcents],
  latency: ["Latency rises most", (row) => row.candidate.milliseconds - row.baseline.milliseconds],
};

/** Sessions of a run; `turns(row)` loads a row's turns, `links` makes the addresses of sessions and comparisons or null. */
export class LabReport {
  #shown = PAGE;

  constructor(run, sessions, { turns, links, kind = "", sort = "change", onchange = () => {} }) {
    Object.assign(this, { run, sessions, turns, links, kind, sort, onchange });
    if (!SORTS[this.sort]) this.sort = "change";
    this.filters = h("div.lab-filters");
    this.rows = h("div");
    this.element = h("div.lab", head(run, sessions.length), prompt(run), effects(run), lanes(run),
      h("h2", "Sessions"), this.filters, this.rows);
    this.#draw();
  }

  #choose(changes) {
    Object.assign(this, changes);
    this.#shown = PAGE;
    this.onchange(this.kind, this.sort);
    this.#draw();
  }

  #draw() {
    const chosen = this.sessions.filter((row) => !this.kind || row.candidate.classes[this.kind]);
    const value = SORTS[this.sort][1];
    const sorted = this.sort === "change" ? chosen : [...chosen].sort((a, b) => value(b) - value(a));
    fill(this.filters, this.#classFilter(), this.#sorting());
    const shown = sorted.slice(0, this.#shown), left = sorted.length - shown.length;
    fill(this.rows, sorted.length ? this.#table(shown) : h("p.empty", "No session has such a turn."),
      left > 0 && button(null, `${plural(left, "more session")}`, () => { this.#shown += 5 * PAGE; this.#draw(); },
        { class: "quiet pager" }));
  }

  #classFilter() {
    const choices = ["", ...this.run.classes].map((kind) => [kind, kind || "all",
      kind ? this.sessions.filter((row) => row.candidate.classes[kind]).length : this.sessions.length]);
    const shown = choices.filter(([kind, , number]) => number || kind === this.kind || !kind);
    return choice("Class of the candidate's turns", shown.map(([kind, label, number]) => [kind, `${label} ${count(number)}`]), this.kind,
      (kind) => this.#choose({ kind }));
  }

  #sorting() {
    return choice("Order", Object.entries(SORTS).map(([name, [label]]) => [name, label]), this.sort, (sort) => this.#choose({ sort }));
  }

  #table(rows) {
    return h("div.wide", { tabindex: 0 }, h("table.fills.lab-sessions", h("thead", h("tr",
      h("th", { scope: "col" }, "session"), h("th.number", { scope: "col" }, "change"),
      h("th", { scope: "col" }, "baseline"), h("th", { scope: "col" }, "candidate"),
      h("th.number", { scope: "col" }, "cost"), h("th.number", { scope: "col" }, "time"))),
    h("tbody", rows.map((row) => this.#row(row)))));
  }

  #row(row) {
    const [replay] = row.candidate.replays, link = this.links && replay ? this.links.diff(row.session_id, replay) : null;
    const heading = printable(row.heading || row.session_id);
    const body = h("tr.lab-turns", { hidden: true }, h("td", { colspan: 6 }));
    const toggle = button(null, "Turns", async () => {
      body.hidden = !body.hidden;
      toggle.setAttribute("aria-expanded", String(!body.hidden));
      if (!body.hidden && !body.firstChild.childElementCount) await this.#open(row, body.firstChild);
    }, { class: "quiet", "aria-expanded": "false", "aria-label": `Turns of ${heading}` });
    return [h("tr.lab-session", { data: { id: row.session_id } },
      h("td", h("div.lab-heading", toggle,
        link ? h("a", { href: link, title: "Compare the recording with the candidate" }, heading) : h("span", heading),
        row.errors.length > 0 && h("span.badge.is-error", { title: row.errors.map(printable).join("\n") }, "not replayed"))),
      h("td.number", points(row.change)),
      h("td", this.#kinds(row.baseline.classes)), h("td", this.#kinds(row.candidate.classes)),
      h("td.number", `${cost(row.baseline)} → ${cost(row.candidate)}`),
      h("td.number", `${seconds(row.baseline.milliseconds)} → ${seconds(row.candidate.milliseconds)}`)), body];
  }

  /** Turns by class, the heaviest first. */
  #kinds(classes) {
    return [...this.run.classes].reverse().filter((kind) => classes[kind])
      .map((kind) => h("span.badge", { class: `diff-${BADGES[kind]}` }, `${classes[kind]} ${kind}`));
  }

  async #open(row, cell) {
    fill(cell, h("p.muted", "Loading…"));
    try {
      const turns = await this.turns(row);
      fill(cell, turns.map((turn) => turnPart(turn, row, this.links)));
    } catch (problem) {
      fill(cell, h("p.error-text", problem.message));
    }
  }
}

// -- head -------------------------------------------------------------------------------------

function head(run, sessions) {
  const { experiment } = run, observed = run.lanes.find((lane) => lane.lane === "observed");
  const skipped = Object.entries(run.skipped);
  return h("header", h("div.head-line", h("h1", `Lab: ${printable(experiment.cohort.join(" "))}`),
    run.status !== "complete" && h("span.badge.is-unknown", `incomplete, ${run.cells} of ${run.total_cells} replays`)),
  run.status !== "complete" && run.why && h("p.muted", printable(run.why)),
  h("dl.figures", [["candidate", printable(run.change)], ["sessions", count(sessions)], ["turns", count(observed?.turns ?? 0)],
    ["repetitions", count(experiment.repeat ?? 1)], ["spent", money(run.spent_microcents)]]
    .map(([name, value]) => h("div", h("dt", name), h("dd", value)))),
  skipped.length > 0 && h("p.muted", `Left out: ${skipped.map(([why, number]) => `${count(number)} ${printable(why)}`).join(", ")}`));
}

/** The prompt that was tested, against the recorded one. */
function prompt(run) {
  if (!run.prompt_diff.length) return null;
  const counts = Object.values(run.prompts), all = counts.reduce((sum, number) => sum + number, 0);
  const old = counts.length > 1 ? `that of ${counts[0]} of ${plural(all, "session")}` : "the recorded one";
  return h("section", h("h2", "Prompt"), h("p.muted", `Against ${old}`), h("pre.lab-prompt", { tabindex: 0 },
    run.prompt_diff.slice(2).map((line) => h("span", { class: { "+": "added", "-": "removed" }[line[0]] ?? "" }, `${printable(line)}\n`))));
}

/** What differs, in words: gates first, then real differences, then the rest. */
function effects(run) {
  const shown = run.comparisons.filter(({ effect }) => effect.candidate !== null && (effect.candidate || effect.baseline));
  const real = shown.filter((each) => each.is_difference), rest = shown.filter((each) => !each.is_difference);
  return h("section", h("h2", "Effects"),
    run.gates.length > 0 && h("ul.lab-effects", run.gates.map((gate) => h("li", h("span.badge",
      { class: { passed: "is-done", failed: "is-error" }[gate.outcome] ?? "is-unknown" }, gate.outcome), ` ${printable(gate.gate)}: ${printable(gate.why)}`))),
    real.length ? h("ul.lab-effects", real.map((each) => h("li.real", printable(each.text),
      each.verdict && h("span.badge", { class: each.verdict === "better" ? "is-done" : "is-error" }, each.verdict))))
      : h("p.muted", "No difference that noise does not explain."),
    rest.length > 0 && h("details.fold", h("summary", `${plural(rest.length, "metric")} without a clear difference`),
      h("ul.lab-effects", rest.map((each) => h("li", printable(each.text))))));
}

function lanes(run) {
  const metric = (kind) => kind.replaceAll(" ", "_");
  const scorers = Object.keys(run.lanes[0]?.scores ?? {});
  const row = (name, cells) => h("tr", h("th", { scope: "row" }, name), cells.map((cell) => h("td.number", cell ?? "")));
  return h("section", h("h2", "Lanes"), h("div.wide", { tabindex: 0 }, h("table.lab-lanes",
    h("thead", h("tr", h("td"), run.lanes.map((lane) => h("th.number", { scope: "col" }, lane.lane)))),
    h("tbody", row("turns", run.lanes.map((lane) => count(lane.turns))),
      run.classes.map((kind) => row(h("span.badge", { class: `diff-${BADGES[kind]}` }, kind),
        run.lanes.map((lane) => rate(lane.classes[metric(kind)])))),
      Object.keys(run.lanes[0]?.calls ?? {}).map((name) => row(`calls ${printable(name)}`, run.lanes.map((lane) => rate(lane.calls[name])))),
      row("cost", run.lanes.map((lane) => cost(lane.usage))),
      row("tokens", run.lanes.map((lane) => `${count(lane.usage.input_tokens)} + ${count(lane.usage.output_tokens)}`)),
      row("median time of a turn", run.lanes.map((lane) => (lane.latency_ms === null ? "–" : seconds(lane.latency_ms)))),
      scorers.map((name) => row(printable(name), run.lanes.map((lane) => score(lane.scores[name]))))))));
}

function rate(value) {
  if (!value || !value.turns) return "";
  const percent = (share) => (share * 100).toFixed(share < 0.0995 ? 1 : 0);
  const bar = h("i.lab-bar");
  bar.style.width = `${(value.count / value.turns) * 100}%`;
  return h("span.lab-rate", { title: `${value.count} of ${value.turns} turns, 95 % interval ${percent(value.low)} to ${percent(value.high)} %` },
    h("span.lab-room", bar), h("span", `${percent(value.count / value.turns)} %`),
    h("span.muted", `${percent(value.low)}–${percent(value.high)}`));
}

function score(summary) {
  if (!summary) return "–";
  const failures = Object.values(summary.failures ?? {}).reduce((sum, number) => sum + number, 0);
  return `${summary.mean === null ? "–" : Number(summary.mean.toPrecision(3))}${failures ? ` (${failures} failed)` : ""}`;
}

// -- sessions ---------------------------------------------------------------------------------

function points(change) {
  const text = Math.round(Math.abs(change) * 100);
  return text ? `${change > 0 ? "+" : "−"}${text} points` : "0";
}

function seconds(milliseconds) { return milliseconds ? duration(milliseconds * 1000) : "0 s"; }

function turnPart(turn, row, links) {
  return h("section.lab-turn", h("header", h("span.muted", `turn ${turn.turn}`),
    h("span.diff-input", { dir: "auto" }, printable(turn.input))),
  ["baseline", "candidate"].map((lane) => h("div", h("span.label", lane), turn[lane].map((replayed) => h("div.lab-replayed",
    h("span.badge", { class: `diff-${BADGES[replayed.kind]}` }, replayed.kind),
    h("span.muted", ` ${cost(replayed)} · ${seconds(replayed.milliseconds)}`,
      Object.entries(replayed.scores ?? {}).map(([name, value]) => ` · ${printable(name)} ${Number(value.toPrecision(3))}`)),
    links && h("a", { href: links.diff(row.session_id, replayed.replay) }, "compare"),
    (replayed.expected || replayed.actual) && markedColumns(replayed.expected ?? "", replayed.actual ?? ""))),
  !turn[lane].length && h("span.muted", " not reached"))));
}
