// The tree pane: entries as lines, folded side branches, the current leaf, and related sessions.
// All branches are loaded at once as numbers; lines are loaded when visible. Clicking views an entry and moves nothing.

import { fetchJson, sessionPath } from "./api.js";
import { TreeRows, ENTRY, PARENT, RELATED, SIDE } from "./tree_rows.js";
import { failures, isListed, outlineLine } from "./entry_lines.js";
import { button, choice, fill, h, icon, loadPreference, markChosen, savePreference } from "./dom.js";
import { labelBadge } from "./labels.js";
import { formatPosition, parsePosition, plural, printable } from "./format.js";
import { splitter } from "./layout.js";
import { Minimap } from "./minimap.js";
import { rove } from "./roving.js";
import { isSelected, shown } from "./state.js";
import { VirtualList } from "./virtual_list.js";

const ROW = 26, PAGE = 300, LABELS = 150, DEEPEST = 8, HUES = 5, ERROR_STEP = 5_000, ERROR_ROUNDS = 4, SAME_MAP = 1.01;
const FILTERS = [["inputs", "Inputs"], ["messages", "Messages"], ["all", "All"]];
const FLAG_ICONS = { error: "error", unknown: "unknown", denied: "denied", interrupted: "interrupted", dry_run: "dry_run",
  cancelled: "denied", cut_off: "error" };

export class Tree {
  #list;
  #open = new Set();
  #slots = [];
  #lines = new Map(); // branch:seq → line, or null if the filter hides it
  #sideTexts = new Map();
  #isLoading = false;
  #trunk = [];
  #places = new Map(); // branch:seq → its slot
  #sides = []; // the slots of side branches
  #mapped = 0; // how many slots the minimap was drawn for
  #errors = new Set(); // branch:seq of entries with an error
  #errorsOf = "";

