// Compares two sessions turn by turn: where they diverge, which words differ, and the cost.
// Turns are loaded in pages, from the first one that is not shared; the entries of a turn when it is opened.

import { fetchEntry, fetchJson, sessionPath } from "./api.js";
import { fileDiff } from "./tool_views.js";
import { button, fill, h } from "./dom.js";
import { CallTimes } from "./call_times.js";
import { entryRow } from "./entries.js";
import { Path } from "./path.js";
import { navigate, route, sessionLink, buildUrl } from "./route.js";
import { markedColumns } from "./text_diff.js";
import { cost, plural, money, printable, tokens } from "./format.js";

const PAGE = 50, TURN = 60, LOOK_AHEAD = 5;
const KINDS = { same: "same", reworded: "reworded", "result changed": "result", "arguments changed": "arguments",
  "tool changed": "tool", "input changed": "input", missing: "missing" };

export class DiffPage {
  #current = -1;

  constructor() {
    this.rows = h("div.diff-rows");
    this.head = h("header.diff-head");
    this.setup = h("div.diff-around");
    this.element = h("main.page.diff", { id: "main", tabindex: -1, "aria-label": "Comparison" }, this.head, this.setup,
      this.rows);
  }

  async open() {
    const { a, b } = route.now.query;
    if (!a || !b) { fill(this.head, h("h1", "Compare"),
      h("p.muted", "Open a session and choose “Compare with…”.")); return; }
    this.sides = [a, b];
    this.page = await this.#load(null);
    this.names = await Promise.all([readSession(this.page.a.session_id), readSession(this.page.b.session_id)]);
    // Turns may be equal although what is before them differs: look further, but not for ever.
    for (let pages = 1; pages < LOOK_AHEAD && !this.#hasDifference() && this.page.next; pages++) await this.#append();
    this.#draw();
    if (this.#hasDifference()) this.#show(0);
  }

  #load(page) { return fetchJson("/diff", { a: this.sides[0], b: this.sides[1], page, limit: PAGE }); }

  #hasDifference() { return this.page.rows.some((row) => row.kind !== "same"); }

  /** The next page, added to what is here. */
  async #append() {
    const { page } = this, more = await this.#load(page.next);
    const counts = { ...page.counts };
    for (const [kind, number] of Object.entries(more.counts)) counts[kind] = (counts[kind] ?? 0) + number;
    this.page = { ...page, rows: [...page.rows, ...more.rows], next: more.next, counts, same: page.same === false ? false : more.same,
      a: addSide(page.a, more.a), b: addSide(page.b, more.b) };
  }

  /** The next (1) or previous (-1) difference. */
  async step(by) {
    const next = this.#current + by;
    while (next >= this.#differences().length && this.page.next) await this.#loadLater();
    if (next >= 0 && next < this.#differences().length) this.#show(next);
  }

  #differences() { return [...this.rows.querySelectorAll(".diff-row:not(.kind-same)")]; }

  #show(index) {
    this.#current = index;
    const differences = this.#differences();
    for (const row of differences) row.classList.toggle("current", row === differences[index]);
    const { top, bottom } = differences[index].getBoundingClientRect();
    const below = this.head.getBoundingClientRect().bottom;
    // Do not scroll if the row is already visible, so that the setup differences stay visible too.
    if (top < below || bottom > innerHeight) differences[index].scrollIntoView({ block: "start" });
    differences[index].focus({ preventScroll: true });
  }

  // -- head -----------------------------------------------------------------------------------

  #head() {
    const { page } = this, [firstSession, secondSession] = this.names;
    const changed = Object.entries(page.counts).filter(([kind]) => kind !== "same");
    const incomplete = page.a.incomplete ?? page.b.incomplete; // a replay that was not answered to its end
    const [title, verdict] = incomplete ? ["Unknown", `A replay is incomplete: ${printable(incomplete)}`] : page.same ? ["Identical", "Inputs, answers, tool calls and results are identical."]
      : page.same === false ? ["Different", `Diverges after entry ${page.shared}.`]
      : ["No difference so far", `in ${plural(page.rows.length, "turn")} after entry ${page.shared}.`];
    fill(this.head,
      h("div.head-line", h("h1", title), h("span.muted", verdict), h("span.grow"),
        button(null, "Swap", () => navigate(buildUrl("/diff", { a: this.sides[1], b: this.sides[0] })), { class: "quiet" }),
        button(null, "Previous", () => this.step(-1), { class: "quiet", title: "p" }), button(null, "Next difference",
          () => this.step(1), { class: "quiet", title: "n" })),
      h("div.head-facts", h("span", `${plural(page.shared, "entry", "entries")} shared`),
        h("span", `${page.next ? "the first " : ""}${plural(page.rows.length, "turn")} compared`),
        changed.map(([kind, number]) => h("span.badge", { class: `diff-${KINDS[kind]}` }, `${number} ${kind}`)),
        page.is_state_same === false && h("span.badge.is-error", "state differs")),
      h("div.diff-columns.diff-sides", sideHead("a", page.a, firstSession), sideHead("b", page.b, secondSession)));
    fill(this.setup, page.setup.length > 0 && h("details.fold.setup", { open: page.setup.length < 3 },
      h("summary", `Setup differences: ${page.setup.map((part) => part.name).join(", ")}`), page.setup.map(setupPart)));
  }

  // -- rows -----------------------------------------------------------------------------------

  #draw() {
    const { rows, next } = this.page;
    this.#head();
    fill(this.rows, rows.map((row, at) => this.#row(row, at)),
      next && h("button.quiet.pager", { type: "button", onclick: () => this.#loadLater() }, "Compare later turns"));
    if (!rows.length) this.rows.append(h("p.empty", "No turns after the shared history."));
  }

  async #loadLater() {
    const before = this.page.rows.length;
    await this.#append();
    this.#head();
    this.rows.querySelector(".pager")?.remove();
    this.rows.append(...this.page.rows.slice(before).map((row, at) => this.#row(row, before + at)));
    if (this.page.next) this.rows.append(h("button.quiet.pager", { type: "button", onclick: () => this.#loadLater() }, "Compare later turns"));
  }

  #row(row, index) {
    const body = h("div.diff-body", row.differences.map(difference));
    const both = h("details.fold.turns", h("summary", "Show both turns"));
    both.addEventListener("toggle", () => { if (both.open && both.childElementCount === 1) this.#turns(both, row); });
    return h("section.diff-row",
      { class: `kind-${KINDS[row.kind]}`, tabindex: -1, data: { row: index, kind: row.kind },
      "aria-label": `turn, ${row.kind}` },
      h("header", h("span.badge", { class: `diff-${KINDS[row.kind]}` }, row.kind),
        h("span.diff-input", { dir: "auto" }, printable(row.input)), h("span.grow"), costChange(row.a, row.b)),
      body, both);
  }

  async #turns(box, row) {
    const columns = h("div.diff-columns");
    box.append(columns);
    columns.append(...await Promise.all([turn(this.sides[0], row.turn_a), turn(this.sides[1], row.turn_b)]));
  }
}

/** One side with the models and sums of a further page. */
function addSide(side, more) {
  const totals = { ...side.totals };
  for (const [name, value] of Object.entries(more.totals)) totals[name] = (totals[name] ?? 0) + value;
  return { ...side, models: [...new Set([...side.models, ...more.models])], totals };
}

async function readSession(id) {
  try { return (await fetchJson(sessionPath(id))).session; } catch { return { id, heading: id }; } // only the heading is missing
}

function sideHead(name, page, session) {
  return h("div", h("span.badge", name), " ",
    h("a", { href: sessionLink(page.session_id, page.seq || null) }, printable(session.heading)),
    h("div.muted", [session.relation, page.models.map(printable).join(", ") || session.model,
      `${tokens(page.totals, "input_tokens")} in`, `${tokens(page.totals, "output_tokens")} out`,
      cost(page.totals)].filter(Boolean).join(" · ")));
}

function setupPart({ name, a, b }) {
  const isText = (a + b).includes("\n") || a.length + b.length > 120;
  return h("div.setup-part", h("div.label", name), isText ? fileDiff(a, b, "full", "") : markedColumns(a, b));
}

function costChange(a, b) {
  const by = b.cost_microcents - a.cost_microcents;
  const text = `${cost(a)} → ${cost(b)}`;
  return h("span.muted.price", { title: by ? `${by > 0 ? "+" : "−"}${money(Math.abs(by))}` : "" },
    a.calls || b.calls ? text : "");
}

function difference({ kind, subject, step, expected, actual, seq_a: a, seq_b: b }) {
  return h("div.difference", h("div.label", h("strong", kind), ` ${printable(subject)}`,
    step ? `, step ${step}` : "", a && `, a ${a}`, b && `, b ${b}`), markedColumns(expected, actual));
}

/** The entries of one turn, rendered as in the transcript. */
async function turn(reference, seq) {
  const [id, leaf] = reference.split("@");
  const box = h("div.side-turn");
  if (seq === null) return append(box, h("p.muted", "No matching turn"));
  const path = new Path(id, leaf?.includes(":") ? leaf : null, false);
  const [first, last] = await path.load({ first: seq, limit: TURN });
  const cards = new Map(), times = new CallTimes();
  times.add((await fetchJson(sessionPath(id, "/calls"), { leaf: path.leaf, first, last })).facts);
  const context = { path, times, link: (entry) => sessionLink(id, entry), cardState: (name) => cards.get(name) ?? "preview",
    setCard: (name, state) => { cards.set(name, state); draw(); },
    showAll: async (entry) => { path.replace(await fetchEntry(id, `${entry.branch}:${entry.seq}`)); draw(); },
    openCall: () => null, canChange: false };
  const draw = () => {
    fill(box);
    for (let at = first; at <= last; at++) {
      const entry = path.entry(at);
      if (!entry || (at > seq && entry.turn === entry.seq)) break;
      append(box, entryRow(entry, context) ?? "");
    }
  };
  draw();
  return box;
}

function append(box, node) { box.append(node); return box; }
