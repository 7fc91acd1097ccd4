// A virtual list: only visible rows exist in the DOM. Rows may have different heights.
// Heights are estimated until a row is drawn. The row at the top edge stays in place when rows above change.

import { h } from "./dom.js";

const MAX_HEIGHT = 16e6; // Chromium lays out at most about 33 million pixels, Firefox 17 million
const OVERSCAN = 400, CONTROLS = "a, button, input, summary, [tabindex]";

/** Prefix sums of row heights: update or append one, or find the row at an offset, in O(log n). */
class RowHeights {
  constructor(count, height) {
    this.length = count;
    this.own = new Float64Array(count).fill(height);
    this.sums = new Float64Array(count + 1);
    for (let at = 1; at <= count; at++) this.sums[at] = (at & -at) * height;
  }
  push(height) {
    if (this.length === this.own.length) { // twice the room, so that most appends copy nothing
      this.own = grown(this.own);
      this.sums = grown(this.sums);
    }
    this.own[this.length++] = height;
    this.sums[this.length] = height;
    for (let by = 1; by < (this.length & -this.length); by <<= 1) this.sums[this.length] += this.sums[this.length - by];
  }
  pop() { this.length--; }
  set(index, height) {
    const by = height - this.own[index];
    if (!by) return;
    this.own[index] = height;
    for (let at = index + 1; at <= this.length; at += at & -at) this.sums[at] += by;
  }
  before(index) {
    let sum = 0;
    for (let at = Math.min(index, this.length); at > 0; at -= at & -at) sum += this.sums[at];
    return sum;
  }
  at(height) {
    let index = 0, step = 1;
    while (step * 2 <= this.length) step *= 2;
    for (; step; step >>= 1) {
      if (index + step <= this.length && this.sums[index + step] <= height) {
        index += step;
        height -= this.sums[index];
      }
    }
    return Math.min(index, Math.max(0, this.length - 1));
  }
}

function grown(numbers) {
  const more = new Float64Array(numbers.length * 2 + 64);
  more.set(numbers);
  return more;
}

export class VirtualList {
  #heights = new RowHeights(0, 0);
  #rows = new Map();
  #frame = 0;
  #pending = null;
  #ownScrollTop = -1; // the last position set by this class
  #watcher;
  #above = h("div.spacer", { "aria-hidden": "true" });
  #below = h("div.spacer", { "aria-hidden": "true" });
  #box;

