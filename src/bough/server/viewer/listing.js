// The pane of sessions: newest first, filtered by what the address says, read on as one scrolls.
// Knows the list and its filters. Opening a session is a link.

import { ask, change, sessionPath } from "./api.js";
import { button, fill, h, icon, notice } from "./dom.js";
import { filters, go, route, sessionLink, to } from "./route.js";
import { STATUSES, ago, cost, many, shown, whole } from "./words.js";
import { Windowed } from "./windowed.js";

const FACETS = [["status", "Status"], ["agent", "Agent"], ["model", "Model"], ["relation", "Relation"]];
const EVERY = 10_000;

export class Listing {
  #list;
  #rows = [];
  #next = null;
  #isLoading = false;
  #asked = "";
  #editing = null;

  constructor(about) {
    this.isClient = about.level === "client";
    this.scroller = h("div.session-rows", { role: "list", "aria-label": "Sessions", tabindex: 0 });
    this.facets = h("div.facets");
    this.total = h("span.muted", { role: "status" });
    this.title = h("input", { type: "search", placeholder: "Title, or tag=value", "aria-label": "Filter by title or tag",
      onchange: () => this.#named(this.title.value.trim()) });
    this.element = h("nav.pane.sessions", { "aria-label": "Sessions" },
      !this.isClient && h("header.bar", this.title,
        button("settings", "", () => this.#fold(),
        { "aria-label": "Filters", title: "Filters", "aria-expanded": "false", class: "quiet facets-button" })),
      this.facets, h("div.bar.slim", this.total, h("span.grow"), !this.isClient && this.#trashSwitch()), this.scroller);
    this.#list = new Windowed(this.scroller,
      { guess: 64, draw: (index) => this.#row(index), seen: (_, last) => this.#seen(last) });
    this.facets.hidden = !Object.keys(filters()).some((name) => name !== "title" && name !== "trashed");
    setInterval(() => { if (document.visibilityState === "visible" && this.element.isConnected) this.refresh(); }, EVERY);
  }

  /** What the address asks for now. */
  async show() {
    const asked = JSON.stringify(filters());
    if (asked === this.#asked && this.#rows.length) return this.#mark();
    this.#asked = asked;
    this.title.value = route.now.query.tag ?? route.now.query.title ?? "";
    await this.#page(null);
    this.#countFacets();
  }

  /** The first page again: new sessions, new states. Rows further down are as they were. */
  async refresh() {
    if (this.#isLoading || this.#editing) return;
    const asked = this.#asked;
    let told;
    try { told = await ask("/sessions", { ...filters(), limit: 50 }); } catch { return; } // the next time will do
    if (asked !== this.#asked) return;
    const known = new Set(told.sessions.map((row) => row.id));
    this.#rows = [...told.sessions,
      ...this.#rows.filter((row) => !known.has(row.id)).slice(Math.max(0, 50 - told.sessions.length))];
    if (!told.next) { this.#rows = told.sessions; this.#next = null; }
    this.#resize();
    this.#list.changed([...this.#rows.keys()].slice(0, 60));
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
      const told = await ask("/sessions", { ...filters(), limit: 50, page });
      if (asked !== this.#asked) return;
      this.#rows = page ? [...this.#rows, ...told.sessions] : told.sessions;
      this.#next = told.next ?? null;
      if (!page) this.#list.reset(this.#count());
      this.#resize();
      this.#list.paint(page ? undefined : { index: 0, offset: 0 });
      if (!this.#rows.length) this.total.textContent = "No session";
    } catch (problem) {
      this.total.textContent = problem.message;
    } finally {
      this.#isLoading = false;
    }
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
    box.checked = route.now.query.trashed === "true";
    return h("label.check", box, "Trash");
  }

  #fold() {
    this.facets.hidden = !this.facets.hidden;
    this.element.querySelector(".facets-button").setAttribute("aria-expanded", String(!this.facets.hidden));
  }

  #filter(name, value) { this.#go({ [name]: value }); }

  /** A whole title, or a tag with its value; words in titles are found by the search. */
  #named(words) { this.#go(words.includes("=") ? { tag: words, title: null } : { title: words, tag: null }); }

  #go(changes) {
    const { id, page, query } = route.now;
    go(to(page === "session" ? `/s/${encodeURIComponent(id)}` : "/", { ...query, ...changes }));
  }

  async #countFacets() {
    if (this.isClient) { this.total.textContent = many(this.#rows.length, "session"); return; }
    try {
      const told = await ask("/facets", filters());
      this.total.textContent = many(told.total, "session");
      fill(this.facets, FACETS.map(([name, word]) => this.#facet(name, word, told.facets[name] ?? {})));
    } catch (problem) {
      this.total.textContent = problem.message;
    }
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
