// One session on the page: its head, tree, transcript, composer and inspector, kept true by its events.
// Knows what is looked at and what the session itself stands on; the two are different things.

import { ask, change, sessionPath } from "./api.js";
import { Composer } from "./composer.js";
import { compactDialog, compareDialog, forkDialog, labelDialog, replayDialog, rewindDialog, wait } from "./dialogs.js";
import { button, copy, fill, h, icon, notice, remember, remembered } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Labels, labelsDialog } from "./labels.js";
import { relation, status } from "./listing.js";
import { Live } from "./live.js";
import { go, note, sessionLink } from "./route.js";
import { Transcript } from "./transcript.js";
import { Tree } from "./tree.js";
import { cost, many, parted, place, shown } from "./words.js";

const LOOK_AGAIN = 1000;

export class SessionPage {
  #live = null;
  #draft = null;
  #timer = 0;
  #looking = 0;
  #isClosed = false;

  constructor(id, about, listing) {
    this.id = id;
    this.about = about;
    this.listing = listing;
    this.isClient = about.level === "client";
    this.looking = null;
    this.isPublic = remembered("internal", "on") === "off";
    this.canChange = !this.isClient && !about.copy;
    this.labels = new Labels(id);
    const link = (entry) => sessionLink(id, entry), label = (entry) => this.labels.of(entry);
    const approve = this.canChange ? (call, allow) => this.#approve(call, allow) : null;
    this.transcript = new Transcript({ id, link, label, approve, canChange: this.canChange,
      selected: (entry, isAsked) => this.#selected(entry, isAsked),
      openCall: (entry, index) => this.#openCall(entry, index), uncompact: () => this.#uncompact() });
    this.tree = new Tree({ id, labels: this.labels, look: (at) => this.look(at), jump: () => this.jump(),
      related: (other, seq) => sessionLink(other, seq) });
    this.inspector = new Inspector({ id, about, link, actions: (entry) => this.#actions(entry) });
    this.composer = new Composer({ id, about, approve, changed: () => this.#detailAgain() });
    this.head = h("header.session-head");
    this.banner = h("div.banner", { role: "alert", hidden: true }, icon("error"), "The connection is lost; trying again…");
    this.lookingBar = h("div.looking", { role: "status", hidden: true });
    const middle = h("div.middle", this.head, this.banner, this.lookingBar, this.transcript.element, this.composer.element);
    this.element = h("section.pane.center",
      { "aria-label": "Session", class: remembered("tree-shown", "yes") === "no" || this.isClient ? "no-tree" : "" },
      !this.isClient && this.tree.element, middle);
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#looking);
    this.#live?.close();
    this.transcript.close();
    this.tree.close();
  }

  /** The transcript is asked for at once, as if the entry lay on the present path; mostly it does. */
  async open(at) {
    const wanted = at ? this.#place(at) : null;
    const first = this.transcript.open(null, this.isPublic, wanted?.seq).then(() => wanted, () => null);
    const [detail, branches] = await Promise.all([ask(sessionPath(this.id)), this.#readBranches(), first]);
    if (this.#isClosed) return;
    this.detail = detail;
    this.transcript.again((detail.open_calls ?? []).map((call) => call.seq));
    this.#head();
    const found = await this.#found(at, wanted, branches);
    if (this.#isClosed) return;
    if (branches) this.tree.show(branches, this.looking, this.#parent(), found && placeIn(branches, found));
    this.#told();
    if (found) await this.transcript.to(found.seq);
    else this.transcript.selectEnd();
    this.#listen(detail.session.facts);
    await this.#labelsAgain(); // last: they lie in the journal, which is long where the session is
  }

  /** Where the asked entry is: on the present path, on a branch that was left, or nowhere. */
  async #found(at, wanted, branches) {
    if (!at) return null;
    if (wanted && (!branches || onPath(branches, wanted))) return wanted;
    this.looking = wanted && this.#tailOf(branches, wanted);
    if (!this.looking) notice(`This session has no entry ${at}; this is where it stands`, { kind: "bad" });
    await this.transcript.open(this.looking, this.isPublic, this.looking && wanted.seq);
    return this.looking ? wanted : null;
  }

  /** `3:7`, or `7` on the present path. */
  #place(text) {
    const [branch, seq] = String(text).includes(":") ? String(text).split(":").map(Number) : [null, Number(text)];
    return Number.isInteger(seq) && seq > 0 ? { branch, seq } : null;
  }

  #tailOf(branches, { branch, seq }) {
    const row = branches.branches.find(([name]) => name === branch);
    return row && seq > row[2] && seq <= row[3] ? `${branch}:${row[3]}` : null;
  }

  async #readBranches() { return this.isClient ? null : ask(sessionPath(this.id, "/branches")); }

  #parent() {
    const { parent, session } = this.detail;
    return parent && { id: parent.id, heading: parent.heading, relation: session.relation, seq: session.parent_seq };
  }

  // -- looking --------------------------------------------------------------------------------

  /** Look at an entry, wherever it is; the session stays where it stands. */
  async look({ branch, seq }) {
    const isOnPath = branch === null || this.isClient || this.tree.isOnPath(branch, seq);
    const looking = isOnPath ? null : `${branch}:${this.tree.tail(branch)}`;
    document.body.dataset.pane = "transcript";
    if (looking === this.looking) return this.transcript.to(seq);
    this.looking = looking;
    await this.transcript.open(looking, this.isPublic, seq);
    this.#told();
    await this.transcript.to(seq);
    await this.#branchesAgain();
  }

  async back() {
    this.looking = null;
    await this.transcript.open(null, this.isPublic);
    this.#told();
    this.transcript.toEnd();
    await this.#branchesAgain();
  }

  async setPublic(isPublic) {
    this.isPublic = isPublic;
    remember("internal", isPublic ? "off" : "on");
    await this.transcript.open(this.looking, isPublic, this.transcript.selected?.seq);
    this.#head();
  }

  toLeaf() { return this.looking ? this.back() : this.transcript.toEnd(); }

  async #branchesAgain() {
    const branches = await this.#readBranches();
    if (branches && !this.#isClosed) this.tree.show(branches, this.looking, this.#parent());
  }

  async #labelsAgain() {
    if (this.isClient) return;
    const before = this.labels.size;
    await this.labels.read();
    if (this.#isClosed || !(before || this.labels.size)) return;
    this.tree.relabelled();
    this.transcript.redraw();
  }

  /** The address follows what is selected. */
  #selected(entry, isAsked) {
    if (this.#isClosed) return;
    if (isAsked) note(sessionLink(this.id, entry));
    if (!this.isClient) { this.inspector.show(entry); this.tree.select(entry); }
  }

  // -- what is told ---------------------------------------------------------------------------

  #told() {
    const leaf = place(this.detail.session.leaf ?? { branch: 0, seq: 0 });
    this.lookingBar.hidden = !this.looking;
    if (this.looking) {
      fill(this.lookingBar, icon("fork"), h("span", `Looking at ${this.looking}; the session stands at ${leaf}.`),
        button("undo", "Back to where it stands", () => this.back(), { class: "quiet" }),
        this.canChange && button("check", "Move the session here", () => this.rewind(parted(this.looking)),
          { class: "quiet" }));
    }
    this.composer.show(this.detail, this.looking);
    this.#head();
    this.transcript.draft(this.looking ? null : this.#draft, this.#nextWords());
  }

  #nextWords() {
    const { session } = this.detail;
    if (this.looking || session.status !== "running" || this.#draft?.text || this.#draft?.reasoning) return "";
    return "Working…";
  }

  #head() {
    const { session } = this.detail;
    const heading = h("h1", { dir: "auto", title: shown(session.heading) }, shown(session.heading));
    fill(this.head, h("div.head-line", status(session), heading, relation(session), h("span.head-tools", this.#tools())), h("div.head-facts",
      [session.agent, session.model, many(session.turns ?? 0, "turn"),
        session.totals && cost(session.totals)].filter(Boolean).map((fact) => h("span", shown(fact))),
      Object.entries(session.tags ?? {}).map(([name, value]) => h("span.badge",
        shown(value === "" ? name : `${name}=${value}`))),
      session.error && h("span.badge.is-error", icon("error"),
        shown(String(session.error.message ?? session.error.code ?? session.error)).slice(0, 200)),
      button("copy", session.id, () => copy(session.id), { class: "quiet id", title: "Copy the id" }),
      this.#parent() && h("a", { href: sessionLink(this.#parent().id, this.#parent().seq) },
        `${session.relation} of ${shown(this.detail.parent.heading ?? this.detail.parent.id)}`)));
  }

  #tools() {
    const cards = button("tool", "", () => this.transcript.cycleCards(),
      { title: "Tool calls: line, preview, full (t)", "aria-label": "Tool calls: line, preview, full", class: "quiet" });
    if (this.isClient) return [cards];
    const quiet = (name, words, act) => button(name, "", (event) => act(event.currentTarget),
      { title: words, "aria-label": words, class: `quiet tool-${name}` });
    return [
      quiet("tree", "Show or hide the tree", () => this.#toggleTree()), cards,
      button(this.isPublic ? "shut" : "eye", "", () => this.setPublic(!this.isPublic), { "aria-pressed": String(!this.isPublic),
        "aria-label": this.isPublic ? "Internal: off" : "Internal: on", title: "Internal entries on or off (i)", class: "quiet" }),
      ...(this.canChange ? this.#movers(quiet) : []),
    ];
  }

  #movers(quiet) {
    return [
      quiet("undo", "Undo: rewind to before the latest input", (pressed) => this.#move(pressed, "/undo")),
      quiet("redo", "Redo", (pressed) => this.#move(pressed, "/redo")),
      quiet("compaction", "Compact", () => compactDialog(this.id, this.#leaf(), () => undefined)),
      quiet("compare", "Compare with…",
        () => compareDialog(this.id, this.looking, this.detail.related ?? [], this.detail.parent, go)),
    ];
  }

  #toggleTree() {
    remember("tree-shown", this.element.classList.toggle("no-tree") ? "no" : "yes");
  }

  // -- actions --------------------------------------------------------------------------------

  #leaf() { return place(this.detail.session.leaf); }

  #actions(entry) {
    const at = `${entry.branch}:${entry.seq}`;
    const link = button("link", "Copy link", () => copy(new URL(sessionLink(this.id, entry), location.href).href));
    if (!this.canChange) return [link];
    return [
      button("fork", "Fork here", () => this.fork(entry)),
      button("undo", "Rewind here", () => this.rewind(entry)),
      button("replay", "Replay from here", () => replayDialog(this.id, entry.seq, this.about.models)),
      button("compare", "Compare with…",
        () => compareDialog(this.id, at, this.detail.related ?? [], this.detail.parent, go)),
      button("label", "Label", () => this.label(entry)), link,
    ];
  }

  fork(entry) {
    forkDialog(this.id, `${entry.branch}:${entry.seq}`, this.about.models, ({ session, cut }) => {
      if (cut && cut.at !== cut.asked) notice(`Cut at ${cut.at}: a call and its results stay together`);
      this.listing.refresh();
      go(sessionLink(session.id));
    });
  }

  label(entry) {
    labelDialog(this.id, `${entry.branch}:${entry.seq}`, this.labels.of(entry), () => undefined);
  }

  /** To a place that has a name. */
  jump() {
    if (this.labels.size) labelsDialog(this.labels, (at) => this.look(at));
    else if (!this.isClient) notice("Nothing is labelled here; l labels the selected entry");
  }

  rewind({ branch, seq }) {
    rewindDialog(this.id, `${branch}:${seq}`, this.#leaf(), ({ leaf, cut }) => {
      if (cut && cut.at !== cut.asked) notice(`Cut at ${cut.at}: a call and its results stay together`);
      notice(`The session stands at ${leaf}`, { action: () => this.#move(document.body, "/redo"), label: "Redo" });
      this.looking = null;
      this.#again();
    });
  }

  async #move(pressed, verb) {
    const told = await wait(pressed, () => change("POST", sessionPath(this.id, verb), { leaf: this.#leaf() }));
    if (told) { this.looking = null; await this.#again(); notice(`The session stands at ${told.leaf}`); }
  }

  async #uncompact() {
    await wait(document.body, () => change("POST", sessionPath(this.id, "/uncompact"), { leaf: this.#leaf() }));
  }

  async #approve(call, allow) {
    try {
      await change("POST", sessionPath(this.id, "/approve"),
        { session_id: call.session_id, seq: call.seq, index: call.index, allow, resume: this.about.can_send });
      notice(allow ? `Approved ${call.name}` : `Denied ${call.name}`);
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    }
    await this.#detailAgain();
  }

  #openCall(entry, index) {
    if (this.looking || !this.detail) return null;
    const isHere = (call) => call.seq === entry.seq && call.index === index;
    const found = (this.detail.open_calls ?? []).find(isHere);
    return found ? { ...found, asked: this.detail.waiting.filter((asked) => isHere(asked.task_of ?? asked)) } : null;
  }

  // -- events ---------------------------------------------------------------------------------

  #listen(after) {
    this.#live = new Live(this.id, after, {
      fact: (fact) => this.#fact(fact),
      delta: ({ text = "", reasoning = "" }) => this.#say({ text: (this.#draft?.text ?? "") + text,
        reasoning: (this.#draft?.reasoning ?? "") + reasoning }),
      draft: (draft) => this.#say(draft.text || draft.reasoning ? { text: draft.text ?? "",
        reasoning: draft.reasoning ?? "" } : null),
      run: ({ type, data }) => {
        if (type === "retry") notice(`Trying the model again: ${shown(data?.why ?? "")}`);
        if (type === "warning") notice(shown(data.message), { kind: "bad" });
      },
      resync: () => this.#again(),
      connected: (isConnected) => { this.banner.hidden = isConnected; document.body.dataset.live = isConnected ? "yes"
        : "no"; },
    });
    if (this.detail.draft) this.#say({ text: this.detail.draft, reasoning: "" });
  }

  #say(draft) {
    this.#draft = draft;
    if (!this.looking) this.transcript.draft(draft, this.#nextWords());
  }

  #fact(fact) {
    if (fact.session) {
      this.detail.session = { ...this.detail.session, ...fact.session };
      this.listing.update({ id: this.id, ...fact.session, updated_at: fact.at });
    }
    if (fact.kind === "labelled") this.#labelsAgain();
    const entries = fact.entries ?? [];
    if (entries.some((entry) => entry.role === "assistant") || fact.kind === "turn_ended") {
      this.#draft = null;
      this.transcript.endDraft();
    }
    const isMoved = fact.kind === "moved" || fact.entries_left;
    for (const entry of entries) this.#append(entry);
    if (isMoved) this.#again();
    else this.#told();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#detailAgain(), 80);
  }

  #append(entry) {
    if (!this.looking && !this.transcript.push(entry)) { this.#again(); return; }
    if (!this.isClient && !this.tree.grown(entry)) this.#branchesAgain();
  }

  async #detailAgain() {
    if (this.#isClosed) return;
    const before = this.detail.open_calls ?? [];
    try {
      this.detail = await ask(sessionPath(this.id));
    } catch (problem) {
      if (problem.status) notice(problem.words, { kind: "bad" });
      return;
    }
    if (this.#isClosed) return;
    // A run is told of before the server knows that it drives it: look again, or nobody could stop it.
    const { session, is_running_here: isHere } = this.detail;
    clearTimeout(this.#looking);
    if (session.status === "running" && isHere === false) this.#looking = setTimeout(() => this.#detailAgain(), LOOK_AGAIN);
    this.transcript.again([...new Set([...before, ...(this.detail.open_calls ?? [])].map((call) => call.seq))]);
    this.#told();
  }

  /** Everything anew: the session went elsewhere, or more was missed than can be told. */
  async #again() {
    await this.#detailAgain();
    await this.#branchesAgain();
    await this.#labelsAgain();
    const seq = this.transcript.selected?.seq;
    await this.transcript.open(this.looking, this.isPublic, seq && seq < (this.detail.session.leaf?.seq ?? 0) ? seq : null);
    this.#told();
  }
}

/** `7` on the present path has a branch too. */
function placeIn(branches, { branch, seq }) {
  return `${branch ?? branches.path.find(([, first, last]) => seq >= first && seq <= last)?.[0]}:${seq}`;
}

function onPath(branches, { branch, seq }) {
  return branches.path.some(([name, first, last]) => (branch === null || name === branch) && seq >= first && seq <= last);
}

