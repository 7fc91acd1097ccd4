// The tree pane: entries as lines, folded side branches, the current leaf, and related sessions.
// All branches are loaded at once as numbers; lines are loaded when visible. Clicking views an entry and moves nothing.

import { fetchJson, sessionPath } from "./api.js";
import { TreeRows, ENTRY, PARENT, RELATED, SIDE } from "./tree_rows.js";
import { button, choice, fill, h, icon, loadPreference, markChosen, savePreference } from "./dom.js";
import { labelBadge } from "./labels.js";
import { plural, parsePosition, printable } from "./format.js";
import { splitter } from "./layout.js";
import { Minimap } from "./minimap.js";
import { VirtualList } from "./virtual_list.js";

const ROW = 26, PAGE = 300, LABELS = 150, DEEPEST = 8, HUES = 5, ERROR_STEP = 5_000, ERROR_ROUNDS = 4;
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
  #selected = "";
  #errors = new Set(); // branch:seq of entries with an error
  #errorsOf = "";

  /** host: {id, labels, view({branch, seq}), related(id, seq), jump()}. Shows the trunk straight down, branches beside it. */
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
    this.rows.addEventListener("keydown", (event) => this.#key(event));
  }

  close() { this.#list.close(); }

  /** Show the reply of /branches with the path to `viewing` as the trunk, and scroll to `place`. */
  show(reply, viewing, parent, place = null) {
    const isFirst = !this.branches;
    this.branches = new TreeRows(reply);
    this.parent = parent;
    this.viewing = viewing ?? reply.leaf;
    this.#trunk = this.branches.ranges(parsePosition(this.viewing));
    this.summary.textContent = plural(this.branches.size, "branch", "branches");
    this.#rebuild(place ?? (isFirst ? this.viewing : null));
    if (this.#errorsOf !== this.viewing) this.#loadErrors();
  }

  /** View the next (1) or previous (-1) error after the selected entry, starting again at the other end. */
  stepError(by) {
    const places = [...this.#errors].map(parsePosition).sort((a, b) => a.seq - b.seq);
    if (!places.length) return;
    const here = parsePosition(this.#selected || "0:0").seq, ordered = by > 0 ? places : places.reverse();
    this.host.view(ordered.find(({ seq }) => (by > 0 ? seq > here : seq < here)) ?? ordered[0]);
  }

  /** Find the errors of the viewed path, newest part first, a bounded number of entries. */
  async #loadErrors() {
    const leaf = this.viewing, { seq: end } = parsePosition(leaf), places = new Set();
    this.#errorsOf = leaf;
    for (let last = end, round = 0; last > 0 && round < ERROR_ROUNDS; last -= ERROR_STEP, round++) {
      const first = Math.max(1, last - ERROR_STEP + 1);
      const reply = await fetchJson(sessionPath(this.host.id, "/outline"), { leaf, first, last, kinds: "errors" }).catch(() => null);
      if (!reply || this.#errorsOf !== leaf) return;
      for (const line of reply.lines) places.add(`${line.branch}:${line.seq}`);
      this.#errors = new Set(places);
      this.#showErrors();
    }
  }

  #showErrors() {
    const { size } = this.#errors;
    this.errorButton.hidden = !size;
    const most = ERROR_ROUNDS * ERROR_STEP, where = parsePosition(this.viewing).seq > most ? ` in the newest ${most.toLocaleString("en")} entries` : "";
    this.errorButton.setAttribute("aria-label", `Go to one of ${plural(size, "error")}${where}`);
    this.errorButton.title = `Next error${where} (e)`;
    fill(this.errorButton, icon("error"), h("span", size));
    this.#map();
  }

  /** Draw the minimap. */
  #map() {
    const marks = [], { labels } = this.host;
    this.#slots.forEach(([kind, branch, seq], index) => {
      const name = `${branch}:${seq}`;
      const mark = kind === SIDE ? "side" : kind !== ENTRY ? null : this.#errors.has(name) ? "error" : name === this.#selected ? "selected"
        : labels.size && labels.of({ branch, seq }) !== undefined ? "label" : null;
      if (mark) marks.push({ share: this.#list.share(index), kind: mark });
    });
    this.minimap.show(marks);
  }

  filter(kind) {
    this.kinds = kind;
    savePreference("tree", kind);
    markChosen(this.filters, kind);
    this.#lines.clear();
    this.#rebuild(this.#selected || this.viewing);
  }

  /** Append an entry; return false if the branches must be reloaded. */
  appendEntry(entry) {
    const wasLeaf = this.branches?.leaf;
    if (!this.branches?.grow(entry.branch, entry.seq)) return false;
    if (this.viewing === wasLeaf) {
      this.viewing = this.branches.leaf;
      this.#trunk = this.branches.ranges(parsePosition(this.viewing));
    }
    this.#lines.delete(wasLeaf);
    if (hasError(entry)) { this.#errors.add(`${entry.branch}:${entry.seq}`); this.#errorsOf = this.viewing; this.#showErrors(); }
    this.#errorsOf = this.viewing;
    this.#rebuild();
    return true;
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

  select(entry) {
    this.#selected = `${entry.branch}:${entry.seq}`;
    for (const row of this.rows.querySelectorAll(".entry-row")) row.classList.toggle("selected",
      row.dataset.place === this.#selected);
    const index = this.#indexOf(this.#selected);
    this.#map();
    if (index >= 0 && this.#isShown(this.#slots[index]) && this.rows.clientHeight) this.#list.reveal(index);
  }

  #indexOf(place) {
    return place ? this.#slots.findIndex(([kind, branch, seq]) => kind === ENTRY && `${branch}:${seq}` === place) : -1;
  }

  // -- rows -----------------------------------------------------------------------------------

  /** Rebuild all rows, with `place` centred or with the same scroll position. */
  #rebuild(place = null) {
    this.#slots = this.branches.slots(this.#trunk, this.#open);
    if (this.parent) this.#slots.unshift([PARENT, 0, 0, 0]);
    const scrollTop = this.rows.scrollTop;
    this.#list.reset(this.#slots.length);
    this.#slots.forEach((slot, index) => { if (!this.#isShown(slot)) this.#list.hide(index); });
    const index = this.#indexOf(place);
    this.#list.paint(index < 0 ? { index: 0, offset: scrollTop } : { index, offset: -this.rows.clientHeight / 2 });
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
    const role = line?.role ?? line?.kind ?? "none", isSelected = name === this.#selected;
    const text = line ? printable(line.text) : line === null ? h("span.muted", this.branches.leaf === name ? "the leaf" : "") : "…";
    const flags = (line?.flags ?? []).filter((flag) => FLAG_ICONS[flag]);
    return h("div.tree-row.entry-row", {
      role: "treeitem", tabindex: -1, data: { place: name }, onclick: () => this.host.view({ branch, seq }),
      class: `${depth ? "off-path" : "on-path"} role-${role} ${isSelected ? "selected" : ""} ${flags.includes("error") ? "has-error" : ""}`,
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
    if (!this.#open.delete(name)) this.#open.add(name);
    this.#rebuild();
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
    const last = Math.min(isTrunk ? parsePosition(this.viewing).seq : this.tail(branch), first + PAGE);
    const scope = isTrunk ? { leaf: this.viewing } : { branch };
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
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      const next = row ? (step > 0 ? row.nextElementSibling
        : row.previousElementSibling) : this.#list.box.firstElementChild;
      next?.focus();
      event.preventDefault();
    } else if (row && (event.key === "Enter" || event.key === " ")) { row.click(); event.preventDefault(); }
    else if (row && (event.key === "ArrowLeft" || event.key === "ArrowRight") && row.hasAttribute("aria-expanded")) {
      if ((row.getAttribute("aria-expanded") === "true") === (event.key === "ArrowLeft")) row.click();
    }
  }
}

function hasError(entry) {
  return (entry.payload?.parts ?? []).some((part) => part.type === "tool_result" && !["done", "denied"].includes(part.outcome ?? (part.error ? "error" : "done")));
}

function flagIcon(flag) {
  const word = flag.replace("_", " ");
  return h("span.mark", { class: `is-${flag}`, title: word }, icon(FLAG_ICONS[flag], word));
}

function leafMark() {
  return h("span.leaf", { title: "Current leaf", role: "img", "aria-label": "Current leaf" }, "●");
}
