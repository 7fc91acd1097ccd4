// Find in the session: the browser's own search sees only the rows that are drawn.
// Uses the search index, and marks the words in the rows it leads to.

import { fetchJson } from "./api.js";
import { button, h } from "./dom.js";

const DEBOUNCE_MS = 200, MOST = 200;

export class FindBar {
  #hits = [];
  #at = -1;
  #timer = 0;
  #request = 0;

  /** host: {id, element: the transcript, goTo(hit)} */
  constructor(host) {
    this.host = host;
    this.input = h("input", { type: "search", "aria-label": "Find in this session", placeholder: "Find in this session", autocomplete: "off",
      oninput: () => { clearTimeout(this.#timer); this.#timer = setTimeout(() => this.#search(), DEBOUNCE_MS); }, onkeydown: (event) => this.#key(event) });
    this.status = h("span.muted", { role: "status" });
    this.element = h("search.find-bar", { hidden: true }, this.input, this.status, button(null, "Previous", () => this.step(-1), { class: "quiet" }),
      button(null, "Next", () => this.step(1), { class: "quiet" }), button("cross", "", () => this.close(), { class: "quiet", "aria-label": "Close" }));
  }

  open() {
    this.element.hidden = false;
    this.input.focus();
    this.input.select();
  }

  close() {
    clearTimeout(this.#timer);
    this.element.hidden = true;
    CSS.highlights?.delete("find");
    this.host.element.focus();
  }

  async step(by) {
    if (!this.#hits.length) return;
    this.#at = (this.#at + by + this.#hits.length) % this.#hits.length;
    this.status.textContent = `${this.#at + 1} of ${this.#hits.length}${this.#hits.length === MOST ? "+" : ""}`;
    await this.host.goTo(this.#hits[this.#at]);
    this.mark();
  }

  async #search() {
    const request = ++this.#request, words = this.input.value.trim();
    if (!words) { this.#hits = []; this.status.textContent = ""; CSS.highlights?.delete("find"); return; }
    try {
      const reply = await fetchJson("/search", { query: `session:${this.host.id} ${words}`, limit: MOST });
      if (request !== this.#request) return;
      this.#hits = reply.hits.filter((hit) => hit.seq).sort((a, b) => a.seq - b.seq || a.branch - b.branch);
      this.#at = this.#hits.length - 1; // the first step goes to the first hit
      if (this.#hits.length) await this.step(1);
      else this.status.textContent = "No results";
    } catch (problem) {
      if (request === this.#request) this.status.textContent = problem.text;
    }
  }

  /** Mark the words in the drawn rows. */
  mark() {
    if (!CSS.highlights) return; // older browsers go to the row without marking words
    const words = this.input.value.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [], ranges = [];
    const walker = document.createTreeWalker(this.host.element, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && ranges.length < 500) {
      const text = walker.currentNode.data.toLowerCase();
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(walker.currentNode, at);
          range.setEnd(walker.currentNode, at + word.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("find", new Highlight(...ranges));
  }

  #key(event) {
    if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { event.preventDefault(); this.close(); }
  }
}
