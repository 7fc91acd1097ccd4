// The search overlay: the words and filters of the command line, hits with their marks, Enter opens at the entry.

import { ask } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { go, sessionLink } from "./route.js";
import { ago, many, shown } from "./words.js";

const PAUSE = 150, AGAIN = 1000;
const HELP = "All words are wanted; prefix*, -without. Filters: role: tool: model: error: agent: tag: session: kind: before: after:";

export function openSearch(query = "") {
  if (document.querySelector("dialog.search")) return;
  new Search(query);
}

class Search {
  #timer = 0;
  #turn = 0;
  #chosen = 0;
  #asked = "";
  #next = null;

  constructor(query) {
    this.input = h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "hits",
      "aria-label": "Search", value: query, autocomplete: "off", spellcheck: "false",
      placeholder: "words, \"a phrase\", role:tool tool:refund error:true agent:… after:7d", oninput: () => this.#later(), onkeydown: (event) => this.#key(event) });
    this.hits = h("div.hits", { id: "hits", role: "listbox", "aria-label": "Hits" });
    this.words = h("p.muted", { role: "status" }, HELP);
    this.box = h("dialog.search",
      { "aria-label": "Search", onclose: () => this.#close(),
      onclick: (event) => { if (event.target === this.box) this.box.close(); } },
      h("div.search-line", icon("search"), this.input), this.words, this.hits);
    document.body.append(this.box);
    this.box.showModal();
    this.input.focus();
    if (query) this.#search();
  }

  #close() {
    clearTimeout(this.#timer);
    this.#turn++;
    this.box.remove();
  }

  #later(pause = PAUSE) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#search(), pause);
  }

  async #search(page = null) {
    const turn = ++this.#turn, q = this.input.value.trim();
    if (!q) { fill(this.hits); this.words.textContent = HELP; return; }
    try {
      const told = await ask("/search", { q, limit: 20, page });
      if (turn !== this.#turn) return;
      this.#next = told.next;
      if (!page) { fill(this.hits); if (q !== this.#asked) this.#chosen = 0; }
      this.#asked = q;
      this.hits.querySelector(".more")?.remove();
      this.hits.append(...told.hits.map((hit) => this.#hit(hit)));
      if (told.next) this.hits.append(h("button.quiet.more", { type: "button", onclick: () => this.#search(this.#next) },
        "More"));
      this.words.textContent = this.#said(told);
      this.#mark();
      if (told.indexing && !page) this.#later(AGAIN); // the same words again: more is in the index by then
    } catch (problem) {
      if (turn === this.#turn) this.words.textContent = problem.words;
    }
  }

  #said({ behind, indexing, trouble }) {
    if (indexing) return `Indexing ${indexing.done.toLocaleString("en")} of ${many(indexing.total, "session")}; this is what is found by now.`;
    if (behind) return trouble ?? `${many(behind, "session")} have something that is not in the index yet.`;
    return this.hits.childElementCount ? "" : "Nothing found.";
  }

  #hit(hit) {
    const where = hit.seq ? { branch: hit.branch, seq: hit.seq } : null;
    return h("a.hit", { role: "option", href: sessionLink(hit.session_id, where), onclick: () => this.box.close(),
      tabindex: -1 },
      h("span.hit-head", icon(hit.role ?? "note"), h("span.words", shown(hit.title || hit.session_id)),
        h("span.muted", [hit.tool, hit.seq && `${hit.branch}:${hit.seq}`,
        !hit.on_path && hit.seq && "left branch"].filter(Boolean).join(" · ")), h("span.grow"),
        h("time.muted", ago(hit.at))),
      h("span.snippet", { dir: "auto" }, marked(hit.snippet, hit.marks)));
  }

  #key(event) {
    const hits = [...this.hits.querySelectorAll(".hit")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && hits.length) {
      this.#chosen = Math.max(0, Math.min(hits.length - 1, this.#chosen + step));
      this.#mark();
      event.preventDefault();
    }
    if (event.key === "Enter" && hits[this.#chosen]) {
      event.preventDefault();
      this.box.close();
      go(hits[this.#chosen].getAttribute("href"));
    }
  }

  #mark() {
    [...this.hits.querySelectorAll(".hit")].forEach((hit, at) => {
      hit.setAttribute("aria-selected", String(at === this.#chosen));
      if (at === this.#chosen) hit.scrollIntoView({ block: "nearest" });
    });
  }
}

/** A snippet with its hits marked; places are counted in characters, as Python counts them. */
function marked(text, marks) {
  const characters = [...text], nodes = [];
  let at = 0;
  for (const [first, last] of marks ?? []) {
    nodes.push(shown(characters.slice(at, first).join("")), h("mark", shown(characters.slice(first, last).join(""))));
    at = last;
  }
  nodes.push(shown(characters.slice(at).join("")));
  return nodes;
}
