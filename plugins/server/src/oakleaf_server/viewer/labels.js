// Labels of entries in a session's tree, and the dialog that lists them.
// The tree and the transcript decide where labels are shown.

import { fetchJson, sessionPath } from "./api.js";
import { fill, h, icon, openDialog } from "./dom.js";
import { parsePosition, printable } from "./format.js";

export class Labels {
  #labels = new Map(); // branch:seq → label

  constructor(id) { this.id = id; }

  get size() { return this.#labels.size; }

  async read() {
    const reply = await fetchJson(sessionPath(this.id, "/labels"));
    this.#labels = new Map(reply.labels.map(({ position, label }) => [position, label]));
  }

  of({ branch, seq }) { return this.#labels.get(`${branch}:${seq}`); }

  /** The last label in a range of a branch, which usually describes its outcome. */
  within(branch, first, last) {
    let match;
    for (const [place, label] of this.#labels) {
      const at = parsePosition(place);
      if (at.branch === branch && at.seq >= first && at.seq <= last && !(match?.seq > at.seq)) match = { seq: at.seq, label };
    }
    return match?.label;
  }

  /** Newest first. */
  get all() { return [...this.#labels].map(([place, label]) => ({ place, label })).reverse(); }
}

export function labelBadge(label) {
  return label && h("span.badge.label-badge", { title: label, dir: "auto" }, icon("label"), h("span.ellipsis", printable(label)));
}

/** A filterable list of all labels; choosing one views its entry. */
export function labelsDialog(labels, view) {
  const list = h("div.choices"), input = h("input", { type: "search", "aria-label": "Filter labels", placeholder: "Filter labels",
    autocomplete: "off", oninput: () => draw() });
  const box = openDialog("dialog.labels", "Labels", {},
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); list.querySelector("button")?.click(); } },
      h("h2", "Labels"), input, list, h("footer", h("button", { type: "button", onclick: () => box.close() }, "Close"))));
  const draw = () => {
    const terms = input.value.toLowerCase().split(/\s+/u);
    const match = labels.all.filter(({ label }) => terms.every((word) => label.toLowerCase().includes(word)));
    fill(list, match.slice(0, 200).map(({ place, label }) => h("button.line", { type: "button",
      onclick: () => { box.close(); view(parsePosition(place)); } }, icon("label"), h("span.line-text", { dir: "auto" }, printable(label)), h("code", place))),
    !match.length && h("p.muted", "No labels match."));
  };
  draw();
  input.focus();
}
