// The search dialog: sessions by title, and the query syntax of `oakleaf search` for their text; Enter opens the hit.

import { fetchJson } from "./api.js";
import { fill, h, icon, loadPreference, savePreference } from "./dom.js";
import { wordsQuery } from "./query.js";
import { navigate, route, sessionLink } from "./route.js";
import { activeAt, relationBadge, statusDot } from "./session_list.js";
import { ago, plural, printable } from "./format.js";

const DEBOUNCE_MS = 150, REPEAT_MS = 1000, SESSIONS = 6, REMEMBERED = 5;
const HELP = "Matches all words; prefix*, -without. Filters: role: tool: model: error: agent: tag: session: kind: before: after: is:replay";
const CHIPS = [["error:true", "errors"], ["role:tool", "tool results"], ["role:user", "inputs"], ["after:yesterday", "since yesterday"], ["is:replay", "replays"]];
const FILTER = /(?:^|\s)-?\w+:\S*/g;

export function openSearch(query = "") {
  if (document.querySelector("dialog.search")) return;
  new Search(query);
}

/** Switches to a session by its title, and searches what was said in all of them. */
class Search {
  #timer = 0;
  #request = 0;
  #selected = 0;
  #lastQuery = "";
  #next = null;

  constructor(query) {
    this.input = h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "hits",
      "aria-label": "Search", value: query, autocomplete: "off", spellcheck: "false",
      placeholder: "Go to a session, or search words, \"a phrase\", tool:refund …", oninput: () => this.#changed(), onkeydown: (event) => this.#key(event) });
    this.sessions = h("div.session-hits", { role: "group", "aria-label": "Sessions" });
    this.texts = h("div", { role: "group", "aria-label": "Text" });
    this.hits = h("div.hits", { id: "hits", role: "listbox", "aria-label": "Hits" }, this.sessions, this.texts);
    this.chips = h("div.chips", { role: "group", "aria-label": "Filters" });
    this.status = h("p.muted", { role: "status" }, HELP);
    this.box = h("dialog.search",
      { "aria-label": "Search", onclose: () => this.#close(),
      onclick: (event) => { if (event.target === this.box) this.box.close(); } },
      h("div.search-line", icon("search"), this.input), this.chips, this.status, this.hits);
    document.body.append(this.box);
    this.box.showModal();
    this.input.focus();
    this.#drawChips();
    this.#search();
  }

