// The transcript of a path: one row per entry, one card per tool call, loaded in windows.
// Tracks what is loaded and selected. The host chooses the path and handles actions.

import { fetchEntry, fetchJson, sessionPath } from "./api.js";
import { CallTimes } from "./call_times.js";
import { nextState } from "./tool_cards.js";
import { attempt, h, notice, savePreference, loadPreference } from "./dom.js";
import { draftRow, entryRow, hasCalls } from "./entries.js";
import { Path, partsOf } from "./path.js";
import { isSelected, show, shown } from "./state.js";
import { turnFigures } from "./waterfall.js";
import { VirtualList } from "./virtual_list.js";

const ESTIMATED_HEIGHT = 96, MARGIN = 12, TURNS = 30, FAILED = "failed";

export class Transcript {
  #list;
  #isLoading = false;
  #cards = new Map();
  #visibleRange = [1, 1];
  #draft = null;
  #status = "";
  #frame = 0;
  #calls = new Map(); // branch:seq of an answer → its model call
  #turns = new Map(); // seq of an input → the summary of its turn
  #failures = new Map(); // seq → the model calls that failed behind that entry
  #times = new CallTimes();
  #opening = null; // the path that was opened last, which may not be read yet
  #arrivals = []; // entries that came while it was read, and may be missing from it
  #lastStep = Promise.resolve(); // the latest step by a key