  /** draw(index) → element, or null for a hidden row; onVisible(first, last) receives the visible range;
   *  with followsEnd, a list scrolled to its end stays there when rows are added. */
  constructor(scroller, { draw, onVisible, estimatedHeight, followsEnd = false }) {
    this.scroller = scroller;
    this.draw = draw;
    this.onVisible = onVisible;
    this.estimatedHeight = estimatedHeight;
    this.followsEnd = followsEnd;
    this.isAtEnd = followsEnd;
    this.#box = h("div.rows");
    scroller.replaceChildren(this.#above, this.#box, this.#below);
    scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    this.#watcher = new ResizeObserver((changed) => this.#onResize(changed));
    this.#watcher.observe(scroller);
  }

  get count() { return this.#heights.length; }
  get box() { return this.#box; }

  /** Start over with another list or filter. */
  reset(count) {
    for (const row of this.#rows.values()) this.#watcher.unobserve(row);
    this.#rows.clear();
    this.#pending = null;
    this.#box.replaceChildren();
    const each = Math.max(1, Math.min(this.estimatedHeight, MAX_HEIGHT / Math.max(1, count)));
    this.#heights = new RowHeights(count, each);
  }

  /** Change the number of rows, keeping known heights. */
  grow(count) {
    while (this.count < count) this.#heights.push(this.estimatedHeight);
    while (this.count > count) this.#heights.pop();
    for (const index of [...this.#rows.keys()]) if (index >= count) this.#removeRow(index);
  }

  /** Redraw these rows. */
  changed(indices) {
    const anchor = this.#pending ?? this.#currentAnchor(); // before removing rows: the browser scrolls a list that is shorter for a moment
    const refocus = this.#focus();
    for (const index of indices) if (this.#rows.has(index)) this.#removeRow(index);
    this.paint(anchor);
    refocus?.();
  }

  /** Return a function that focuses the same control of the same row again after the row is drawn anew. */
  #focus() {
    const at = document.activeElement, row = at?.closest?.("[data-index]");
    if (!row || !this.#box.contains(row)) return null;
    const index = Number(row.dataset.index), nth = [...row.querySelectorAll(CONTROLS)].indexOf(at);
    return () => {
      const drawn = this.#rows.get(index);
      if (!at.isConnected) (nth < 0 ? drawn : drawn?.querySelectorAll(CONTROLS)[nth])?.focus({ preventScroll: true });
    };
  }

  /** Give a hidden row no height, so that it need not be drawn to find out. */
  hide(index) {
    this.#pending ??= this.#currentAnchor() ?? { isEnd: true }; // the anchor can only be computed while the heights match what is painted
    this.#heights.set(index, 0);
    this.#removeRow(index);
  }

  row(index) { return this.#rows.get(index); }

  /** The row at the top edge and how much of it is scrolled out: {index, offset}. */
  get top() { return this.#currentAnchor(); }

  /** Where a row is, as a share of the height of all rows. */
  share(index) { return this.#heights.before(index) / Math.max(1, this.#heights.before(this.count)); }

  isHidden(index) { return this.#heights.own[index] === 0; }

  schedulePaint() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.paint(); });
  }

  /** Draw the visible rows, keeping `anchor` (index, offset from the top edge) in place. */
  paint(anchor = this.#pending ?? this.#currentAnchor()) {
    this.#pending = this.scroller.clientHeight ? null : anchor ?? { isEnd: true };
    if (this.#pending) return; // nothing has a height in a hidden pane; painted when it becomes visible
    if (anchor?.isEnd) anchor = null;
    for (let round = 0; round < 6; round++) {
      const [first, last] = this.#range(anchor);
      this.#renderRows(first, last);
      const isSettled = !this.#measureRows();
      this.#scrollToAnchor(anchor);
      if (isSettled) break;
    }
    const top = this.scroller.scrollTop;
    this.onVisible?.(this.#heights.at(top), this.#heights.at(top + this.scroller.clientHeight));
  }

  show(index, offset = 0) {
    this.isAtEnd = false;
    this.paint({ index, offset });
  }

  /** Scroll a row into view unless it is visible already. */
  reveal(index) {
    const top = this.#heights.before(index) - this.scroller.scrollTop;
    const isVisible = this.#rows.has(index) && top >= 0 && top + Math.min(this.#heights.own[index],
      80) <= this.scroller.clientHeight;
    if (!isVisible) this.show(index, -Math.min(80, this.scroller.clientHeight / 4));
  }

  goToEnd() {
    this.isAtEnd = true;
    this.paint(null);
  }

  close() {
    this.#watcher.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    // Scroll events of our own scrolling arrive late, possibly after a resize, and do not express what the user wants.
    if (Math.abs(scrollTop - this.#ownScrollTop) > 1) this.isAtEnd = this.followsEnd && scrollTop + clientHeight >= scrollHeight - 4;
    this.schedulePaint();
  }

  #currentAnchor() {
    if (this.isAtEnd) return null;
    const index = this.#heights.at(this.scroller.scrollTop);
    return { index, offset: this.scroller.scrollTop - this.#heights.before(index) };
  }

  #scrollTopFor(anchor) {
    const all = this.#heights.before(this.count), room = this.scroller.clientHeight;
    if (!anchor) return Math.max(0, all - room);
    return Math.max(0, Math.min(this.#heights.before(anchor.index) + anchor.offset, all - room));
  }

  #range(anchor) {
    const top = this.#scrollTopFor(anchor);
    return [this.#heights.at(Math.max(0, top - OVERSCAN)), this.#heights.at(top + this.scroller.clientHeight + OVERSCAN)];
  }

  #renderRows(first, last) {
    for (const index of [...this.#rows.keys()]) if (index < first || index > last) this.#removeRow(index);
    let next = this.#box.firstChild;
    for (let index = first; index <= last && index < this.count; index++) {
      if (this.isHidden(index)) continue;
      let row = this.#rows.get(index);
      if (!row) {
        row = this.draw(index);
        if (!row) { this.#heights.set(index, 0); continue; }
        row.dataset.index = index;
        this.#rows.set(index, row);
        this.#watcher.observe(row);
        this.#box.insertBefore(row, next);
      }
      next = row.nextSibling;
    }
    this.#above.style.height = `${this.#heights.before(first)}px`;
    this.#below.style.height = `${this.#heights.before(this.count) - this.#heights.before(last + 1)}px`;
  }

  #measureRows() {
    let isChanged = false;
    for (const [index, row] of this.#rows) {
      const height = row.getBoundingClientRect().height;
      if (Math.abs(height - this.#heights.own[index]) > 0.5) {
        this.#heights.set(index, height);
        isChanged = true;
      }
    }
    return isChanged;
  }

  #scrollToAnchor(anchor) {
    const top = this.#scrollTopFor(anchor);
    if (Math.abs(this.scroller.scrollTop - top) > 1) this.scroller.scrollTop = top;
    this.#ownScrollTop = this.scroller.scrollTop;
  }

  #onResize(changed) {
    const hasChanged = changed.some(({ target }) => target === this.scroller
      || Math.abs(target.getBoundingClientRect().height - this.#heights.own[target.dataset.index]) > 0.5);
    if (hasChanged) this.schedulePaint();
  }

  #removeRow(index) {
    const row = this.#rows.get(index);
    if (!row) return;
    this.#watcher.unobserve(row);
    row.remove();
    this.#rows.delete(index);
  }
}
