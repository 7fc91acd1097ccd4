// The list of sessions: last active first, by day, filtered by the URL, loaded while scrolling.
// Sessions open through ordinary links.

import { fetchJson, sendJson, sessionPath } from "./api.js";
import { attempt, button, fill, h, icon, iconButton, notice } from "./dom.js";
import { listQuery } from "./query.js";
import { rove } from "./roving.js";
import { filters, navigate, replaceUrl, route, sessionLink, buildUrl } from "./route.js";
import { ago, cost, dayName, modelName, plural, printable, sessionCount, timestamp } from "./format.js";
import { closeDrawer, splitter } from "./layout.js";
import { VirtualList } from "./virtual_list.js";

const FACETS = [["status", "Status"], ["agent", "Agent"], ["model", "Model"], ["relation", "Relation"]];
const POLL_MS = 5_000, DEBOUNCE_MS = 200, PAGE = 50;

export class SessionList {
  #list;
  #rows = [];
  #next = null;
  #isLoading = false;
  #filterKey = "";
  #editing = null;
  #timer = 0;

  /** start(): opens the dialog for a new session. */
  constructor(about, start) {
    this.isClient = about.level === "client";
    this.onTrashChange = () => undefined; // called when a session is moved to the trash or back
    this.scroller = h("div.session-rows", { role: "list", "aria-label": "Sessions", tabindex: 0 });
    this.facets = h("div.facets");
    this.total = h("span.muted", { role: "status" });
    this.emptyState = h("div.empty", { hidden: true });
    this.filterInput = h("input", { type: "search", placeholder: "Title or tag=value", autocomplete: "off",
      "aria-label": "Filter by title or tag", oninput: () => this.#scheduleFilter(), onchange: () => this.#applyTextFilter() });
    this.element = h("nav.pane.sessions", { "aria-label": "Sessions" },
      !this.isClient && h("header.bar", this.filterInput,
        !about.copy && iconButton("plus", "New session", start),
        iconButton("settings", "Filters", () => this.#toggleFacets(), { "aria-expanded": "false", class: "quiet facets-button" })),
      this.facets, h("div.bar.slim", this.total, h("span.grow"), !this.isClient && this.#trashSwitch()), this.emptyState, this.scroller,
      splitter("sessions", "the list of sessions"));
    this.#list = new VirtualList(this.scroller,
      { estimatedHeight: 64, draw: (index) => this.#row(index), onVisible: (_, last) => this.#loadMore(last) });
    rove(this.scroller, this.#list, { target: (row) => row.querySelector("a"), start: () => this.#current });
    this.facets.hidden = !Object.keys(filters()).some((name) => !["text", "tag", "trashed"].includes(name));
    this.#syncFilterControls();
    setInterval(() => this.#poll(), POLL_MS);
    document.addEventListener("visibilitychange", () => this.#poll());
  }

  /** No event covers all sessions, so the list polls while it is visible. */
  #poll() { if (document.visibilityState === "visible" && this.element.isConnected) this.refresh(); }

  /** Show the sessions that match the current URL. */
  async show() {
    const filterKey = JSON.stringify(filters());
    closeDrawer();
    if (filterKey === this.#filterKey && this.#rows.length) return this.#markCurrent();
    this.#filterKey = filterKey;
    const { tag, text } = route.now.query;
    if (document.activeElement !== this.filterInput) this.filterInput.value = tag ?? text ?? "";
    this.#syncFilterControls();
    await this.#loadPage(null);
    this.#countFacets();
  }

  /** Reload the first page; later rows and the focus stay as they are. */
  async refresh() {
    if (this.#isLoading || this.#editing || !this.#filterKey) return;
    const filterKey = this.#filterKey;
    let reply;
    try {
      reply = await fetchJson("/sessions", { query: listQuery(filters()), limit: PAGE });
    } catch (problem) {
      this.total.textContent = `${problem.message}. Retrying…`;
      return;
    }
    if (filterKey !== this.#filterKey || this.#isLoading || this.#editing) return;
    const before = keys(this.#rows), known = new Set(reply.sessions.map((row) => row.id));
    const end = this.#rows.findIndex((row) => row.id === reply.sessions.at(-1)?.id);
    const older = reply.next ? this.#rows.slice(end + 1).filter((row) => !known.has(row.id)) : [];
    const isNew = reply.sessions.some((row, index) => row.id !== this.#rows[index]?.id) || this.total.dataset.of !== filterKey;
    if (!reply.next) this.#next = null;
    this.#replaceRows([...reply.sessions, ...older], before);
    if (isNew) this.#countFacets();
    else this.#renderTotal();
  }

  /** Replace the rows: redraw only those that changed, and keep the scroll position. */
  #replaceRows(rows, before) {
    const focus = this.#focus(), top = this.#list.top, id = this.#rows[top?.index]?.id;
    this.#rows = rows;
    this.#resize();
    const after = keys(rows);
    this.#list.changed([...rows.keys()].filter((index) => before[index] !== after[index]));
    const index = this.scroller.scrollTop > 0 ? rows.findIndex((row) => row.id === id) : -1;
    if (index >= 0 && index !== top.index) this.#list.show(index, top.offset);
    focus?.();
  }

  /** Return a function that restores the focus to the same control of the same row. */
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

  /** Open the next (1) or previous (-1) session of the list. */
  step(by) {
    const at = this.#current, row = at === undefined ? this.#rows[0] : this.#rows[at + by];
    if (row) navigate(sessionLink(row.id));
  }

  get #current() {
    const at = this.#rows.findIndex((row) => row.id === route.now.id);
    return at < 0 ? undefined : at;
  }

  /** Update one row. */
  update(session) {
    const index = this.#rows.findIndex((row) => row.id === session.id);
    if (index < 0 || this.#editing) return;
    this.#rows[index] = { ...this.#rows[index], ...session };
    this.#list.changed([index]);
  }

  async #loadPage(page) {
    this.#isLoading = true;
    const filterKey = this.#filterKey;
    try {
      const reply = await fetchJson("/sessions", { query: listQuery(filters()), limit: PAGE, page });
      if (filterKey !== this.#filterKey) return;
      this.#rows = page ? [...this.#rows, ...reply.sessions] : reply.sessions;
      this.#next = reply.next ?? null;
      if (!page) this.#list.reset(this.#count());
      this.#resize();
      this.#list.paint(page ? undefined : { index: 0, offset: 0 });
      this.#renderTotal();
    } catch (problem) {
      this.total.textContent = problem.message;
    } finally {
      this.#isLoading = false;
    }
    // The server checks a limited number of headings per request: continue until a page is full.
    if (filterKey === this.#filterKey && this.#next && this.#next !== page && this.#rows.length < PAGE) await this.#loadPage(this.#next);
  }

  #count() { return this.#rows.length + (this.#next ? 1 : 0); }

  #resize() {
    const before = this.#list.count;
    if (before !== this.#count()) this.#list.grow(this.#count());
    this.#list.changed([before - 1]);
  }

  #loadMore(last) {
    if (this.#next && !this.#isLoading && last >= this.#rows.length - 10) this.#loadPage(this.#next);
  }

  // -- rows -----------------------------------------------------------------------------------

  #row(index) {
    const row = this.#rows[index];
    if (!row) return h("div.session-row.waiting", h("a.muted", { tabindex: -1 }, "…")); // keeps the focus for the session to come
    const isHere = route.now.id === row.id;
    return h("div.session-row", { role: "listitem", class: isHere ? "selected" : "", data: { id: row.id } },
      dayHeading(row, this.#rows[index - 1]),
      h("a", { href: sessionLink(row.id), tabindex: -1, "aria-current": isHere ? "page" : null },
        h("span.session-heading", statusDot(row), h("span.ellipsis", { dir: "auto" }, printable(row.heading)), relationBadge(row)),
        h("span.session-facts", ...factSpans(row))),
      !this.isClient && this.#actions(row, index));
  }

  #actions(row, index) {
    if (row.trashed_at) return h("span.session-actions", iconButton("undo", "Restore", () => this.#restore(row)));
    return h("span.session-actions",
      iconButton("pencil", `Rename ${row.heading}`, () => this.#edit(row, index), { title: "Rename", tabindex: -1 }),
      iconButton("trash", `Move ${row.heading} to trash`, () => this.#trash(row), { title: "Move to trash", tabindex: -1 }));
  }

  #markCurrent() {
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
      if (keep && title !== (row.title ?? "")) await this.#rename(row.id, title);
      this.#list.changed([index]);
    };
    const input = h("input.rename", {
      value: row.title ?? "", "aria-label": "Title", placeholder: printable(row.heading), onblur: () => done(true),
      onclick: (event) => event.preventDefault(),
      onkeydown: (event) => { if (event.key === "Enter") done(true); if (event.key === "Escape") { event.stopPropagation(); done(false); } },
    });
    fill(drawn, input);
    input.focus();
    input.select();
  }

  #rename(id, title) {
    return attempt(async () => {
      await sendJson("POST", sessionPath(id, "/title"), { text: title });
      this.update((await fetchJson(sessionPath(id))).session);
    });
  }

  #trash(row) {
    return attempt(async () => {
      const { trashed } = await sendJson("DELETE", sessionPath(row.id, "?yes=true"));
      this.#removeRow(row.id);
      this.onTrashChange();
      const words = trashed.length > 1 ? ` with ${plural(trashed.length - 1, "task")}` : "";
      notice(`Moved “${printable(row.heading)}”${words} to trash`, { action: () => this.#restore(row) });
    });
  }

  #restore(row) {
    return attempt(async () => {
      await sendJson("POST", sessionPath(row.id, "/restore"));
      this.#removeRow(row.id);
      this.onTrashChange();
      notice(`Restored “${printable(row.heading)}”`);
      this.#filterKey = "";
      await this.show();
    });
  }

  #removeRow(id) {
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

  #toggleFacets() {
    this.facets.hidden = !this.facets.hidden;
    this.#syncFilterControls();
  }

  /** Update the filter button and the trash checkbox from the URL. */
  #syncFilterControls() {
    const chosen = FACETS.some(([name]) => route.now.query[name] !== undefined);
    const button = this.element.querySelector(".facets-button");
    button?.setAttribute("aria-expanded", String(!this.facets.hidden));
    button?.classList.toggle("chosen", chosen);
    if (this.trash) this.trash.checked = route.now.query.trashed === "true";
  }

  #scheduleFilter() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#applyTextFilter(), DEBOUNCE_MS);
  }

  /** Apply the text field as words or a tag. Typing replaces the URL instead of adding a history entry per letter. */
  #applyTextFilter() {
    clearTimeout(this.#timer);
    const text = this.filterInput.value.trim(), isTag = /^[^=\s]+=/.test(text);
    replaceUrl(this.#address(isTag ? { tag: text, text: null } : { text: text, tag: null }));
    this.show();
  }

  #filter(name, value) { navigate(this.#address({ [name]: value })); }

  #address(changes) {
    const { id, page, query } = route.now;
    return buildUrl(page === "session" ? `/s/${encodeURIComponent(id)}` : "/", { ...query, ...changes }).replaceAll("%3A", ":");
  }

  async #countFacets() {
    if (this.isClient) return;
    const filterKey = this.#filterKey;
    try {
      const reply = await fetchJson("/facets", { query: listQuery(filters()) });
      if (filterKey !== this.#filterKey) return;
      this.total.dataset.of = filterKey;
      this.total.dataset.all = reply.is_partial ? "1,000+ sessions" : plural(reply.total, "session");
      this.#renderTotal();
      fill(this.facets, FACETS.map(([name, label]) => this.#facet(name, label, reply.facets[name] ?? {})),
        reply.is_partial && h("p.muted", "Counted among the 1,000 last active."));
    } catch (problem) {
      this.total.textContent = problem.message;
    }
  }

  /** Explain an empty list. */
  #renderEmptyState(isEmpty) {
    const names = Object.keys(filters()), isFiltered = names.length > 0;
    this.emptyState.hidden = !isEmpty;
    if (!isEmpty) return;
    if (isFiltered) fill(this.emptyState, h("p", names.join() === "trashed" ? "The trash is empty." : "No sessions match."), button("cross", "Show all sessions", () => { this.filterInput.value = ""; navigate("/"); }));
    else fill(this.emptyState, h("p", "No sessions yet."), !this.isClient && h("p.muted", "Press + to start one, or run oakleaf import."));
  }

  #renderTotal() {
    const { text } = filters(), isKnown = this.total.dataset.of === this.#filterKey;
    const count = this.#rows.length, suffix = this.#next ? "+" : "";
    this.#renderEmptyState(!count && !suffix);
    if (text) this.total.textContent = count || !suffix ? `${count}${suffix} found` : "Searching…";
    else if (!count) this.total.textContent = "No sessions";
    else this.total.textContent = isKnown ? this.total.dataset.all : `${plural(count, "session")}${suffix}`;
  }

  #facet(name, label, counts) {
    const chosen = route.now.query[name];
    const values = Object.entries(counts).filter(([value]) => value || name === "agent");
    if (!values.length && chosen === undefined) return null;
    return h("fieldset", h("legend", label), values.slice(0, 12).map(([value, number]) => h("button.facet", {
      type: "button", "aria-pressed": String(chosen === value), disabled: value === "",
      onclick: () => this.#filter(name, chosen === value ? null : value),
    }, h("span.ellipsis", value ? printable(value) : "none"), h("span.muted", sessionCount(number)))));
  }
}

/** When a session was last active; a title or tag given later does not count. */
export function activeAt(row) { return row.active_at ?? row.updated_at; }

/** For each row a string that changes when the row must be redrawn. */
function keys(rows) { return rows.map((row, at) => JSON.stringify([row, ago(activeAt(row)), dayHeading(row, rows[at - 1])?.textContent])); }

/** The day of a session's last activity, above the first session of that day. */
export function dayHeading(row, before) {
  const day = dayName(activeAt(row));
  return !before || (activeAt(row) < activeAt(before) && day !== dayName(activeAt(before))) ? h("div.day", day) : null;
}

export function statusDot(row) {
  const title = row.status === "waiting" ? "waiting for approval" : row.status;
  return h("span.dot", { class: `status-${row.status}`, role: "img", "aria-label": row.status, title });
}

export function relationBadge(row) {
  return row.relation && h("span.badge.relation", { title: `${row.relation} of another session` }, icon(row.relation),
    row.relation);
}

function factSpans(row) {
  const names = [row.agent && h("span.ellipsis", printable(row.agent)), row.model && h("span.ellipsis", { title: printable(row.model) }, modelName(row.model))];
  return [...names, h("span", plural(row.turns ?? 0, "turn")), row.totals && h("span", cost(row.totals)),
    h("time", { title: timestamp(activeAt(row)) }, ago(activeAt(row)))];
}