  /** host: {id, link, uncompact, canUncompact(entry), openCall(entry, index), label(entry), tools(entry), canChange, isClient} */
  constructor(host) {
    this.host = host;
    this.cards = loadPreference("cards", "preview");
    this.path = new Path(host.id, null, false);
    this.element = h("div.transcript", { role: "feed", "aria-label": "Transcript", "aria-busy": "true", tabindex: 0 });
    this.#list = new VirtualList(this.element,
      { estimatedHeight: ESTIMATED_HEIGHT, followsEnd: true, draw: (index) => this.#row(index),
      onVisible: (first, last) => this.#loadVisible(first + 1, last + 1) });
    this.element.addEventListener("click", (event) => this.#onClick(event));
  }

  close() { this.#list.close(); cancelAnimationFrame(this.#frame); }

  /** Open a path at `seq` or at its end. */
  async open(leaf, isPublic, seq = null) {
    const path = new Path(this.host.id, leaf, isPublic);
    this.#opening = path;
    this.#arrivals = [];
    await path.load(seq ? { around: seq } : { newest: true });
    if (this.#opening !== path) return; // another path was opened meanwhile
    this.path = path;
    if (leaf === null) for (const entry of this.#arrivals) path.push(entry);
    this.#calls.clear();
    this.#turns.clear();
    this.#failures.clear();
    this.#times = new CallTimes();
    this.#list.reset(path.total + 1);
    this.#hideUnshown(1, path.total);
    this.element.setAttribute("aria-busy", "false");
    if (seq) this.#list.show(this.#index(seq), -60);
    else this.#list.goToEnd();
    this.#keepSelection();
    this.#loadFigures(path, ...path.range(seq ?? path.total));
  }

  /** Load the costs of model calls and turns in a range, and show them on the rows that are drawn. */
  async #loadFigures(path, first, last) {
    if (this.host.isClient || last < first || path.isPublic) return;
    const where = { leaf: path.leaf };
    try {
      const [{ calls, facts }, { turns }] = await Promise.all([
        fetchJson(sessionPath(this.host.id, "/calls"), { ...where, first, last }),
        fetchJson(sessionPath(this.host.id, "/turns"), { ...where, before: last + 1, limit: TURNS }),
      ]);
      if (path !== this.path) return;
      this.addFigures({ calls, facts, turns }, first, last);
    } catch { /* figures are an extra: the transcript is complete without them */ }
  }

  /** Show calls with their costs, failed calls, and turns on the rows between two seqs. */
  addFigures({ calls, facts, turns }, first = 1, last = this.path.total) {
    this.#times.add(facts);
    for (const call of calls) if (call.answer_seq && call.purpose === "answer") this.#calls.set(call.answer_seq, call);
    for (const turn of turns) this.#turns.set(turn.turn, turn);
    const failed = facts.filter(({ kind }) => kind === FAILED);
    for (const { seq } of failed) this.#failures.set(seq, failed.filter((failure) => failure.seq === seq));
    const rows = [...calls.map((call) => call.answer_seq ?? 0), ...facts.map((fact) => fact.seq ?? 0), ...turns.map((turn) => turn.turn)];
    this.redrawRows(rows.filter((seq) => seq >= first && seq <= last).map((seq) => this.#index(seq) + 1));
  }

  /** A fact of the live stream, which may tell when a call waited or ran. */
  noteFact(fact) {
    this.#times.addLive(fact);
    if (fact.kind.startsWith("turn_")) this.redrawRows([...this.#failures.keys()].map((seq) => this.#index(seq) + 1)); // what to do now is another thing
  }

  /** Append an entry; return false if it does not follow the last one. */
  push(entry) {
    if (this.#opening !== this.path) this.#arrivals.push(entry);
    if (this.path.entry(entry.seq)?.entry_id === entry.entry_id && entry.seq <= this.path.total) return true;
    if (!this.path.push(entry)) return false;
    this.#list.grow(this.path.total + 1);
    const answer = entry.role === "tool" ? this.path.answerOf(entry) : null;
    if (this.path.entry(entry.seq) === undefined) this.#list.hide(entry.seq - 1);
    this.#list.changed([entry.seq - 1, this.path.total, ...(answer ? [answer.seq - 1] : [])]);
    if (!shown.now.isExplicit && this.#list.isAtEnd) this.selectEnd();
    return true;
  }

  /** Show the draft of the answer in progress, and a status text. */
  draft(draft, status = this.#status) {
    this.#draft = draft;
    this.#status = status;
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#list.changed([this.path.total]);
    });
  }

  /** The answer arrives as an entry; drop the draft, so that it is not shown twice. */
  endDraft() { this.#draft = null; }

  /** Redraw rows whose calls changed state. */
  redrawRows(seqs) { this.#list.changed(seqs.map((seq) => seq - 1)); }

  /** Redraw all visible rows. */
  redraw() {
    this.#list.changed([...this.element.querySelectorAll("article.entry")].map((row) => Number(row.dataset.index)));
  }

  setAllCards(state) {
    this.cards = state;
    savePreference("cards", state);
    this.#cards.clear();
    this.redraw();
    notice(`Tool calls: ${{ none: "one line", preview: "preview", full: "full" }[state]}`);
  }

  cycleCards() { this.setAllCards(nextState(this.cards)); }

  /** Expand or collapse the cards of the selected entry. */
  cycleSelected() {
    const { selected } = shown.now, entry = selected && this.path.entry(selected.seq);
    if (!entry || !hasCalls(entry)) return;
    const names = entry.role === "tool"
      ? partsOf(entry, "tool_result").map((part) => `${entry.branch}:${entry.seq}:${part.call_id}`)
      : partsOf(entry, "tool_call").map((_, index) => `${entry.branch}:${entry.seq}:${index}`);
    const state = nextState(this.#state(names[0]));
    for (const name of names) this.#cards.set(name, state);
    this.#list.changed([entry.seq - 1]);
  }

  // -- selecting ------------------------------------------------------------------------------

  select(entry, { reveal = true, focus = false, isExplicit = true } = {}) {
    const owner = entry.role === "tool" ? this.path.answerOf(entry) ?? entry : entry;
    show({ selected: owner, isExplicit });
    if (reveal) this.#list.reveal(owner.seq - 1);
    this.markSelected();
    const isTyping = document.activeElement?.matches("input, textarea"); // do not take the focus from an input
    if (focus && !isTyping) this.#list.row(owner.seq - 1)?.focus({ preventScroll: true });
  }

  /** An entry that the opened path does not have gives its selection to the end of the path. */
  #keepSelection() {
    const { selected } = shown.now;
    if (!selected || isSelected(this.path.entry(selected.seq))) return;
    const entry = this.path.isLoaded(selected.seq) && this.#nearest(selected.seq); // hidden on this path
    if (entry?.branch === selected.branch) this.select(entry, { reveal: false });
    else this.selectEnd();
  }

  /** Select the newest entry for the inspector, without changing the URL. */
  selectEnd() {
    const entry = this.#nearest(this.path.total);
    if (entry) this.select(entry, { reveal: false, isExplicit: false });
    else show({ selected: null, isExplicit: false });
  }

  /** Select the next (1) or previous (-1) visible entry. */
  step(by) { return this.#inOrder(() => this.#stepEntry(by)); }

  /** Select the input of the next (1) or previous (-1) turn. */
  stepTurn(by) { return this.#inOrder(() => this.#stepTurn(by)); }

  /** Each step starts from where the last one ended, although keys are pressed faster than the server answers. */
  #inOrder(step) {
    const done = this.#lastStep.then(step);
    this.#lastStep = done.catch(() => {});
    return done;
  }

  async #stepEntry(by) {
    const { selected } = shown.now;
    let seq = selected ? selected.seq + by : this.#visibleRange[by > 0 ? 0 : 1];
    for (; seq >= 1 && seq <= this.path.total; seq += by) {
      if (!this.path.isLoaded(seq)) await this.#load(by > 0 ? { first: seq } : { last: seq });
      const entry = this.path.entry(seq);
      if (entry && !(entry.role === "tool" && this.path.answerOf(entry))) return this.select(entry, { focus: true });
    }
  }

  async #stepTurn(by) {
    const from = shown.now.selected ?? this.path.entry(this.#visibleRange[0]);
    if (!from) return;
    if (by < 0 && from.turn && from.turn < from.seq) return this.goTo(from.turn);
    const seq = by < 0 ? await this.#inputBefore(from.seq) : await this.#inputAfter(from.seq);
    if (seq) await this.goTo(seq);
  }

  async #inputBefore(seq) {
    const reply = await fetchJson(sessionPath(this.host.id, "/turns"), { leaf: this.path.leaf, before: seq, limit: 1 });
    return reply.turns[0]?.turn;
  }

  async #inputAfter(seq) {
    let first = seq + 1;
    while (first <= this.path.total) {
      const reply = await fetchJson(sessionPath(this.host.id, "/outline"),
        { leaf: this.path.leaf, first, kinds: "inputs", limit: 1 });
      if (reply.lines.length) return reply.lines[0].seq;
      if (!reply.has_after) return null;
      first = reply.last + 1;
    }
    return null;
  }

  /** Go to any entry of the path, loading only the entries around it. */
  async goTo(seq) {
    if (!this.path.isLoaded(seq)) await this.#load({ around: seq });
    const entry = this.path.entry(seq) ?? this.#nearest(seq);
    if (entry) this.select(entry, { focus: true });
    if (entry) this.#list.show(this.#index(entry.seq), -60);
    this.markSelected();
  }

  goToEnd() {
    const entry = this.#nearest(this.path.total);
    this.#list.goToEnd();
    if (entry) this.select(entry, { reveal: false, focus: true });
    this.#list.goToEnd();
  }

  #nearest(seq) {
    for (let at = seq; at > 0 && at > seq - 200; at--) if (this.path.entry(at)) return this.path.entry(at);
    return undefined;
  }

  #index(seq) {
    const entry = this.path.entry(seq);
    return (entry?.role === "tool" ? this.path.answerOf(entry)?.seq ?? seq : seq) - 1;
  }

  markSelected() {
    const { selected } = shown.now;
    for (const row of this.element.querySelectorAll("article.selected")) if (Number(row.dataset.seq) !== selected?.seq) unmarkSelected(row);
    const row = selected && this.#list.row(selected.seq - 1);
    if (row) markSelected(row);
  }

  #onClick(event) {
    const row = event.target.closest("article.entry");
    if (!row || event.target.closest("a, input, .entry-tools") || String(getSelection())) return;
    const entry = this.path.entry(Number(row.dataset.seq));
    if (entry) this.select(entry, { reveal: false });
  }

  // -- rows -----------------------------------------------------------------------------------

  #row(index) {
    const seq = index + 1;
    if (seq > this.path.total) return !this.path.total && !this.#draft && !this.#status ? h("p.empty", { role: "article" }, "No entries yet.") : draftRow(this.#draft, this.#status);
    if (!this.path.isLoaded(seq)) return h("div.entry.waiting", { "aria-hidden": "true" }, h("span.muted", seq));
    const entry = this.path.entry(seq);
    const row = entry ? entryRow(entry, this.#renderContext()) : null;
    if (row && isSelected(entry)) markSelected(row);
    return row;
  }

  #renderContext() {
    return {
      path: this.path, link: this.host.link, uncompact: this.host.uncompact, canUncompact: this.host.canUncompact, canChange: this.host.canChange,
      openCall: this.host.openCall, label: this.host.label, tools: this.host.tools,
      call: (entry) => this.#calls.get(entry.seq), times: this.#times,
      turnFigures: (entry) => this.#turns.has(entry.seq) && turnFigures(this.host.id, this.path.leaf, this.#turns.get(entry.seq), this.#times),
      failures: (entry) => [entry, ...this.#resultsOf(entry)].flatMap(({ seq }) => this.#failures.get(seq) ?? []), failureTools: this.host.failureTools,
      tasks: (entry) => this.host.tasks([entry, ...this.#resultsOf(entry)].map(({ seq }) => seq)),
      cardState: (name) => this.#state(name),
      setCard: (name, state, entry) => { this.#cards.set(name, state); this.#list.changed([entry.seq - 1]); },
      showAll: (entry, owner = entry) => this.#showAll(entry, owner),
    };
  }

  /** The entries that are drawn in the row of an answer. */
  #resultsOf(entry) {
    return entry.role === "assistant" ? new Set([...this.path.results(entry).values()].map((match) => match.entry)) : [];
  }

  #state(name) { return this.#cards.get(name) ?? this.cards; }

  #showAll(entry, owner) {
    return attempt(async () => {
      this.path.replace(await fetchEntry(this.host.id, `${entry.branch}:${entry.seq}`));
      this.#list.changed([owner.seq - 1]);
    });
  }

  // -- loading --------------------------------------------------------------------------------

  #loadVisible(first, last) {
    const isUp = first < this.#visibleRange[0];
    this.#visibleRange = [first, last];
    if (this.#isLoading) return;
    const low = first - MARGIN, high = last + MARGIN;
    const seq = isUp ? this.path.lastMissing(low, high) : this.path.missing(low, high);
    if (seq) this.#load(isUp ? { last: seq } : { first: seq });
  }

  async #load(range) {
    this.#isLoading = true;
    const path = this.path;
    try {
      const [first, last] = await path.load(range);
      if (path !== this.path) return;
      this.#hideUnshown(first, last);
      this.#isLoading = false;
      const rows = [];
      for (let seq = Math.max(1, first - 20); seq <= Math.min(path.total, last + 20); seq++) rows.push(seq - 1);
      this.#list.changed(rows);
      this.#loadFigures(path, first, last);
    } catch (problem) {
      notice(problem.text, { kind: "bad" });
    } finally {
      this.#isLoading = false;
    }
  }

  #hideUnshown(first, last) {
    for (let seq = first; seq <= last; seq++) if (this.path.isLoaded(seq) && !this.path.entry(seq)) this.#list.hide(seq - 1);
  }
}

function markSelected(row) {
  row.classList.add("selected");
  row.setAttribute("aria-current", "true");
  row.tabIndex = 0;
}

function unmarkSelected(row) {
  row.classList.remove("selected");
  row.removeAttribute("aria-current");
  row.tabIndex = -1;
}