  #changed() {
    this.#drawChips();
    this.#schedule();
  }

  #drawChips() {
    const { page, id } = route.now, chips = [...(page === "session" ? [[`session:${id}`, "this session"]] : []), ...CHIPS];
    fill(this.chips, chips.map(([token, label]) => h("button.chip", { type: "button", "aria-pressed": String(this.#tokens().includes(token)), title: token, onclick: () => this.#toggle(token) }, label)));
  }

  #tokens() { return this.input.value.split(/\s+/u); }

  #toggle(token) {
    const tokens = this.#tokens().filter(Boolean);
    this.input.value = (tokens.includes(token) ? tokens.filter((other) => other !== token) : [...tokens, token]).join(" ");
    this.input.focus();
    this.#changed();
  }

  #close() {
    clearTimeout(this.#timer);
    this.#request++;
    this.box.remove();
  }

  #schedule(pause = DEBOUNCE_MS) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#search(), pause);
  }

  async #search(page = null) {
    const request = ++this.#request, q = this.input.value.trim();
    if (!page) this.#showSessions(q, request);
    if (!q) { fill(this.texts, this.#remembered()); this.status.textContent = HELP; return; }
    try {
      const reply = await fetchJson("/search", { query: q, limit: 20, page });
      if (request !== this.#request) return;
      this.#next = reply.next;
      if (!page) { fill(this.texts); if (q !== this.#lastQuery) this.#selected = 0; }
      this.#lastQuery = q;
      this.texts.querySelector(".more")?.remove();
      this.texts.append(...reply.hits.map((hit) => this.#hit(hit)));
      this.#dropTitles();
      if (reply.next) this.texts.append(h("button.quiet.more", { type: "button", onclick: () => this.#search(this.#next) },
        "More"));
      this.status.textContent = this.#statusText(reply);
      this.#markSelected();
      if (reply.unindexed_sessions && !reply.index_error && !page) this.#schedule(REPEAT_MS); // repeat the query: more will be indexed by then
    } catch (problem) {
      if (request === this.#request) this.status.textContent = problem.text;
    }
  }

  /** Sessions whose title has the words; without words, the last active ones. */
  async #showSessions(q, request) {
    const text = q.replace(FILTER, " ").replace(/["*]/g, " ").trim(), isFiltered = q && !text;
    const reply = isFiltered ? { sessions: [] } : await fetchJson("/sessions", { query: wordsQuery(text), limit: SESSIONS }).catch(() => ({ sessions: [] }));
    if (request !== this.#request) return;
    fill(this.sessions, reply.sessions.map((row) => h("a.hit.session-hit", { role: "option", data: { id: row.id }, href: sessionLink(row.id), onclick: () => this.box.close(), tabindex: -1 },
      h("span.hit-head", statusDot(row), h("span.ellipsis", { dir: "auto" }, printable(row.heading)), relationBadge(row), h("span.grow"), h("time.muted", ago(activeAt(row)))))));
    this.#dropTitles();
    this.#markSelected();
  }

  /** A title that matches is listed once: as a session. */
  #dropTitles() {
    const listed = new Set([...this.sessions.children].map((row) => row.dataset.id));
    for (const hit of this.texts.querySelectorAll(".hit[data-title]")) if (listed.has(hit.dataset.title)) hit.remove();
  }

  #remembered() {
    const queries = rememberedQueries();
    return queries.length > 0 && h("div.remembered", h("span.muted", "Recent searches"), queries.map((query) => h("button.chip", { type: "button",
      onclick: () => { this.input.value = query; this.input.focus(); this.#changed(); } }, printable(query))));
  }

  #statusText({ unindexed_sessions: unindexed, index_error: error }) {
    if (unindexed) return error ?? `Indexing ${plural(unindexed, "session")}; showing results so far.`;
    return this.texts.childElementCount ? "" : "No text matches.";
  }

  #hit(hit) {
    const position = hit.seq ? { branch: hit.branch, seq: hit.seq } : null;
    return h("a.hit", { role: "option", data: hit.seq ? {} : { title: hit.session_id }, href: sessionLink(hit.session_id, position), onclick: () => { remember(this.input.value.trim()); this.box.close(); },
      tabindex: -1 },
      h("span.hit-head", icon(hit.role ?? "note"), h("span.ellipsis", printable(hit.heading || hit.title || hit.session_id)), hit.relation === "replay" && relationBadge(hit),
        h("span.muted", [hit.tool, hit.seq && `${hit.branch}:${hit.seq}`,
        !hit.on_path && hit.seq && "other branch"].filter(Boolean).join(" · ")), h("span.grow"),
        h("time.muted", ago(hit.at))),
      h("span.snippet", { dir: "auto" }, highlightMatches(hit.snippet, hit.marks)));
  }

  #key(event) {
    const hits = [...this.hits.querySelectorAll(".hit")];
    if (event.key === "Escape") { event.preventDefault(); this.box.close(); return; } // the browser would only empty the field
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && hits.length) {
      this.#selected = Math.max(0, Math.min(hits.length - 1, this.#selected + step));
      this.#markSelected();
      event.preventDefault();
    }
    if (event.key === "Enter" && hits[this.#selected]) {
      event.preventDefault();
      remember(this.input.value.trim());
      this.box.close();
      navigate(hits[this.#selected].getAttribute("href"));
    }
  }

  #markSelected() {
    [...this.hits.querySelectorAll(".hit")].forEach((hit, at) => {
      hit.setAttribute("aria-selected", String(at === this.#selected));
      if (at === this.#selected) hit.scrollIntoView({ block: "nearest" });
    });
  }
}

/** A snippet with its matches highlighted; ranges count code points, as Python does. */
function highlightMatches(text, ranges) {
  const characters = [...text], nodes = [];
  let at = 0;
  for (const [first, last] of ranges ?? []) {
    nodes.push(printable(characters.slice(at, first).join("")), h("mark", printable(characters.slice(first, last).join(""))));
    at = last;
  }
  nodes.push(printable(characters.slice(at).join("")));
  return nodes;
}

function rememberedQueries() {
  try { return JSON.parse(loadPreference("searches", "[]")); } catch { return []; }
}

function remember(query) {
  if (query) savePreference("searches", JSON.stringify([query, ...rememberedQueries().filter((other) => other !== query)].slice(0, REMEMBERED)));
}
