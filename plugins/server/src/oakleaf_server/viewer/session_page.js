// The page of one session: head, tree, transcript, composer and inspector, updated by live events.
// The viewed path and the session's current leaf may differ.

import { fetchJson, sendJson, sessionPath } from "./api.js";
import { Composer } from "./composer.js";
import { compactDialog, compareDialog, exportDialog, forkDialog, labelDialog, replayDialog, rewindDialog, noticeLeftBehind, sendApproval, whileDisabled } from "./dialogs.js";
import { button, copy, fill, h, icon, iconButton, notice, savePreference, loadPreference } from "./dom.js";
import { FindBar } from "./find_bar.js";
import { Inspector } from "./inspector.js";
import { Labels, labelsDialog } from "./labels.js";
import { relationBadge, statusDot } from "./session_list.js";
import { togglePane } from "./layout.js";
import { Live } from "./live.js";
import { menu } from "./menu.js";
import { navigate, replaceUrl, sessionLink } from "./route.js";
import { partsOf } from "./path.js";
import { promptDialog } from "./prompt_view.js";
import { show, shown } from "./state.js";
import { showWaiting } from "./title.js";
import { Transcript } from "./transcript.js";
import { Tree } from "./tree.js";
import { cost, firstLine, modelName, plural, parsePosition, formatPosition, printable } from "./format.js";

const RECHECK_MS = 1000, BURST_MS = 150, HIDDEN_MS = 10_000;

export class SessionPage {
  #live = null;
  #draft = null;
  #timer = 0;
  #drawnHead = "";
  #firstNew = null; // the first entry whose figures are not read yet
  #recheckTimer = 0;
  #detailRequests = 0;
  #isClosed = false;

