// Two sessions side by side, aligned by turn: where they part, in which words, at what price.
// Rows come in pages; the whole of a turn is read when it is opened.

import { ask, sessionPath } from "./api.js";
import { fileDiff } from "./cards.js";
import { button, fill, h, icon } from "./dom.js";
import { entryRow } from "./entries.js";
import { Path } from "./path.js";
import { go, route, sessionLink, to } from "./route.js";
import { words } from "./textdiff.js";
import { cost, count, many, money, shown } from "./words.js";

const PAGE = 50, TURN = 60;
const KINDS = { same: "same", reworded: "reworded", "result changed": "result", "arguments changed": "arguments",
  "tool changed": "tool", "input changed": "input", missing: "missing" };

export class DiffPage {
  #current = -1;

  constructor() {
    this.rows = h("div.diff-rows");
    this.head = h("header.diff-head");
    this.around = h("div.diff-around");
    this.element = h("main.page.diff", { id: "main", tabindex: -1, "aria-label": "Comparison" }, this.head, this.around,
      this.rows);
  }

  close() { /* nothing of it goes on */ }

  async open() {
    const { a, b } = route.now.query;
    if (!a || !b) { fill(this.head, h("h1", "Compare"),
      h("p.muted", "Open a session and choose “Compare with…”.")); return; }
    this.sides = [a, b];
    const probe = await ask("/diff", { a, b, limit: 1 });
    const first = Math.max(0, Math.floor((probe.first_row ?? 0) / PAGE) * PAGE);
    this.told = await ask("/diff", { a, b, first, limit: PAGE });
    this.first = first;
    this.last = first + this.told.rows.length;
    const [one, other] = await Promise.all([about(this.told.a.session_id), about(this.told.b.session_id)]);
    this.#head(one, other);
    this.#draw();
    const found = this.#differences();
    if (found.length && this.told.first_row !== null) this.#show(0);
  }

  /** The next (1) or previous (-1) difference. */
  async step(by) {
    const found = this.#differences();
    const next = this.#current + by;
    if (next >= found.length && this.last < this.told.of) { await this.#later(); return this.step(by); }
    if (next < 0 && this.first > 0) { await this.#earlier(); return this.step(by); }
    if (next >= 0 && next < found.length) this.#show(next);
  }

  #differences() { return [...this.rows.querySelectorAll(".diff-row:not(.kind-same)")]; }

  #show(index) {
    this.#current = index;
    const found = this.#differences();
    for (const row of found) row.classList.toggle("current", row === found[index]);
    const { top, bottom } = found[index].getBoundingClientRect();
    const below = this.head.getBoundingClientRect().bottom;
    // On screen already: then what differs around them may stay in sight.
    if (top < below || bottom > innerHeight) found[index].scrollIntoView({ block: "start" });
    found[index].focus({ preventScroll: true });
  }

  // -- head -----------------------------------------------------------------------------------

  #head(one, other) {
    const { told } = this;
    const changed = Object.entries(told.counts).filter(([kind]) => kind !== "same");
    const verdict = told.same ? "The same was asked, said, called and returned." : `They part after entry ${told.shared}.`;
    fill(this.head,
      h("div.head-line", h("h1", told.same ? "The same" : "Different"), h("span.muted", verdict), h("span.grow"),
        button(null, "Swap", () => go(to("/diff", { a: this.sides[1], b: this.sides[0] })), { class: "quiet" }),
        button(null, "Previous", () => this.step(-1), { class: "quiet", title: "p" }), button(null, "Next difference",
          () => this.step(1), { class: "quiet", title: "n" })),
      h("div.head-facts", h("span", `${many(told.shared_turns, "turn")} shared`),
        h("span", `${many(told.of, "turn")} compared`),
        changed.map(([kind, number]) => h("span.badge", { class: `diff-${KINDS[kind]}` }, `${number} ${kind}`)),
        !told.is_state_same && h("span.badge.is-error", "the state differs")),
      h("div.diff-columns.diff-sides", side("a", told.a, one), side("b", told.b, other)));
    fill(this.around, told.setup.length > 0 && h("details.fold.setup", { open: told.setup.length < 3 },
      h("summary", `What differs around them: ${told.setup.map((part) => part.name).join(", ")}`), told.setup.map(setup)));
  }

  // -- rows -----------------------------------------------------------------------------------

