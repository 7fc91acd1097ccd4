// The search dialog: the query syntax of `bough search`, highlighted hits; Enter opens the entry.

import { fetchJson } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { navigate, sessionLink } from "./route.js";
import { ago, plural, printable } from "./format.js";

const DEBOUNCE_MS = 150, REPEAT_MS = 1000;
const HELP = "Matches all words; prefix*, -without. Filters: role: tool: model: error: agent: tag: session: kind: before: after:";

export function openSearch(query = "") {
  if (document.querySelector("dialog.search")) return;
  new Search(query);
}

class Search {
  #timer = 0;
  #request = 0;
  #selected = 0;
  #lastQuery = "";
  #next = null;

  constructor(query) {
    this.input = h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "hits",
      "aria-label": "Search", value: query, autocomplete: "off", spellcheck: "false",
      placeholder: "Words, \"a phrase\", role:tool tool:refund error:true agent:… after:yesterday", oninput: () => this.#schedule(), onkeydown: (event) => this.#key(event) });
    this.hits = h("div.hits", { id: "hits", role: "listbox", "aria-label": "Hits" });
    this.status = h("p.muted", { role: "status" }, HELP);
    this.box = h("dialog.search",
      { "aria-label": "Search", onclose: () => this.#close(),
      onclick: (event) => { if (event.target === this.box) this.box.close(); } },
      h("div.search-line", icon("search"), this.input), this.status, this.hits);
    document.body.append(this.box);
    this.box.showModal();
    this.input.focus();
    if (query) this.#search();
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
    if (!q) { fill(this.hits); this.status.textContent = HELP; return; }
    try {
      const reply = await fetchJson("/search", { q, limit: 20, page });
      if (request !== this.#request) return;
      this.#next = reply.next;
      if (!page) { fill(this.hits); if (q !== this.#lastQuery) this.#selected = 0; }
      this.#lastQuery = q;
      this.hits.querySelector(".more")?.remove();
      this.hits.append(...reply.hits.map((hit) => this.#hit(hit)));
      if (reply.next) this.hits.append(h("button.quiet.more", { type: "button", onclick: () => this.#search(this.#next) },
        "More"));
      this.status.textContent = this.#statusText(reply);
      this.#markSelected();
      if (reply.indexing && !page) this.#schedule(REPEAT_MS); // repeat the query: more will be indexed by then
    } catch (problem) {
      if (request === this.#request) this.status.textContent = problem.text;
    }
  }

  #statusText({ unindexed_sessions: unindexed, indexing, index_error: error }) {
    if (indexing) return `Indexing ${indexing.done.toLocaleString("en")} of ${plural(indexing.total, "session")}; showing results so far.`;
    if (unindexed) return error ?? `${plural(unindexed, "session")} not fully indexed yet.`;
    return this.hits.childElementCount ? "" : "No results.";
  }

  #hit(hit) {
    const position = hit.seq ? { branch: hit.branch, seq: hit.seq } : null;
    return h("a.hit", { role: "option", href: sessionLink(hit.session_id, position), onclick: () => this.box.close(),
      tabindex: -1 },
      h("span.hit-head", icon(hit.role ?? "note"), h("span.ellipsis", printable(hit.heading || hit.title || hit.session_id)),
        h("span.muted", [hit.tool, hit.seq && `${hit.branch}:${hit.seq}`,
        !hit.on_path && hit.seq && "other branch"].filter(Boolean).join(" · ")), h("span.grow"),
        h("time.muted", ago(hit.at))),
      h("span.snippet", { dir: "auto" }, highlightMatches(hit.snippet, hit.marks)));
  }

  #key(event) {
    const hits = [...this.hits.querySelectorAll(".hit")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && hits.length) {
      this.#selected = Math.max(0, Math.min(hits.length - 1, this.#selected + step));
      this.#markSelected();
      event.preventDefault();
    }
    if (event.key === "Enter" && hits[this.#selected]) {
      event.preventDefault();
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
