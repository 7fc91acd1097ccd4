// The names people gave to places of a session's tree, and the list to jump by.
// Knows places and their labels. Where they are shown others decide.

import { ask, sessionPath } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { parted, shown } from "./words.js";

export class Labels {
  #known = new Map(); // branch:seq → label

  constructor(id) { this.id = id; }

  get size() { return this.#known.size; }

  async read() {
    const told = await ask(sessionPath(this.id, "/labels"));
    this.#known = new Map(told.labels.map(({ place, label }) => [place, label]));
  }

  of({ branch, seq }) { return this.#known.get(`${branch}:${seq}`); }

  /** The last label on a line of growth, which mostly says what became of it. */
  within(branch, first, last) {
    let found;
    for (const [place, label] of this.#known) {
      const at = parted(place);
      if (at.branch === branch && at.seq >= first && at.seq <= last && !(found?.seq > at.seq)) found = { seq: at.seq, label };
    }
    return found?.label;
  }

  /** Newest first. */
  get all() { return [...this.#known].map(([place, label]) => ({ place, label })).reverse(); }
}

export function labelBadge(label) {
  return label && h("span.badge.label-badge", { title: label, dir: "auto" }, icon("label"), h("span.words", shown(label)));
}

/** Every label; typing leaves those that hold the words, choosing looks at its place. */
export function labelsDialog(labels, look) {
  const list = h("div.choices"), input = h("input", { type: "search", "aria-label": "Filter labels", placeholder: "Filter labels",
    autocomplete: "off", oninput: () => draw() });
  const box = h("dialog.labels", { "aria-label": "Labels", onclose: () => box.remove() },
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); list.querySelector("button")?.click(); } },
      h("h2", "Labels"), input, list, h("footer", h("button", { type: "button", onclick: () => box.close() }, "Close"))));
  const draw = () => {
    const words = input.value.toLowerCase().split(/\s+/u);
    const found = labels.all.filter(({ label }) => words.every((word) => label.toLowerCase().includes(word)));
    fill(list, found.slice(0, 200).map(({ place, label }) => h("button.line", { type: "button",
      onclick: () => { box.close(); look(parted(place)); } }, icon("label"), h("span.line-text", { dir: "auto" }, shown(label)), h("code", place))),
    !found.length && h("p.muted", "No label holds these words."));
  };
  draw();
  document.body.append(box);
  box.showModal();
  input.focus();
}