  #draw() {
    const { rows } = this.told;
    fill(this.rows, this.#pager(this.first > 0, `${many(this.first, "earlier turn")}`, () => this.#earlier()),
      rows.map((row, at) => this.#row(row, this.first + at)),
      this.#pager(this.last < this.told.of, `${many(this.told.of - this.last, "later turn")}`, () => this.#later()));
    if (!rows.length) this.rows.append(h("p.empty", "No turn lies behind what they share."));
  }

  #pager(isThere, label, act) { return isThere && h("button.quiet.pager", { type: "button", onclick: act }, label); }

  async #later() {
    const told = await ask("/diff", { a: this.sides[0], b: this.sides[1], first: this.last, limit: PAGE });
    this.told.rows = [...this.told.rows, ...told.rows];
    this.last += told.rows.length;
    this.#draw();
  }

  async #earlier() {
    const first = Math.max(0, this.first - PAGE);
    const told = await ask("/diff", { a: this.sides[0], b: this.sides[1], first, limit: this.first - first });
    this.told.rows = [...told.rows, ...this.told.rows.slice(0)];
    this.first = first;
    this.#current += told.rows.filter((row) => row.kind !== "same").length;
    this.#draw();
  }

  #row(row, index) {
    const body = h("div.diff-body", row.differences.map(difference));
    const both = h("details.fold.turns", h("summary", "Both turns whole"));
    both.addEventListener("toggle", () => { if (both.open && both.childElementCount === 1) this.#turns(both, row); });
    return h("section.diff-row",
      { class: `kind-${KINDS[row.kind]}`, tabindex: -1, data: { row: index, kind: row.kind },
      "aria-label": `turn, ${row.kind}` },
      h("header", h("span.badge", { class: `diff-${KINDS[row.kind]}` }, row.kind),
        h("span.diff-input", { dir: "auto" }, shown(row.input)), h("span.grow"), price(row.a, row.b)),
      body, both);
  }

  async #turns(box, row) {
    const columns = h("div.diff-columns");
    box.append(columns);
    columns.append(...await Promise.all([turn(this.sides[0], row.turn_a), turn(this.sides[1], row.turn_b)]));
  }
}

async function about(id) {
  try { return (await ask(sessionPath(id))).session; } catch { return { id, heading: id }; } // a name is all that is lost
}

function side(name, told, session) {
  return h("div", h("span.badge", name), " ",
    h("a", { href: sessionLink(told.session_id, told.seq || null) }, shown(session.heading)),
    h("div.muted", [session.relation, told.models.map(shown).join(", ") || session.model,
      `${count(told.totals.input_tokens)} in`, `${count(told.totals.output_tokens)} out`,
      cost(told.totals)].filter(Boolean).join(" · ")));
}

function setup({ name, a, b }) {
  const isText = (a + b).includes("\n") || a.length + b.length > 120;
  return h("div.setup-part", h("div.label", name), isText ? fileDiff(a, b, "full", "") : marks(a, b));
}

function price(a, b) {
  const by = b.cost_microcents - a.cost_microcents;
  const said = `${cost(a)} → ${cost(b)}`;
  return h("span.muted.price", { title: by ? `${by > 0 ? "+" : "−"}${money(Math.abs(by))}` : "" },
    a.calls || b.calls ? said : "");
}

function difference(one) {
  return h("div.difference", h("div.label", h("strong", one.kind), ` ${shown(one.subject)}`,
    one.step ? `, step ${one.step}` : "",
    one.seq_a && `, a ${one.seq_a}`, one.seq_b && `, b ${one.seq_b}`), marks(one.expected, one.actual));
}

/** Both texts in two columns, the words that differ marked. */
function marks(a, b) {
  const pieces = words(shown(a), shown(b));
  const column = (mine, tag) => h(`div.side.side-${mine}`, { dir: "auto" },
    pieces.filter((piece) => piece.side === "both" || piece.side === mine)
    .map((piece) => (piece.side === "both" ? piece.text : h(tag, piece.text))));
  return h("div.diff-columns", a ? column("a", "del") : h("div.side.nothing", "nothing"),
    b ? column("b", "ins") : h("div.side.nothing", "nothing"));
}

/** The entries of one turn, as the transcript shows them. */
async function turn(reference, seq) {
  const [id, leaf] = reference.split("@");
  const box = h("div.side-turn");
  if (seq === null) return add(box, h("p.muted", "no such turn"));
  const path = new Path(id, leaf?.includes(":") ? leaf : null, false);
  const [first, last] = await path.load({ first: seq, limit: TURN });
  const around = { path, link: (entry) => sessionLink(id, entry), cardState: () => "preview", setCard: () => undefined,
    showAll: () => undefined, openCall: () => null, canChange: false };
  for (let at = first; at <= last; at++) {
    const entry = path.entry(at);
    if (!entry || (at > seq && entry.turn === entry.seq)) break;
    const row = entryRow(entry, around);
    if (row) box.append(row);
  }
  return box;
}

function add(box, node) { box.append(node); return box; }