  /** host: {id, labels, view({branch, seq}), related(id, seq), jump()}. Shows the current path straight down, branches beside it. */
  constructor(host) {
    this.host = host;
    this.branches = null;
    this.kinds = loadPreference("tree", "messages");
    this.rows = h("div.tree-rows", { role: "tree", "aria-label": "Entries", tabindex: 0 });
    this.filters = choice("Lines shown", FILTERS, this.kinds, (kind) => this.filter(kind));
    this.summary = h("span.muted");
    this.jump = button("label", "", () => host.jump(), { class: "quiet", hidden: true, title: "Jump to a label (b)" });
    this.errorButton = button("error", "", () => this.stepError(1), { class: "quiet errors-button", hidden: true });
    this.minimap = new Minimap(this.rows);
    this.element = h("section.tree", { "aria-label": "Tree" },
      h("header.bar", this.summary, this.jump, this.errorButton, h("span.grow"), this.filters), h("div.tree-body", this.rows, this.minimap.element), splitter("tree", "the tree"));
    this.#list = new VirtualList(this.rows,
      { estimatedHeight: ROW, draw: (index) => this.#row(index), onVisible: (first, last) => this.#loadVisible(first, last) });
    rove(this.rows, this.#list, { start: () => this.#selectedIndex });
    this.rows.addEventListener("keydown", (event) => this.#key(event));
  }

  close() { this.#list.close(); }

  /** Show the reply of /branches, and scroll to `place`. */
  show(reply, parent, place = null) {
    const isFirst = !this.branches;
    this.branches = new TreeRows(reply);
    this.parent = parent;
    this.#trunk = this.branches.ranges(parsePosition(reply.leaf));
    this.summary.textContent = plural(this.branches.size, "branch", "branches");
    this.#unfoldViewed();
    this.#rebuild(place ?? (isFirst ? this.#viewedEnd : null));
    if (this.#errorsOf !== this.#viewedEnd) this.#loadErrors();
  }

  /** Another branch is viewed: the tree keeps its shape, and unfolds that branch. */
  viewed() {
    if (!this.branches) return;
    this.#unfoldViewed();
    this.#rebuild();
    this.#loadErrors();
  }

  get #viewedEnd() { return shown.now.viewing ?? this.branches.leaf; }

  #unfoldViewed() {
    const ends = new Map(this.#trunk.map(([branch, , last]) => [branch, last]));
    for (const [branch, first, last] of this.branches.ranges(parsePosition(this.#viewedEnd))) {
      const end = ends.get(branch);
      if (last >= first && !(last <= end)) this.#open.add(`${branch}:${end === undefined ? first : end + 1}`);
    }
  }

  /** View the next (1) or previous (-1) error after the selected entry, starting again at the other end. */
  stepError(by) {
    const places = [...this.#errors].map(parsePosition).sort((a, b) => a.seq - b.seq);
    if (!places.length) return;
    const here = shown.now.selected?.seq ?? 0, ordered = by > 0 ? places : places.reverse();
    this.host.view(ordered.find(({ seq }) => (by > 0 ? seq > here : seq < here)) ?? ordered[0]);
  }

  /** Find the errors of the viewed path, newest part first, a bounded number of entries. */
  async #loadErrors() {
    const leaf = this.#viewedEnd, { seq: end } = parsePosition(leaf), errors = new Set();
    this.#errorsOf = leaf;
    this.#errors = errors;
    for (let last = end, round = 0; last > 0 && round < ERROR_ROUNDS; last -= ERROR_STEP, round++) {
      const first = Math.max(1, last - ERROR_STEP + 1);
      const reply = await fetchJson(sessionPath(this.host.id, "/outline"), { leaf, first, last, kinds: "errors" }).catch(() => null);
      if (!reply || this.#errors !== errors) return;
      for (const line of reply.lines) errors.add(`${line.branch}:${line.seq}`);
      this.#showErrors();
    }
  }

  #showErrors() {
    const { size } = this.#errors;
    this.errorButton.hidden = !size;
    const most = ERROR_ROUNDS * ERROR_STEP, where = parsePosition(this.#viewedEnd).seq > most ? ` in the newest ${most.toLocaleString("en")} entries` : "";
    this.errorButton.setAttribute("aria-label", `Go to one of ${plural(size, "error")}${where}`);
    this.errorButton.title = `Next error${where} (e)`;
    fill(this.errorButton, icon("error"), h("span", size));
    this.#map();
  }

  /** Draw the minimap. */
  #map() {
    const marks = this.#sides.map((index) => ({ share: this.#list.share(index), kind: "side" }));
    const add = (kind, place) => { if (this.#places.has(place)) marks.push({ share: this.#list.share(this.#places.get(place)), kind }); };
    for (const place of this.#errors) add("error", place);
    for (const { place } of this.host.labels.all) add("label", place);
    this.minimap.show(marks);
    this.#mapped = this.#slots.length;
    this.#mapSelected();
  }

  #mapSelected() {
    const index = this.#selectedIndex;
    this.minimap.select(index === undefined ? null : this.#list.share(index));
  }

  filter(kind) {
    this.kinds = kind;
    savePreference("tree", kind);
    markChosen(this.filters, kind);
    this.#lines.clear();
    this.#rebuild(shown.now.selected ? formatPosition(shown.now.selected) : this.#viewedEnd);
  }

  /** Append an entry; return false if the branches must be reloaded. */
  appendEntry(entry) {
    const wasLeaf = this.branches?.leaf, place = formatPosition(entry), hasAllErrors = this.#errorsOf === wasLeaf;
    if (!this.branches?.grow(entry.branch, entry.seq)) return false;
    this.#lines.set(place, isListed(entry, this.kinds) ? outlineLine(entry) : null);
    if (hasAllErrors) this.#errorsOf = this.branches.leaf;
    if (this.#places.has(place)) return true;
    if (this.branches.leaf === place) this.#appendToTrunk(entry, place, wasLeaf);
    else this.#rebuild();
    if (!shown.now.viewing && failures(entry).length) this.noteFailure(place);
    return true;
  }

  /** An entry of the viewed path has a failure. */
  noteFailure(place) {
    this.#errors.add(place);
    this.#showErrors();
  }

  /** One row is added, whatever the length of the path. */
  #appendToTrunk(entry, place, wasLeaf) {
    const index = this.#slots.push([ENTRY, entry.branch, entry.seq, 0]) - 1, before = this.#places.get(wasLeaf);
    this.#trunk.at(-1)[2] = entry.seq;
    this.#places.set(place, index);
    this.#list.grow(index + 1);
    if (before !== undefined && !this.#isShown(this.#slots[before])) this.#list.hide(before);
    this.#markTrouble(entry, index);
    this.#list.changed([index - 1, before ?? index, index]);
    if (this.#slots.length > this.#mapped * SAME_MAP) this.#map();
  }

  /** Show on the line before it that an entry without a line failed. */
  #markTrouble(entry, index) {
    if (this.#lines.get(formatPosition(entry))) return;
    const trouble = outlineLine(entry).flags.filter((flag) => FLAG_ICONS[flag]);
    for (let at = index - 1; trouble.length && at >= 0 && this.#slots[at][0] === ENTRY; at--) {
      const line = this.#lines.get(`${this.#slots[at][1]}:${this.#slots[at][2]}`);
      if (line === undefined) return;
      if (line === null) continue;
      if (line.turn === entry.turn) line.flags = [...new Set([...line.flags, ...trouble])];
      return this.#list.changed([at]);
    }
  }

  /** Redraw after labels changed. */
  labelsChanged() {
    const { size } = this.host.labels;
    this.jump.hidden = !size;
    this.jump.setAttribute("aria-label", `Jump to one of ${plural(size, "label")}`);
    fill(this.jump, icon("label"), h("span", size));
    if (this.branches) this.#rebuild();
  }

  isOnPath(branch, seq) { return this.branches?.isOnPath(branch, seq) ?? false; }

  tail(branch) { return this.branches?.tail(branch); }

  markSelected() {
    const place = shown.now.selected && formatPosition(shown.now.selected), index = this.#selectedIndex;
    for (const row of this.rows.querySelectorAll(".entry-row")) {
      const isHere = row.dataset.place === place;
      row.classList.toggle("selected", isHere);
      row.setAttribute("aria-selected", String(isHere));
    }
    this.#mapSelected();
    if (index !== undefined && this.#isShown(this.#slots[index]) && this.rows.clientHeight) this.#list.reveal(index);
  }

  get #selectedIndex() { return shown.now.selected ? this.#places.get(formatPosition(shown.now.selected)) : undefined; }

  // -- rows -----------------------------------------------------------------------------------

  /** Rebuild all rows, with `place` centred or with the same scroll position. */
  #rebuild(place = null) {
    this.#slots = this.branches.slots(this.#trunk, this.#open);
    if (this.parent) this.#slots.unshift([PARENT, 0, 0, 0]);
    const scrollTop = this.rows.scrollTop;
    this.#list.reset(this.#slots.length);
    this.#places.clear();
    this.#sides = [];
    this.#slots.forEach((slot, index) => {
      if (slot[0] === SIDE) this.#sides.push(index);
      if (slot[0] === ENTRY) this.#places.set(`${slot[1]}:${slot[2]}`, index);
      if (!this.#isShown(slot)) this.#list.hide(index);
    });
    const index = this.#places.get(place);
    this.#list.paint(index === undefined ? { index: 0, offset: scrollTop } : { index, offset: -this.rows.clientHeight / 2 });
    this.#map();
  }

  #isShown([kind, branch, seq]) {
    return kind !== ENTRY || this.#lines.get(`${branch}:${seq}`) !== null || this.branches.leaf === `${branch}:${seq}`
      || this.host.labels.of({ branch, seq }) !== undefined;
  }

  #row(index) {
    const slot = this.#slots[index], [kind, branch, seq, depth, other] = slot;
    if (!this.#isShown(slot)) return null;
    const row = kind === SIDE ? this.#sideRow(branch, seq) : kind === ENTRY ? this.#entryRow(branch, seq,
      depth) : kind === RELATED ? this.#relatedRow(other) : this.#parentRow();
    row.style.setProperty("--depth", Math.min(depth, DEEPEST));
    row.classList.add(`rail-${depth ? (branch % HUES) + 1 : 0}`);
    if (index === 0) row.classList.add("is-first");
    if (index === this.#slots.length - 1) row.classList.add("is-last");
    row.setAttribute("aria-level", depth + 1);
    return row;
  }

  #sideRow(branch, first) {
    const name = `${branch}:${first}`, isOpen = this.#open.has(name), number = this.tail(branch) - first + 1;
    return h("div.tree-row.side-row", {
      role: "treeitem", "aria-expanded": String(isOpen), tabindex: -1, data: { side: name },
      title: `${plural(number, "entry", "entries")} behind ${first - 1}`, onclick: () => this.#toggle(name),
    }, h("span.fold-icon", { "aria-hidden": "true" }, isOpen ? "▾" : "▸"), icon("fork"), h("span.muted", number),
    labelBadge(this.host.labels.within(branch, first, this.tail(branch))), h("span.tree-line", printable(this.#sideTexts.get(name) ?? "…")), this.branches.holdsLeaf(branch, first) && leafMark());
  }

  #entryRow(branch, seq, depth) {
    const name = `${branch}:${seq}`, line = this.#lines.get(name);
    const role = line?.role ?? line?.kind ?? "none", isHere = isSelected({ branch, seq });
    const text = line ? printable(line.text) : line === null ? h("span.muted", this.branches.leaf === name ? "the leaf" : "") : "…";
    const flags = (line?.flags ?? []).filter((flag) => FLAG_ICONS[flag]);
    return h("div.tree-row.entry-row", {
      role: "treeitem", tabindex: -1, "aria-selected": String(isHere), data: { place: name }, onclick: () => this.host.view({ branch, seq }),
      class: `${depth ? "off-path" : "on-path"} role-${role} ${isHere ? "selected" : ""} ${flags.includes("error") ? "has-error" : ""}`,
    }, labelBadge(this.host.labels.of({ branch, seq })), h("span.tree-line", { title: line ? `${line.role ?? line.kind}: ${printable(line.text)}` : "" }, text),
    flags.map(flagIcon), this.branches.leaf === name && leafMark(), h("span.seq", seq));
  }

  #relatedRow(other) {
    return h("a.tree-row.related", { href: this.host.related(other.id), role: "treeitem", tabindex: -1 },
      icon(other.relation ?? "fork"), h("span.muted", other.relation), h("span.tree-line",
        printable(other.heading || other.id)), h("span.muted", "→"));
  }

  #parentRow() {
    const { id, heading, relation, seq } = this.parent;
    return h("a.tree-row.related", { href: this.host.related(id, seq), role: "treeitem", tabindex: -1 },
      h("span.muted", "←"), icon(relation ?? "fork"), h("span.muted", `${relation} of`), h("span.tree-line",
        printable(heading || id)));
  }

  #toggle(name) {
    const hadFocus = this.rows.contains(document.activeElement);
    if (!this.#open.delete(name)) this.#open.add(name);
    this.#rebuild();
    if (hadFocus) this.rows.querySelector(`[data-side="${name}"]`)?.focus({ preventScroll: true });
  }

  // -- loading --------------------------------------------------------------------------------

  #loadVisible(first, last) {
    if (this.#isLoading || !this.branches) return;
    const near = this.#slots.slice(Math.max(0, first - 10), last + 30);
    const entry = near.find(([kind, branch, seq]) => kind === ENTRY && !this.#lines.has(`${branch}:${seq}`));
    const sides = near.filter(([kind, branch, seq]) => kind === SIDE && !this.#sideTexts.has(`${branch}:${seq}`))
      .map(([, branch, seq]) => `${branch}:${seq}`);
    if (entry) this.#load(() => this.#loadLines(entry));
    else if (sides.length) this.#load(() => this.#loadSideTexts(sides.slice(0, LABELS)));
  }

  async #load(read) {
    this.#isLoading = true;
    try {
      await read();
      this.#isLoading = false;
      this.#list.schedulePaint();
    } catch (problem) {
      this.summary.textContent = problem.message;
    } finally {
      this.#isLoading = false;
    }
  }

  /** Load the lines around an entry: of the trunk across its branches, or of its side branch. */
  async #loadLines([, branch, seq, depth]) {
    const kinds = this.kinds, isTrunk = depth === 0, first = Math.max(isTrunk ? 1 : this.branches.rows.get(branch).from + 1,
      seq - PAGE / 2);
    const last = Math.min(isTrunk ? this.#trunk.at(-1)[2] : this.tail(branch), first + PAGE);
    const scope = isTrunk ? { leaf: this.branches.leaf } : { branch };
    const reply = await fetchJson(sessionPath(this.host.id, "/outline"), { ...scope, first, last, kinds });
    if (kinds !== this.kinds) return;
    const until = Math.max(reply.last, seq), ranges = isTrunk ? this.#trunk : [[branch, first, until]];
    for (const [name, from, to] of ranges) for (let at = Math.max(from, first); at <= Math.min(to,
      until); at++) this.#lines.set(`${name}:${at}`, null);
    for (const line of reply.lines) this.#lines.set(`${line.branch}:${line.seq}`, line);
    this.#redrawRows(([kind, , at, level]) => kind === ENTRY && (level === 0) === isTrunk && at >= first && at <= until);
  }

  async #loadSideTexts(places) {
    const reply = await fetchJson(sessionPath(this.host.id, "/outline"), { positions: places.join(",") });
    for (const place of places) this.#sideTexts.set(place, "");
    for (const line of reply.lines) this.#sideTexts.set(`${line.branch}:${line.seq}`, line.text);
    const wanted = new Set(places);
    this.#redrawRows(([kind, branch, seq]) => kind === SIDE && wanted.has(`${branch}:${seq}`));
  }

  #redrawRows(matches) {
    const rows = [];
    this.#slots.forEach((slot, index) => { if (matches(slot)) rows.push(index); });
    for (const index of rows) if (!this.#isShown(this.#slots[index])) this.#list.hide(index);
    this.#list.changed(rows);
    this.#map();
  }

  #key(event) {
    const row = event.target.closest(".tree-row");
    if (row && (event.key === "Enter" || event.key === " ")) { row.click(); event.preventDefault(); }
    else if (row && (event.key === "ArrowLeft" || event.key === "ArrowRight") && row.hasAttribute("aria-expanded")) {
      if ((row.getAttribute("aria-expanded") === "true") === (event.key === "ArrowLeft")) row.click();
    }
  }
}

function flagIcon(flag) {
  const word = flag.replace("_", " ");
  return h("span.mark", { class: `is-${flag}`, title: word }, icon(FLAG_ICONS[flag], word));
}

function leafMark() {
  return h("span.leaf", { title: "Current leaf", role: "img", "aria-label": "Current leaf" }, "●");
}
