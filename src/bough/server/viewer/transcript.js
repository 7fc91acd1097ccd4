// The transcript: a path in windows, one row for each entry, a card for each call.
// Knows what is loaded and what is selected. Which path it is, and what is done with an entry, others say.

import { ask, sessionPath } from "./api.js";
import { nextState } from "./cards.js";
import { h, notice, remember, remembered } from "./dom.js";
import { draftRow, entryRow, hasCalls } from "./entries.js";
import { Path, partsOf } from "./path.js";
import { Windowed } from "./windowed.js";

const GUESS = 96, MARGIN = 12;

export class Transcript {
  #list;
  #isLoading = false;
  #cards = new Map();
  #last = [1, 1];
  #draft = null;
  #words = "";
  #frame = 0;
  #isAsked = false; // somebody selected what is selected; else the newest is

  /** host: {id, link, selected(entry), approve, uncompact, openCall(entry, index), label(entry), canChange} */
  constructor(host) {
    this.host = host;
    this.cards = remembered("cards", "preview");
    this.path = new Path(host.id, null, false);
    this.selected = null;
    this.element = h("div.transcript", { role: "feed", "aria-label": "Transcript", "aria-busy": "true", tabindex: 0 });
    this.#list = new Windowed(this.element,
      { guess: GUESS, follows: true, draw: (index) => this.#row(index),
      seen: (first, last) => this.#seen(first + 1, last + 1) });
    this.element.addEventListener("click", (event) => this.#clicked(event));
  }

  close() { this.#list.close(); cancelAnimationFrame(this.#frame); }

  /** Another path, shown at `seq` or at its end. */
  async open(leaf, isPublic, seq = null) {
    const path = new Path(this.host.id, leaf, isPublic);
    this.opening = path;
    await path.load(seq ? { around: seq } : { newest: true });
    if (this.opening !== path) return; // another one was asked for meanwhile
    this.path = path;
    this.#list.reset(path.of + 1);
    this.#hideUnshown(1, path.of);
    this.element.setAttribute("aria-busy", "false");
    if (seq) this.#list.show(this.#index(seq), -60);
    else this.#list.toEnd();
  }

  /** A new entry of the path; false if it does not follow. */
  push(entry) {
    if (this.path.entry(entry.seq)?.entry_id === entry.entry_id && entry.seq <= this.path.of) return true;
    if (!this.path.push(entry)) return false;
    this.#list.grow(this.path.of + 1);
    const answer = entry.role === "tool" ? this.path.answerOf(entry) : null;
    if (this.path.entry(entry.seq) === undefined) this.#list.hide(entry.seq - 1);
    this.#list.changed([entry.seq - 1, this.path.of, ...(answer ? [answer.seq - 1] : [])]);
    if (!this.#isAsked && this.#list.isAtEnd) this.selectEnd();
    return true;
  }

  /** What an answer in flight has said, and what the session waits for. */
  draft(draft, words = this.#words) {
    this.#draft = draft;
    this.#words = words;
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#list.changed([this.path.of]);
    });
  }

  /** Its answer comes as an entry now; the next painting leaves the draft out, so that nothing is seen twice. */
  endDraft() { this.#draft = null; }

  /** Rows whose calls changed their state. */
  again(seqs) { this.#list.changed(seqs.map((seq) => seq - 1)); }

  /** All that is on screen, drawn anew. */
  redraw() {
    this.#list.changed([...this.element.querySelectorAll("article.entry")].map((row) => Number(row.dataset.index)));
  }

  setAllCards(state) {
    this.cards = state;
    remember("cards", state);
    this.#cards.clear();
    this.redraw();
    notice(`Tool calls: ${{ none: "one line each", preview: "previews", full: "in full" }[state]}`);
  }

  cycleCards() { this.setAllCards(nextState(this.cards)); }

  /** The selected entry's own cards. */
  cycleSelected() {
    const entry = this.selected && this.path.entry(this.selected.seq);
    if (!entry || !hasCalls(entry)) return;
    const names = entry.role === "tool"
      ? partsOf(entry, "tool_result").map((part) => `${entry.branch}:${entry.seq}:${part.call_id}`)
      : partsOf(entry, "tool_call").map((_, index) => `${entry.branch}:${entry.seq}:${index}`);
    const state = nextState(this.#state(names[0]));
    for (const name of names) this.#cards.set(name, state);
    this.#list.changed([entry.seq - 1]);
  }

  // -- selecting ------------------------------------------------------------------------------

  select(entry, { reveal = true, focus = false, isAsked = true } = {}) {
    const owner = entry.role === "tool" ? this.path.answerOf(entry) ?? entry : entry;
    this.selected = owner;
    this.#isAsked = isAsked;
    this.#mark();
    if (reveal) this.#list.reveal(owner.seq - 1);
    this.#mark();
    const isTyping = document.activeElement?.matches("input, textarea"); // what comes late takes nobody's pen away
    if (focus && !isTyping) this.#list.row(owner.seq - 1)?.focus({ preventScroll: true });
    this.host.selected(owner, isAsked);
  }

  /** The newest entry, so that there is something to inspect; nobody asked for it, and the address stays. */
  selectEnd() {
    const entry = this.#near(this.path.of);
    if (entry) this.select(entry, { reveal: false, isAsked: false });
  }

  /** The entry `by` rows further that is shown. */
  async step(by) {
    let seq = this.selected ? this.selected.seq + by : this.#last[by > 0 ? 0 : 1];
    for (; seq >= 1 && seq <= this.path.of; seq += by) {
      if (!this.path.isKnown(seq)) await this.#load(by > 0 ? { first: seq } : { last: seq });
      const entry = this.path.entry(seq);
      if (entry && !(entry.role === "tool" && this.path.answerOf(entry))) return this.select(entry, { focus: true });
    }
  }

  /** The input of the turn before, or behind. */
  async stepTurn(by) {
    const from = this.selected ?? this.path.entry(this.#last[0]);
    if (!from) return;
    if (by < 0 && from.turn && from.turn < from.seq) return this.to(from.turn);
    const seq = by < 0 ? await this.#inputBefore(from.seq) : await this.#inputBehind(from.seq);
    if (seq) await this.to(seq);
  }

  async #inputBefore(seq) {
    const told = await ask(sessionPath(this.host.id, "/turns"), { leaf: this.path.leaf, before: seq, limit: 1 });
    return told.turns[0]?.turn;
  }

  async #inputBehind(seq) {
    let first = seq + 1;
    while (first <= this.path.of) {
      const told = await ask(sessionPath(this.host.id, "/outline"),
        { leaf: this.path.leaf, first, kinds: "inputs", limit: 1 });
      if (told.lines.length) return told.lines[0].seq;
      if (!told.has_after) return null;
      first = told.last + 1;
    }
    return null;
  }

  /** Go to any entry of the path, loading only what lies around it. */
  async to(seq) {
    if (!this.path.isKnown(seq)) await this.#load({ around: seq });
    const entry = this.path.entry(seq) ?? this.#near(seq);
    if (entry) this.select(entry, { focus: true });
    if (entry) this.#list.show(this.#index(entry.seq), -60);
    this.#mark();
  }

  toEnd() {
    const entry = this.#near(this.path.of);
    this.#list.toEnd();
    if (entry) this.select(entry, { reveal: false, focus: true });
    this.#list.toEnd();
  }

  #near(seq) {
    for (let at = seq; at > 0 && at > seq - 200; at--) if (this.path.entry(at)) return this.path.entry(at);
    return undefined;
  }

  #index(seq) {
    const entry = this.path.entry(seq);
    return (entry?.role === "tool" ? this.path.answerOf(entry)?.seq ?? seq : seq) - 1;
  }

  #mark() {
    for (const row of this.element.querySelectorAll("article.selected")) if (Number(row.dataset.seq) !== this.selected?.seq) unmarked(row);
    const row = this.selected && this.#list.row(this.selected.seq - 1);
    if (row) marked(row);
  }

  #clicked(event) {
    const row = event.target.closest("article.entry");
    if (!row || event.target.closest("a, input") || String(getSelection())) return;
    const entry = this.path.entry(Number(row.dataset.seq));
    if (entry) this.select(entry, { reveal: false });
  }

