// A narrow map of the whole tree beside it: branches, labels, errors, and the part that is visible.
// Decoration for the pointer; the keys b and e reach the same places.

import { h } from "./dom.js";

const BUCKETS = 240, ORDER = ["side", "label", "error"];

export class Minimap {
  /** scroller: the element it maps. */
  constructor(scroller) {
    this.scroller = scroller;
    this.marks = h("div.minimap-marks");
    this.selected = h("i.is-selected", { hidden: true });
    this.view = h("div.minimap-view");
    this.element = h("div.minimap", { "aria-hidden": "true", hidden: true, onclick: (event) => this.#jump(event) }, this.marks, this.view);
    scroller.addEventListener("scroll", () => this.moved(), { passive: true });
  }

  /** marks: [{share, kind}], where the share of the height is between 0 and 1. */
  show(marks) {
    const buckets = new Map();
    for (const { share, kind } of marks) {
      const at = Math.min(BUCKETS - 1, Math.floor(share * BUCKETS));
      if (ORDER.indexOf(kind) > ORDER.indexOf(buckets.get(at))) buckets.set(at, kind);
    }
    this.marks.replaceChildren(...[...buckets].map(([at, kind]) => {
      const mark = h(`i.is-${kind}`);
      mark.style.top = `${(at / BUCKETS) * 100}%`;
      return mark;
    }), this.selected);
    this.moved();
  }

  /** Mark the selected row; null if no row is. */
  select(share) {
    this.selected.hidden = share === null;
    this.selected.style.top = `${(share ?? 0) * 100}%`;
  }

  moved() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.element.hidden = scrollHeight <= clientHeight + 4;
    this.view.style.top = `${(scrollTop / scrollHeight) * 100}%`;
    this.view.style.height = `${Math.max(2, (clientHeight / scrollHeight) * 100)}%`;
  }

  #jump(event) {
    const { top, height } = this.element.getBoundingClientRect();
    this.scroller.scrollTop = ((event.clientY - top) / height) * this.scroller.scrollHeight - this.scroller.clientHeight / 2;
  }
}