  constructor(id, about, listing) {
    this.id = id;
    this.about = about;
    this.listing = listing;
    this.isClient = about.level === "client";
    show({ session: id, viewing: null, selected: null, isExplicit: false });
    this.isPublic = loadPreference("internal", "on") === "off";
    this.canChange = !this.isClient && !about.copy;
    this.labels = new Labels(id);
    const link = (entry) => sessionLink(id, entry), label = (entry) => this.labels.of(entry);
    const approve = this.canChange ? (call, allow) => this.#approve(call, allow) : null;
    this.transcript = new Transcript({ id, link, label, canChange: this.canChange, isClient: this.isClient, tools: this.isClient ? null : (entry) => this.#entryTools(entry),
      tasks: (seqs) => this.#tasks(seqs), failureTools: (failure) => this.#failureTools(failure), openCall: (entry, index) => this.#openCall(entry, index), uncompact: () => this.#uncompact(),
      canUncompact: (entry) => this.canChange && !shown.now.viewing && this.detail?.active_compaction === entry.seq });
    this.tree = new Tree({ id, labels: this.labels, view: (at) => this.view(at), jump: () => this.jump(),
      related: (other, seq) => sessionLink(other, seq) });
    this.inspector = new Inspector({ id, about, link, actions: (entry) => this.#actions(entry) });
    this.composer = new Composer({ id, about, approve, changed: () => this.#reloadDetail() });
    this.title = h("span.head-title");
    this.headTools = h("span.head-tools");
    this.headFacts = h("div.head-facts");
    this.head = h("header.session-head", h("div.head-line", this.title, this.headTools), this.headFacts);
    this.banner = h("div.banner", { role: "alert", hidden: true }, icon("error"), "Connection lost. Reconnecting…");
    this.find = new FindBar({ id, element: this.transcript.element, goTo: (hit) => this.view(hit) });
    this.viewingBar = h("div.viewing-bar", { role: "status", hidden: true });
    this.announcer = h("div.unseen", { role: "status" }); // what a screen reader reads out of what happens
    const middle = h("main.middle", { id: "main", tabindex: -1, "aria-label": "Session" }, this.announcer, this.head, this.banner, this.viewingBar, this.find.element, this.transcript.element, this.composer.element);
    this.element = h("div.pane.center",
      { class: this.isClient ? "no-tree" : "" }, !this.isClient && this.tree.element, middle);
    this.watch = setInterval(() => { if (document.visibilityState === "hidden") this.#reloadDetail(); }, HIDDEN_MS); // its title says what waits
    this.stopListening = shown.on((now) => this.#stateChanged(now));
  }

  close() {
    this.#isClosed = true;
    this.stopListening();
    clearInterval(this.watch);
    clearTimeout(this.#timer);
    clearTimeout(this.#recheckTimer);
    this.#live?.close();
    this.listing.onTrashChange = () => undefined;
    this.transcript.close();
    this.tree.close();
  }

  /** Load the transcript at once, assuming that the entry is on the current path; usually it is. */
  async open(at) {
    const requested = at ? this.#place(at) : null;
    const first = this.transcript.open(null, this.isPublic, requested?.seq).then(() => requested, () => null);
    const [detail, branches] = await Promise.all([fetchJson(sessionPath(this.id)), this.#readBranches(), first]);
    if (this.#isClosed) return;
    this.detail = detail;
    fill(this.headTools, this.#tools()); // not earlier: the actions need the detail
    this.transcript.redrawRows([...changedRows({}, detail), detail.session.leaf?.seq ?? 0]); // a failure behind the leaf has a next step
    this.#head();
    const position = await this.#resolvePosition(at, requested, branches);
    if (this.#isClosed) return;
    if (branches) this.tree.show(branches, this.#parent(), position && placeIn(branches, position));
    this.#render();
    if (position) await this.transcript.goTo(position.seq);
    else this.transcript.selectEnd();
    this.listing.onTrashChange = () => this.#reloadDetail();
    this.#listen(Math.min(detail.session.facts, this.transcript.path.facts)); // they were read at the same time: one may lack what the other has
    await this.#reloadLabels(); // last: labels are read from the journal, which is long for long sessions
  }

  /** Find the requested entry on the current path or on another branch; null if it does not exist. */
  async #resolvePosition(at, requested, branches) {
    if (!at) return null;
    if (requested && (!branches || onPath(branches, requested))) return requested;
    const viewing = requested && this.#tailOf(branches, requested);
    if (!viewing) notice(`This session has no entry ${at}; showing its current leaf`, { kind: "bad" });
    show({ viewing });
    await this.transcript.open(viewing, this.isPublic, viewing && requested.seq);
    return viewing ? requested : null;
  }

  /** `3:7`, or `7` on the current path. */
  #place(text) {
    const [branch, seq] = String(text).includes(":") ? String(text).split(":").map(Number) : [null, Number(text)];
    return Number.isInteger(seq) && seq > 0 ? { branch, seq } : null;
  }

  #tailOf(branches, { branch, seq }) {
    const row = branches.branches.find(([name]) => name === branch);
    return row && seq > row[2] && seq <= row[3] ? `${branch}:${row[3]}` : null;
  }

  async #readBranches() { return this.isClient ? null : fetchJson(sessionPath(this.id, "/branches")); }

  #parent() {
    const { parent, session } = this.detail;
    return parent && { id: parent.id, heading: parent.heading, relation: session.relation, seq: session.parent_seq };
  }

  // -- viewing --------------------------------------------------------------------------------

  /** View an entry on any branch without moving the session's leaf. */
  async view({ branch, seq }) {
    const isOnPath = branch === null || this.isClient || this.tree.isOnPath(branch, seq);
    const viewing = isOnPath ? null : `${branch}:${this.tree.tail(branch)}`;
    show({ pane: "transcript" });
    if (viewing !== shown.now.viewing) await this.#openPath(viewing, seq);
    await this.transcript.goTo(seq);
  }

  /** Open the path to `viewing`, or the current path. */
  async #openPath(viewing, seq = null) {
    show({ viewing, selected: null, isExplicit: false });
    this.tree.viewed();
    await this.transcript.open(viewing, this.isPublic, seq);
    this.#render();
  }

  async back() {
    await this.#openPath(null);
    this.transcript.goToEnd();
  }

  async setPublic(isPublic) {
    this.isPublic = isPublic;
    savePreference("internal", isPublic ? "off" : "on");
    await this.transcript.open(shown.now.viewing, isPublic, shown.now.selected?.seq);
    if (this.detail) fill(this.headTools, this.#tools());
  }

  toLeaf() { return shown.now.viewing ? this.back() : this.transcript.goToEnd(); }

  async #reloadBranches() {
    const branches = await this.#readBranches();
    if (branches && !this.#isClosed) this.tree.show(branches, this.#parent());
  }

  async #reloadLabels() {
    if (this.isClient) return;
    const before = this.labels.size;
    await this.labels.read();
    if (this.#isClosed || !(before || this.labels.size)) return;
    this.tree.labelsChanged();
    this.transcript.redraw();
  }

  /** Draw the state: the address, the details, and the marked rows of tree and transcript. */
  #stateChanged({ session, selected, isExplicit }) {
    if (session !== this.id) return;
    if (selected) replaceUrl(sessionLink(this.id, isExplicit ? selected : null));
    this.transcript.markSelected();
    if (this.isClient) return;
    this.inspector.show();
    this.tree.markSelected();
  }

  // -- rendering ------------------------------------------------------------------------------

  #render() {
    const leaf = formatPosition(this.detail.session.leaf ?? { branch: 0, seq: 0 });
    const { viewing } = shown.now;
    this.viewingBar.hidden = !viewing;
    if (viewing) {
      fill(this.viewingBar, icon("fork"), h("span", `Viewing ${viewing}; the current leaf is ${leaf}.`),
        button("undo", "Back to the current leaf", () => this.back(), { class: "quiet" }),
        this.canChange && button("check", "Rewind the session here", () => this.rewind(parsePosition(viewing)),
          { class: "quiet" }));
    }
    this.composer.show(this.detail, viewing);
    this.#head();
    this.transcript.draft(viewing ? null : this.#draft, this.#progressText());
  }

  #progressText() {
    const { session } = this.detail;
    if (shown.now.viewing || session.status !== "running" || this.detail.is_held === false || this.#draft?.text || this.#draft?.reasoning) return "";
    return "Working…";
  }

  #head() {
    const { session } = this.detail;
    showWaiting(`${printable(session.heading)} · Oakleaf`, this.detail.pending_approvals?.length ?? 0);
    const key = JSON.stringify([session.heading, session.status, session.relation, session.agent, session.model, session.turns, session.totals, session.tags, session.error, this.#parent()]);
    if (key === this.#drawnHead) return; // what did not change keeps its focus
    this.#drawnHead = key;
    const heading = h("h1", { dir: "auto", title: printable(session.heading) }, printable(session.heading));
    fill(this.title, statusDot(session), heading, relationBadge(session));
    fill(this.headFacts,
      [session.agent, session.model && modelName(session.model), plural(session.turns ?? 0, "turn"),
        session.totals && cost(session.totals)].filter(Boolean).map((fact) => h("span", { title: session.model && fact === modelName(session.model) ? printable(session.model) : null }, printable(fact))),
      Object.entries(session.tags ?? {}).map(([name, value]) => h("span.badge",
        printable(value === "" ? name : `${name}=${value}`))),
      session.error && h("span.badge.is-error", icon("error"),
        printable(String(session.error.message ?? session.error.code ?? session.error)).slice(0, 200)),
      button("copy", session.id, () => copy(session.id), { class: "quiet id", title: "Copy the id" }),
      this.#parent() && h("a", { href: sessionLink(this.#parent().id, this.#parent().seq) },
        `${session.relation} of ${printable(this.detail.parent.heading ?? this.detail.parent.id)}`));
  }

  #tools() {
    const cards = "Tool calls: one line, preview, full";
    if (this.isClient) return [iconButton("tool", cards, () => this.transcript.cycleCards(), { title: `${cards} (t)` })];
    const tool = (name, word, label, act) => button(name, word, act, { class: `quiet tool-${name}`, title: label, "aria-label": label });
    const item = (name, label, act, props = {}) => button(name, label, (event) => act(event.currentTarget), { role: "menuitem", class: `tool-${name}`, ...props });
    return [
      tool("side", "Details", "Show or hide the details", () => togglePane("inspector")),
      this.canChange && [tool("compare", "Compare", "Compare with…", () => this.compare(shown.now.viewing)), tool("import", "Export", "Export or share", () => exportDialog(this.id))],
      menu("More", [item("tree", "Show or hide the tree", () => togglePane("tree")), item("tool", cards, () => this.transcript.cycleCards(), { title: `${cards} (t)` }),
        item(this.isPublic ? "shut" : "eye", this.isPublic ? "Internal entries hidden" : "Internal entries shown", () => this.setPublic(!this.isPublic),
          { role: "menuitemcheckbox", "aria-checked": String(!this.isPublic), title: "Show or hide internal entries (i)" }),
        this.canChange && [item("undo", "Undo the latest turn", (pressed) => this.#move(pressed, "/undo")), item("redo", "Redo", (pressed) => this.#move(pressed, "/redo")),
          item("compaction", "Compact", () => compactDialog(this.id, this.#leaf(), () => undefined))]]),
    ];
  }

  /** The buttons on a message that appear with the pointer or the focus. */
  #entryTools(entry) {
    const small = (name, label, act) => iconButton(name, label, (event) => { event.stopPropagation(); act(); });
    const text = partsOf(entry, "text").map((part) => part.text).join("\n\n"), isInput = entry.turn > 0 && entry.turn === entry.seq;
    return [
      entry.role === "assistant" && small("eye", "What the model saw", () => this.prompt(entry)),
      this.canChange && isInput && this.about.can_send && !shown.now.viewing && small("pencil", "Edit and resend", () => this.composer.edit(text, entry, this.#leaf())),
      this.canChange && small("fork", "Fork at this entry", () => this.fork(entry)),
      text && small("copy", "Copy text", () => copy(text)),
      small("link", "Copy a link", () => copy(new URL(sessionLink(this.id, entry), location.href).href)),
    ];
  }

  /** The tasks that the calls at these entries started. */
  #tasks(seqs) {
    return (this.detail?.related ?? []).filter((other) => other.relation === "task" && seqs.includes(other.parent_seq));
  }

  /** What to do about the failure that ended the run: nothing, once the turn went on or was taken back. */
  #failureTools({ seq }) {
    if (shown.now.viewing || !this.detail || this.detail.session.status !== "failed" || seq !== this.detail.session.leaf.seq) return null;
    const command = `oakleaf resume ${this.id}`;
    return this.canChange && this.about.can_send && !this.detail.responder?.problem ? "Resume calls the model again. Discard this turn takes its input back." : ["Call the model again: ", h("code", command)];
  }

  // -- actions --------------------------------------------------------------------------------

  #leaf() { return formatPosition(this.detail.session.leaf); }

  #actions(entry) {
    const at = `${entry.branch}:${entry.seq}`;
    const link = button("link", "Copy link", () => copy(new URL(sessionLink(this.id, entry), location.href).href));
    if (!this.canChange) return [link];
    return [
      button("fork", "Fork here", () => this.fork(entry)),
      button("undo", "Rewind here", () => this.rewind(entry)),
      button("replay", "Replay from here", () => replayDialog(this.id, entry.seq, this.about.models)),
      button("compare", "Compare with…", () => this.compare(at)),
      button("label", "Label", () => this.label(entry)), link,
    ];
  }

  fork(entry) {
    forkDialog(this.id, `${entry.branch}:${entry.seq}`, this.about.models, ({ session, cut, left_behind: left }) => {
      noticeMovedCut(cut);
      noticeLeftBehind(left);
      this.listing.refresh();
      navigate(sessionLink(session.id));
    });
  }

  prompt(entry) { promptDialog({ id: this.id, about: this.about }, entry); }

  compare(at) { compareDialog(this.detail.session, at, this.detail.related ?? [], this.detail.parent); }

  label(entry) {
    labelDialog(this.id, `${entry.branch}:${entry.seq}`, this.labels.of(entry), () => undefined);
  }

  /** Choose a label and view its entry. */
  jump() {
    if (this.labels.size) labelsDialog(this.labels, (at) => this.view(at));
    else if (!this.isClient) notice("No labels yet. Press l to label the selected entry.");
  }

  rewind({ branch, seq }) {
    rewindDialog(this.id, `${branch}:${seq}`, this.#leaf(), ({ leaf, cut, left_behind: left }) => {
      noticeMovedCut(cut);
      noticeLeftBehind(left);
      notice(`The current leaf is ${leaf}`, { action: () => this.#move(document.body, "/redo"), label: "Redo" });
      this.#reload(null);
    });
  }

  async #move(pressed, verb) {
    const reply = await whileDisabled(pressed, () => sendJson("POST", sessionPath(this.id, verb), { leaf: this.#leaf() }));
    if (reply) { await this.#reload(null); notice(`The current leaf is ${reply.leaf}`); noticeLeftBehind(reply.left_behind); }
  }

  async #uncompact() {
    await whileDisabled(document.body, () => sendJson("POST", sessionPath(this.id, "/uncompact"), { leaf: this.#leaf() }));
  }

  /** Approve or deny the first call that waits. */
  decide(allow) {
    const [call] = this.detail?.pending_approvals ?? [];
    if (call && this.canChange) this.#approve(call, allow);
  }

  async #approve(call, allow) {
    await sendApproval(this.id, call, allow);
    await this.#reloadDetail();
  }

  #openCall(entry, index) {
    if (shown.now.viewing || !this.detail) return null;
    const isHere = (call) => call.seq === entry.seq && call.index === index;
    const position = (this.detail.open_tool_calls ?? []).find(isHere);
    return position ?? null;
  }

  // -- events ---------------------------------------------------------------------------------

  #listen(after) {
    this.#live = new Live(this.id, after, {
      fact: (fact) => this.#fact(fact),
      delta: ({ text = "", reasoning = "" }) => this.#setDraft({ text: (this.#draft?.text ?? "") + text,
        reasoning: (this.#draft?.reasoning ?? "") + reasoning }),
      draft: (draft) => this.#setDraft(draft.text || draft.reasoning ? { text: draft.text ?? "",
        reasoning: draft.reasoning ?? "" } : null),
      retry: ({ why = "" }) => notice(`Retrying the model: ${printable(why)}`),
      warning: ({ message }) => notice(printable(message), { kind: "bad" }),
      resync: () => this.#reload(), gone: () => this.#gone(),
      inTrash: (isInTrash) => this.#inTrash(isInTrash),
      connected: (isConnected) => this.#connected(isConnected),
    });
    if (this.detail.draft) this.#setDraft({ text: this.detail.draft, reasoning: "" });
  }

  /** After a lost connection, load what could not be loaded meanwhile. */
  #connected(isConnected) {
    const wasLost = !this.banner.hidden;
    this.banner.hidden = isConnected;
    document.body.dataset.live = isConnected ? "yes" : "no";
    if (isConnected && (wasLost || this.detail.session.trashed_at)) this.#reloadDetail(); // a stream says only that it is in the trash
    if (!isConnected || !wasLost) return;
    this.#reloadBranches().catch(() => undefined); // lost again
    this.transcript.redraw();
  }

  #inTrash(isInTrash) {
    if (isInTrash === Boolean(this.detail.session.trashed_at)) return;
    this.#reloadDetail();
    this.listing.refresh();
  }

  /** The session was purged, or is another owner's now: what is on the page can still be read and copied. */
  #gone() {
    fill(this.banner, icon("error"), this.isClient ? "This session is not available any more." : "This session was deleted permanently. What you see is not stored any more.");
    this.banner.hidden = false;
    this.composer.element.hidden = true;
    this.listing.refresh();
  }

  #setDraft(draft) {
    this.#draft = draft;
    if (!shown.now.viewing) this.transcript.draft(draft, this.#progressText());
  }

  #fact(fact) {
    if (fact.session) {
      this.detail.session = { ...this.detail.session, ...fact.session };
      this.listing.update({ id: this.id, ...fact.session, updated_at: fact.at, active_at: fact.at });
    }
    if (fact.kind === "labelled") this.#reloadLabels();
    this.transcript.noteFact(fact);
    const entries = fact.entries ?? [];
    const isLeft = fact.kind === "turn_left" && fact.data?.status !== "waiting";
    if (isLeft || entries.some((entry) => entry.role === "assistant") || ["turn_ended", "turn_refused"].includes(fact.kind)) {
      this.#draft = null;
      this.transcript.endDraft();
    }
    const isMoved = fact.kind === "moved" || fact.omitted_entries;
    for (const entry of entries) this.#append(entry);
    this.#announce(fact.kind, entries);
    if (isMoved) { this.#reload(); return; }
    this.#render();
    this.#firstNew ??= Math.max(1, entries[0]?.seq ?? this.detail.session.leaf?.seq ?? 1);
    this.#timer ||= setTimeout(() => this.#reloadDetail(this.#firstNew), BURST_MS);
  }

  #announce(kind, entries) {
    const answer = entries.findLast((entry) => entry.role === "assistant" && !entry.internal);
    if (answer) this.announcer.textContent = `Assistant: ${firstLine(answer.text ?? partsOf(answer, "text").map((part) => part.text).join(" "))}`;
    else if (kind === "approval_requested") this.announcer.textContent = "A tool call needs approval.";
  }

  #append(entry) {
    if (!shown.now.viewing && !this.transcript.push(entry)) { this.#reload(); return; }
    if (!this.isClient && !this.tree.appendEntry(entry)) this.#reloadBranches();
  }

  /** One request for all that happened in a burst: the session, and the figures of the entries from `figures` on. */
  async #reloadDetail(figures = null) {
    if (this.#isClosed) return;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#firstNew = null;
    const number = ++this.#detailRequests;
    let detail;
    try {
      detail = await fetchJson(sessionPath(this.id), { figures: this.isClient ? null : figures });
    } catch (problem) {
      if (problem.status && number === this.#detailRequests) notice(problem.text, { kind: "bad" });
      return;
    }
    if (this.#isClosed || number !== this.#detailRequests) return; // a newer request knows more
    const rows = changedRows(this.detail, detail);
    if (detail.session.heading !== this.detail.session.heading) this.listing.update({ id: this.id, heading: detail.session.heading });
    this.detail = detail;
    // The first event of a run may arrive before the server registers the run: check again, or Stop stays hidden.
    const { session, is_running_here: isHere } = this.detail;
    clearTimeout(this.#recheckTimer);
    if (session.status === "running" && isHere === false) this.#recheckTimer = setTimeout(() => this.#reloadDetail(), RECHECK_MS);
    this.transcript.redrawRows(rows);
    if (detail.figures && !shown.now.viewing && !this.isPublic) this.#addFigures(detail.figures);
    this.#render();
  }

  #addFigures(figures) {
    this.transcript.addFigures(figures);
    for (const failure of figures.facts) if (failure.kind === "failed") this.tree.noteFailure(formatPosition(failure));
  }

  /** Reload everything: the leaf moved, or too many facts were missed. */
  async #reload(viewing = shown.now.viewing) {
    show({ viewing });
    await this.#reloadDetail();
    await this.#reloadBranches();
    await this.#reloadLabels();
    const seq = shown.now.selected?.seq;
    await this.transcript.open(viewing, this.isPublic, seq && seq < (this.detail.session.leaf?.seq ?? 0) ? seq : null);
    this.#render();
  }
}

function noticeMovedCut(cut) {
  if (cut && cut.at !== cut.requested) notice(`Moved to entry ${cut.at}: a tool call and its results stay together`);
}

/** The entries to draw again when the session's detail changes: open calls, and compactions that can or cannot be undone any more. */
function changedRows(before, after) {
  const calls = [before, after].flatMap((detail) => detail.open_tool_calls ?? []).map((call) => call.seq);
  const compactions = [before.active_compaction, after.active_compaction].filter((seq, at, pair) => seq && seq !== pair[1 - at]);
  return [...new Set([...calls, ...compactions])];
}

/** The full position of an entry on the current path. */
function placeIn(branches, { branch, seq }) {
  return `${branch ?? branches.path.find(([, first, last]) => seq >= first && seq <= last)?.[0]}:${seq}`;
}

function onPath(branches, { branch, seq }) {
  return branches.path.some(([name, first, last]) => (branch === null || name === branch) && seq >= first && seq <= last);
}