  // -- rows -----------------------------------------------------------------------------------

  #row(index) {
    const seq = index + 1;
    if (seq > this.path.of) return draftRow(this.#draft, this.#words);
    if (!this.path.isKnown(seq)) return h("div.entry.waiting", { "aria-hidden": "true" }, h("span.muted", seq));
    const entry = this.path.entry(seq);
    const row = entry ? entryRow(entry, this.#around()) : null;
    if (row && this.selected?.seq === seq) marked(row);
    return row;
  }

  #around() {
    return {
      path: this.path, link: this.host.link, approve: this.host.approve, uncompact: this.host.uncompact, canChange: this.host.canChange,
      openCall: this.host.openCall, label: this.host.label,
      cardState: (name) => this.#state(name),
      setCard: (name, state, entry) => { this.#cards.set(name, state); this.#list.changed([entry.seq - 1]); },
      showAll: (entry, owner = entry) => this.#showAll(entry, owner),
    };
  }

  #state(name) { return this.#cards.get(name) ?? this.cards; }

  async #showAll(entry, owner) {
    try {
      const told = await ask(sessionPath(this.host.id, `/entries/${entry.branch}:${entry.seq}`));
      this.path.replace(told.entry);
      this.#list.changed([owner.seq - 1]);
      if (told.entry.cut) notice(`${told.entry.cut.toLocaleString("en")} characters are still left out; the raw entry has them`);
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    }
  }

  // -- loading what is seen -------------------------------------------------------------------

  #seen(first, last) {
    const isUp = first < this.#last[0];
    this.#last = [first, last];
    if (this.#isLoading) return;
    const low = first - MARGIN, high = last + MARGIN;
    const seq = isUp ? this.path.lastMissing(low, high) : this.path.missing(low, high);
    if (seq) this.#load(isUp ? { last: seq } : { first: seq });
  }

  async #load(where) {
    this.#isLoading = true;
    const path = this.path;
    try {
      const [first, last] = await path.load(where);
      if (path !== this.path) return;
      this.#hideUnshown(first, last);
      this.#isLoading = false;
      const rows = [];
      for (let seq = Math.max(1, first - 20); seq <= Math.min(path.of, last + 20); seq++) rows.push(seq - 1);
      this.#list.changed(rows);
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    } finally {
      this.#isLoading = false;
    }
  }

  #hideUnshown(first, last) {
    for (let seq = first; seq <= last; seq++) if (this.path.isKnown(seq) && !this.path.entry(seq)) this.#list.hide(seq - 1);
  }
}

function marked(row) {
  row.classList.add("selected");
  row.setAttribute("aria-current", "true");
  row.tabIndex = 0;
}

function unmarked(row) {
  row.classList.remove("selected");
  row.removeAttribute("aria-current");
  row.tabIndex = -1;
}
