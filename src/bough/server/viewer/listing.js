// The pane of sessions: newest first, filtered by what the address says, read on as one scrolls.
// Knows the list and its filters. Opening a session is a link.

import { ask, change, sessionPath } from "./api.js";
import { button, fill, h, icon, notice } from "./dom.js";
import { filters, go, note, route, sessionLink, to } from "./route.js";
import { STATUSES, ago, cost, many, shown, whole } from "./words.js";
import { Windowed } from "./windowed.js";

const FACETS = [["status", "Status"], ["agent", "Agent"], ["model", "Model"], ["relation", "Relation"]];
const EVERY = 5_000, PAUSE = 200, PAGE = 50;

export class Listing {
  #list;
  #rows = [];
  #next = null;
  #isLoading = false;
  #asked = "";
  #editing = null;
  #timer = 0;

  /** start(): what begins a new session. */
  constructor(about, start) {
    this.isClient = about.level === "client";
    this.scroller = h("div.session-rows", { role: "list", "aria-label": "Sessions", tabindex: 0 });
    this.facets = h("div.facets");
    this.total = h("span.muted", { role: "status" });
    this.nothing = h("div.empty", { hidden: true });
    this.words = h("input", { type: "search", placeholder: "Title or tag=value", autocomplete: "off",
      "aria-label": "Filter by words of a title, or by a tag", oninput: () => this.#later(), onchange: () => this.#named() });
    this.element = h("nav.pane.sessions", { "aria-label": "Sessions" },
      !this.isClient && h("header.bar", this.words,
        !about.copy && button("plus", "", start, { "aria-label": "New session", title: "New session", class: "quiet" }),
        button("settings", "", () => this.#fold(),
        { "aria-label": "Filters", title: "Filters", "aria-expanded": "false", class: "quiet facets-button" })),
      this.facets, h("div.bar.slim", this.total, h("span.grow"), !this.isClient && this.#trashSwitch()), this.nothing, this.scroller);
    this.#list = new Windowed(this.scroller,
      { guess: 64, draw: (index) => this.#row(index), seen: (_, last) => this.#seen(last) });
    this.facets.hidden = !Object.keys(filters()).some((name) => !["words", "tag", "trashed"].includes(name));
    this.#mind();
    setInterval(() => this.#look(), EVERY);
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** Nobody tells of all sessions at once, so the list looks by itself, while somebody sees it. */
  #look() { if (document.visibilityState === "visible" && this.element.isConnected) this.refresh(); }

  /** What the address asks for now. */
  async show() {
    const asked = JSON.stringify(filters());
    if (asked === this.#asked && this.#rows.length) return this.#mark();
    this.#asked = asked;
    const { tag, words } = route.now.query;
    if (document.activeElement !== this.words) this.words.value = tag ?? words ?? "";
    this.#mind();
    await this.#page(null);
    this.#countFacets();
  }

  /** The first page again: new sessions, new states. Rows further down are as they were, and so is the focus. */
  async refresh() {
    if (this.#isLoading || this.#editing || !this.#asked) return;
    const asked = this.#asked;
    let told;
    try {
      told = await ask("/sessions", { ...filters(), limit: PAGE });
    } catch (problem) {
      this.total.textContent = `${problem.message}; trying again…`;
      return;
    }
    if (asked !== this.#asked || this.#isLoading || this.#editing) return;
    const before = this.#rows.map(drawnFrom), known = new Set(told.sessions.map((row) => row.id));
    const end = this.#rows.findIndex((row) => row.id === told.sessions.at(-1)?.id);
    const older = told.next ? this.#rows.slice(end + 1).filter((row) => !known.has(row.id)) : [];
    const isNew = told.sessions.some((row, index) => row.id !== this.#rows[index]?.id) || this.total.dataset.of !== asked;
    if (!told.next) this.#next = null;
    this.#take([...told.sessions, ...older], before);
    if (isNew) this.#countFacets();
    else this.#tellTotal();
  }

  /** Other rows: only those that look different are drawn anew, and what is under the top edge stays there. */
  #take(rows, before) {
    const focus = this.#focus(), top = this.#list.top, id = this.#rows[top?.index]?.id;
    this.#rows = rows;
    this.#resize();
    this.#list.changed([...rows.keys()].filter((index) => before[index] !== drawnFrom(rows[index])));
    const index = this.scroller.scrollTop > 0 ? rows.findIndex((row) => row.id === id) : -1;
    if (index >= 0 && index !== top.index) this.#list.show(index, top.offset);
    focus?.();
  }

  /** Brings the focus back to the same part of the same row, if it was in one. */
  #focus() {
    const at = document.activeElement, row = at?.closest?.(".session-row");
    if (!row || !this.scroller.contains(row)) return null;
    const nth = [...row.querySelectorAll("a, button")].indexOf(at), { id } = row.dataset;
    return () => {
      if (at.isConnected) return;
      const drawn = this.#list.row(this.#rows.findIndex((one) => one.id === id));
      drawn?.querySelectorAll("a, button")[nth]?.focus({ preventScroll: true });
    };
  }

  /** One row is known to have changed. */
  update(session) {
    const index = this.#rows.findIndex((row) => row.id === session.id);
    if (index < 0 || this.#editing) return;
    this.#rows[index] = { ...this.#rows[index], ...session };
    this.#list.changed([index]);
  }

  async #page(page) {
    this.#isLoading = true;
    const asked = this.#asked;
    try {
      const told = await ask("/sessions", { ...filters(), limit: PAGE, page });
      if (asked !== this.#asked) return;
      this.#rows = page ? [...this.#rows, ...told.sessions] : told.sessions;
      this.#next = told.next ?? null;
      if (!page) this.#list.reset(this.#count());
      this.#resize();
      this.#list.paint(page ? undefined : { index: 0, offset: 0 });
      this.#tellTotal();
    } catch (problem) {
      this.total.textContent = problem.message;
    } finally {
      this.#isLoading = false;
    }
    // Words are looked for in some hundred headings at a time: with little found, go on.
    if (asked === this.#asked && this.#next && this.#next !== page && this.#rows.length < PAGE) await this.#page(this.#next);
  }

  #count() { return this.#rows.length + (this.#next ? 1 : 0); }

  #resize() {
    const before = this.#list.count;
    if (before !== this.#count()) this.#list.grow(this.#count());
    this.#list.changed([before - 1]);
  }

  #seen(last) {
    if (this.#next && !this.#isLoading && last >= this.#rows.length - 10) this.#page(this.#next);
  }

  // -- rows -----------------------------------------------------------------------------------

  #row(index) {
    const row = this.#rows[index];
    if (!row) return h("div.session-row.waiting", h("span.muted", "…"));
    const isHere = route.now.id === row.id;
    return h("div.session-row", { role: "listitem", class: isHere ? "selected" : "", data: { id: row.id } },
      h("a", { href: sessionLink(row.id), "aria-current": isHere ? "page" : null },
        h("span.session-heading", status(row), h("span.words", { dir: "auto" }, shown(row.heading)), relation(row)),
        h("span.session-facts", ...facts(row))),
      !this.isClient && this.#actions(row, index));
  }

  #actions(row, index) {
    if (row.trashed_at) return h("span.session-actions",
      button("undo", "", () => this.#restore(row), { "aria-label": "Restore", title: "Restore", class: "quiet" }));
    return h("span.session-actions",
      button("pencil", "", () => this.#edit(row, index),
        { "aria-label": `Rename ${row.heading}`, title: "Rename", class: "quiet" }),
      button("trash", "", () => this.#trash(row),
        { "aria-label": `Archive ${row.heading}`, title: "Archive: into the trash", class: "quiet" }));
  }

  #mark() {
    for (const row of this.scroller.querySelectorAll(".session-row")) {
      const isHere = row.dataset.id === route.now.id;
      row.classList.toggle("selected", isHere);
      row.querySelector("a")?.toggleAttribute("aria-current", isHere);
    }
  }

  #edit(row, index) {
    const drawn = this.#list.row(index)?.querySelector(".session-heading");
    if (!drawn) return;
    this.#editing = row.id;
    const done = async (keep) => {
      if (!this.#editing) return;
      this.#editing = null;
      const title = input.value.trim();
      if (keep && title !== (row.title ?? "")) await this.rename(row.id, title || null);
      this.#list.changed([index]);
    };
    const input = h("input.rename", {
      value: row.title ?? "", "aria-label": "Title", placeholder: shown(row.heading), onblur: () => done(true),
      onclick: (event) => event.preventDefault(),
      onkeydown: (event) => { if (event.key === "Enter") done(true); if (event.key === "Escape") { event.stopPropagation(); done(false); } },
    });
    fill(drawn, input);
    input.focus();
    input.select();
  }

  async rename(id, title) {
    try {
      this.update((await change("PATCH", sessionPath(id), { title })).session);
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    }
  }

  async #trash(row) {
    try {
      const { trashed } = await change("DELETE", sessionPath(row.id));
      this.#leave(row.id);
      const words = trashed.length > 1 ? ` with ${many(trashed.length - 1, "task")}` : "";
      notice(`Archived “${shown(row.heading)}”${words}`, { action: () => this.#restore(row) });
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    }
  }

  async #restore(row) {
    try {
      await change("POST", sessionPath(row.id, "/restore"));
      this.#leave(row.id);
      notice(`Restored “${shown(row.heading)}”`);
      this.#asked = "";
      await this.show();
    } catch (problem) {
      notice(problem.words, { kind: "bad" });
    }
  }

  #leave(id) {
    this.#rows = this.#rows.filter((row) => row.id !== id);
    this.#list.reset(this.#count());
    this.#list.paint({ index: 0, offset: this.scroller.scrollTop });
    this.#countFacets();
  }

  // -- filters --------------------------------------------------------------------------------

  #trashSwitch() {
    const box = h("input", { type: "checkbox", onchange: () => this.#filter("trashed", box.checked ? "true" : null) });
    this.trash = box;
    return h("label.check", box, "Trash");
  }

  #fold() {
    this.facets.hidden = !this.facets.hidden;
    this.#mind();
  }

  /** The button says whether the facets are open, and whether one of them is chosen. */
  #mind() {
    const chosen = FACETS.some(([name]) => route.now.query[name] !== undefined);
    const pressed = this.element.querySelector(".facets-button");
    pressed?.setAttribute("aria-expanded", String(!this.facets.hidden));
    pressed?.classList.toggle("chosen", chosen);
    if (this.trash) this.trash.checked = route.now.query.trashed === "true";
  }

  #later() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#named(), PAUSE);
  }

  /** Words of titles, or a tag with its value. While one types the address follows, without a step back for each letter. */
  #named() {
    clearTimeout(this.#timer);
    const said = this.words.value.trim(), isTag = /^[^=\s]+=/.test(said);
    note(this.#address(isTag ? { tag: said, words: null } : { words: said, tag: null }));
    this.show();
  }

  #filter(name, value) { go(this.#address({ [name]: value })); }

  #address(changes) {
    const { id, page, query } = route.now;
    return to(page === "session" ? `/s/${encodeURIComponent(id)}` : "/", { ...query, ...changes }).replaceAll("%3A", ":");
  }

  async #countFacets() {
    if (this.isClient) return;
    const asked = this.#asked;
    try {
      const { words, ...rest } = filters();
      const told = await ask("/facets", rest);
      if (asked !== this.#asked) return;
      this.total.dataset.of = asked;
      this.total.dataset.all = told.total;
      this.#tellTotal();
      fill(this.facets, FACETS.map(([name, word]) => this.#facet(name, word, told.facets[name] ?? {})));
    } catch (problem) {
      this.total.textContent = problem.message;
    }
  }

  /** An empty list says why, and what to do. */
  #tellNothing(isEmpty) {
    const isFiltered = Object.keys(filters()).length > 0;
    this.nothing.hidden = !isEmpty;
    if (!isEmpty) return;
    if (isFiltered) fill(this.nothing, h("p", "Nothing matches."), button("cross", "Show all sessions", () => { this.words.value = ""; go("/"); }));
    else fill(this.nothing, h("p", "No session yet."), !this.isClient && h("p.muted", "+ starts one; bough import takes one in."));
  }

  #tellTotal() {
    const { words } = filters(), isKnown = this.total.dataset.of === this.#asked;
    const found = this.#rows.length, more = this.#next ? "+" : "";
    this.#tellNothing(!found && !more);
    if (words) this.total.textContent = found || !more ? `${found}${more} found` : "Looking…";
    else if (!found) this.total.textContent = "No session";
    else this.total.textContent = isKnown ? many(Number(this.total.dataset.all), "session") : `${many(found, "session")}${more}`;
  }

  #facet(name, word, counts) {
    const chosen = route.now.query[name];
    const values = Object.entries(counts).filter(([value]) => value || name === "agent");
    if (!values.length && chosen === undefined) return null;
    return h("fieldset", h("legend", word), values.slice(0, 12).map(([value, number]) => h("button.facet", {
      type: "button", "aria-pressed": String(chosen === value), disabled: value === "",
      onclick: () => this.#filter(name, chosen === value ? null : value),
    }, h("span.words", value ? shown(value) : "none"), h("span.muted", number))));
  }
}

/** What a row's look depends on. */
function drawnFrom(row) { return row && JSON.stringify([row, ago(row.updated_at)]); }

export function status(row) {
  const [word, title] = STATUSES[row.status] ?? [row.status, row.status];
  return h("span.dot", { class: `status-${row.status}`, role: "img", "aria-label": word, title });
}

export function relation(row) {
  return row.relation && h("span.badge.relation", { title: `${row.relation} of another session` }, icon(row.relation),
    row.relation);
}

function facts(row) {
  const names = [row.agent, row.model].filter(Boolean).map((name) => h("span.words", shown(name)));
  return [...names, h("span", many(row.turns ?? 0, "turn")), row.totals && h("span", cost(row.totals)),
    h("time", { title: whole(row.updated_at) }, ago(row.updated_at))];
}
