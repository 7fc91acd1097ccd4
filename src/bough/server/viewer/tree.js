// The tree on the page: lines of entries, folded sides, the leaf, and the sessions that left this one.
// All branches are known at once, as numbers; lines are asked for where somebody looks. Clicking looks, it moves nothing.

import { ask, sessionPath } from "./api.js";
import { Branches, ENTRY, PARENT, RELATED, SIDE } from "./branches.js";
import { button, fill, h, icon, remember, remembered } from "./dom.js";
import { labelBadge } from "./labels.js";
import { many, parted, shown } from "./words.js";
import { Windowed } from "./windowed.js";

const ROW = 26, PAGE = 300, LABELS = 150, DEEPEST = 8;
const FILTERS = [["inputs", "Inputs"], ["messages", "No tools"], ["all", "All"]];
const MARKS = { error: "error", unknown: "unknown", denied: "denied", interrupted: "interrupted", dry_run: "dry_run",
  cancelled: "denied", cut_off: "error" };

export class Tree {
  #list;
  #open = new Set();
  #slots = [];
  #lines = new Map(); // branch:seq → line, or null for one the filter leaves out
  #labels = new Map();
  #isLoading = false;
  #trunk = [];
  #selected = "";

  /** host: {id, labels, look({branch, seq}), related(id, seq), jump()} */
  constructor(host) {
    this.host = host;
    this.branches = null;
    this.kinds = remembered("tree", "messages");
    this.rows = h("div.tree-rows", { role: "tree", "aria-label": "Branches", tabindex: 0 });
    this.filters = h("div.choice", { role: "radiogroup", "aria-label": "Lines shown" }, FILTERS.map(([kind, word]) =>
      h("button", { type: "button", role: "radio", "aria-checked": String(kind === this.kinds),
        onclick: () => this.filter(kind) }, word)));
    this.summary = h("span.muted");
    this.jump = button("label", "", () => host.jump(), { class: "quiet", hidden: true, title: "Jump to a label (b)" });
    this.element = h("section.tree", { "aria-label": "Tree" },
      h("header.bar", this.summary, this.jump, h("span.grow"), this.filters), this.rows);
    this.#list = new Windowed(this.rows,
      { guess: ROW, draw: (index) => this.#row(index), seen: (first, last) => this.#seen(first, last) });
    this.rows.addEventListener("keydown", (event) => this.#key(event));
  }

  close() { this.#list.close(); }

  /** What /branches told; the path to `looking` runs straight down; `place` is brought into view. */
  show(told, looking, parent, place = null) {
    const isFirst = !this.branches;
    this.branches = new Branches(told);
    this.parent = parent;
    this.looking = looking ?? told.leaf;
    this.#trunk = this.branches.ranges(parted(this.looking));
    this.summary.textContent = many(this.branches.size, "branch", "branches");
    this.#again(place ?? (isFirst ? this.looking : null));
  }

  filter(kind) {
    this.kinds = kind;
    remember("tree", kind);
    [...this.filters.children].forEach((choice, at) => choice.setAttribute("aria-checked",
      String(FILTERS[at][0] === kind)));
    this.#lines.clear();
    this.#again(this.#selected || this.looking);
  }

  /** A new entry; false if the branches have to be asked for anew. */
  grown(entry) {
    const wasLeaf = this.branches?.leaf;
    if (!this.branches?.grow(entry.branch, entry.seq)) return false;
    if (this.looking === wasLeaf) {
      this.looking = this.branches.leaf;
      this.#trunk = this.branches.ranges(parted(this.looking));
    }
    this.#lines.delete(wasLeaf);
    this.#again();
    return true;
  }

  /** Labels were given or taken. */
  relabelled() {
    const { size } = this.host.labels;
    this.jump.hidden = !size;
    this.jump.setAttribute("aria-label", `Jump to one of ${many(size, "label")}`);
    fill(this.jump, icon("label"), h("span", size));
    if (this.branches) this.#again();
  }

  isOnPath(branch, seq) { return this.branches?.isOnPath(branch, seq) ?? false; }

  tail(branch) { return this.branches?.tail(branch); }

  select(entry) {
    this.#selected = `${entry.branch}:${entry.seq}`;
    for (const row of this.rows.querySelectorAll(".entry-line")) row.classList.toggle("selected",
      row.dataset.place === this.#selected);
    const index = this.#indexOf(this.#selected);
    if (index >= 0 && this.#isShown(this.#slots[index]) && this.rows.clientHeight) this.#list.reveal(index);
  }

  #indexOf(place) {
    return place ? this.#slots.findIndex(([kind, branch, seq]) => kind === ENTRY && `${branch}:${seq}` === place) : -1;
  }

  // -- rows -----------------------------------------------------------------------------------

  /** All rows anew, with `place` in the middle, or scrolled as they were. */
  #again(place = null) {
    this.#slots = this.branches.slots(this.#trunk, this.#open);
    if (this.parent) this.#slots.unshift([PARENT, 0, 0, 0]);
    const held = this.rows.scrollTop;
    this.#list.reset(this.#slots.length);
    this.#slots.forEach((slot, index) => { if (!this.#isShown(slot)) this.#list.hide(index); });
    const index = this.#indexOf(place);
    this.#list.paint(index < 0 ? { index: 0, offset: held } : { index, offset: -this.rows.clientHeight / 2 });
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
    row.setAttribute("aria-level", depth + 1);
    return row;
  }

  #sideRow(branch, first) {
    const name = `${branch}:${first}`, isOpen = this.#open.has(name), number = this.tail(branch) - first + 1;
    return h("div.tree-row.side-line", {
      role: "treeitem", "aria-expanded": String(isOpen), tabindex: -1, data: { side: name },
      title: `${many(number, "entry", "entries")} behind ${first - 1}`, onclick: () => this.#toggle(name),
    }, h("span.twist", { "aria-hidden": "true" }, isOpen ? "▾" : "▸"), icon("fork"), h("span.muted", number),
    labelBadge(this.host.labels.within(branch, first, this.tail(branch))), h("span.tree-line", shown(this.#labels.get(name) ?? "…")), this.branches.holdsLeaf(branch, first) && leafMark());
  }

  #entryRow(branch, seq, depth) {
    const name = `${branch}:${seq}`, line = this.#lines.get(name);
    const role = line?.role ?? line?.kind ?? "none", isSelected = name === this.#selected;
    const words = line ? shown(line.line) : line === null ? h("span.muted", this.branches.leaf === name ? "the leaf" : "") : "…";
    return h("div.tree-row.entry-line", {
      role: "treeitem", tabindex: -1, data: { place: name }, onclick: () => this.host.look({ branch, seq }),
      class: `${depth ? "off-path" : "on-path"} role-${role} ${isSelected ? "selected" : ""}`,
    }, h("span.seq", seq), line && icon(line.kind === "message" ? line.role : line.kind),
    labelBadge(this.host.labels.of({ branch, seq })), h("span.tree-line", words),
    (line?.marks ?? []).filter((mark) => MARKS[mark]).map(drawnMark), this.branches.leaf === name && leafMark());
  }

  #relatedRow(other) {
    return h("a.tree-row.related", { href: this.host.related(other.id), role: "treeitem", tabindex: -1 },
      icon(other.relation ?? "fork"), h("span.muted", other.relation), h("span.tree-line",
        shown(other.heading || other.id)), h("span.muted", "→"));
  }

  #parentRow() {
    const { id, heading, relation, seq } = this.parent;
    return h("a.tree-row.related", { href: this.host.related(id, seq), role: "treeitem", tabindex: -1 },
      h("span.muted", "←"), icon(relation ?? "fork"), h("span.muted", `${relation} of`), h("span.tree-line",
        shown(heading || id)));
  }

  #toggle(name) {
    if (!this.#open.delete(name)) this.#open.add(name);
    this.#again();
  }

  // -- loading --------------------------------------------------------------------------------

  #seen(first, last) {
    if (this.#isLoading || !this.branches) return;
    const near = this.#slots.slice(Math.max(0, first - 10), last + 30);
    const entry = near.find(([kind, branch, seq]) => kind === ENTRY && !this.#lines.has(`${branch}:${seq}`));
    const sides = near.filter(([kind, branch, seq]) => kind === SIDE && !this.#labels.has(`${branch}:${seq}`))
      .map(([, branch, seq]) => `${branch}:${seq}`);
    if (entry) this.#load(() => this.#lineWindow(entry));
    else if (sides.length) this.#load(() => this.#labelWindow(sides.slice(0, LABELS)));
  }

  async #load(read) {
    this.#isLoading = true;
    try {
      await read();
      this.#isLoading = false;
      this.#list.later();
    } catch (problem) {
      this.summary.textContent = problem.message;
    } finally {
      this.#isLoading = false;
    }
  }

  /** Lines around an entry: of the shown path, through all its branches at once, or of the side it lies on. */
  async #lineWindow([, branch, seq, depth]) {
    const kinds = this.kinds, isTrunk = depth === 0, first = Math.max(isTrunk ? 1 : this.branches.rows.get(branch).from + 1,
      seq - PAGE / 2);
    const last = Math.min(isTrunk ? parted(this.looking).seq : this.tail(branch), first + PAGE);
    const where = isTrunk ? { leaf: this.looking } : { branch };
    const told = await ask(sessionPath(this.host.id, "/outline"), { ...where, first, last, kinds });
    if (kinds !== this.kinds) return;
    const until = Math.max(told.last, seq), ranges = isTrunk ? this.#trunk : [[branch, first, until]];
    for (const [name, from, to] of ranges) for (let at = Math.max(from, first); at <= Math.min(to,
      until); at++) this.#lines.set(`${name}:${at}`, null);
    for (const line of told.lines) this.#lines.set(`${line.branch}:${line.seq}`, line);
    this.#redraw(([kind, , at, level]) => kind === ENTRY && (level === 0) === isTrunk && at >= first && at <= until);
  }

  async #labelWindow(places) {
    const told = await ask(sessionPath(this.host.id, "/outline"), { places: places.join(",") });
    for (const place of places) this.#labels.set(place, "");
    for (const line of told.lines) this.#labels.set(`${line.branch}:${line.seq}`, line.line);
    const wanted = new Set(places);
    this.#redraw(([kind, branch, seq]) => kind === SIDE && wanted.has(`${branch}:${seq}`));
  }

  #redraw(isMeant) {
    const rows = [];
    this.#slots.forEach((slot, index) => { if (isMeant(slot)) rows.push(index); });
    for (const index of rows) if (!this.#isShown(this.#slots[index])) this.#list.hide(index);
    this.#list.changed(rows);
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

function drawnMark(mark) {
  const word = mark.replace("_", " ");
  return h("span.mark", { class: `is-${mark}`, title: word }, icon(MARKS[mark], word));
}

function leafMark() {
  return h("span.leaf", { title: "The session stands here", role: "img", "aria-label": "The session stands here" }, "●");
}
