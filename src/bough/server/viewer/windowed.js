// A list of any length of which only what is seen exists: rows of different heights, a scrollbar for all of them.
// Heights are guessed until a row was seen. Whatever changes above, the row at the top edge keeps its place.

import { h } from "./dom.js";

const TALLEST = 16e6; // Chromium lays out no more than some 33 million pixels, Firefox 17
const BEYOND = 400;

/** Sums of heights: change one, or find the row at a height, in log n. */
class Heights {
  constructor(own) {
    const length = own.length;
    this.length = length;
    this.own = own;
    this.sums = new Float64Array(length + 1);
    for (let at = 1; at <= length; at++) {
      this.sums[at] += this.own[at - 1];
      const up = at + (at & -at);
      if (up <= length) this.sums[up] += this.sums[at];
    }
  }
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
    let found = 0, step = 1;
    while (step * 2 <= this.length) step *= 2;
    for (; step; step >>= 1) {
      if (found + step <= this.length && this.sums[found + step] <= height) {
        found += step;
        height -= this.sums[found];
      }
    }
    return Math.min(found, Math.max(0, this.length - 1));
  }
}

export class Windowed {
  #heights = new Heights(new Float64Array(0));
  #rows = new Map();
  #frame = 0;
  #pending = null;
  #own = -1; // where we scrolled to ourselves
  #watcher;
  #above = h("div.spacer", { "aria-hidden": "true" });
  #below = h("div.spacer", { "aria-hidden": "true" });
  #box;

  /** draw(index) → element, or null for a row that is not shown; seen(first, last) is told what is on screen;
   *  one that follows stays at its end when rows are added there. */
  constructor(scroller, { draw, seen, guess, follows = false }) {
    this.scroller = scroller;
    this.draw = draw;
    this.seen = seen;
    this.guess = guess;
    this.follows = follows;
    this.isAtEnd = follows;
    this.#box = h("div.rows");
    scroller.replaceChildren(this.#above, this.#box, this.#below);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#watcher = new ResizeObserver((changed) => this.#resized(changed));
    this.#watcher.observe(scroller);
  }

  get count() { return this.#heights.length; }
  get box() { return this.#box; }

  /** Everything anew: another list, or another filter. */
  reset(count) {
    for (const row of this.#rows.values()) this.#watcher.unobserve(row);
    this.#rows.clear();
    this.#pending = null;
    this.#box.replaceChildren();
    const each = Math.max(1, Math.min(this.guess, TALLEST / Math.max(1, count)));
    this.#heights = new Heights(new Float64Array(count).fill(each));
  }

  /** More rows at the end; the others keep what is known of them. */
  grow(count) {
    const own = new Float64Array(count).fill(this.guess);
    own.set(this.#heights.own.subarray(0, count));
    this.#heights = new Heights(own);
    for (const index of [...this.#rows.keys()]) if (index >= count) this.#drop(index);
  }

  /** These rows hold something else now. */
  changed(indices) {
    const held = this.#pending ?? this.#held(); // before rows go: a list that is shorter for a moment is scrolled back
    for (const index of indices) if (this.#rows.has(index)) this.#drop(index);
    this.paint(held);
  }

  /** Rows known not to be shown take no room, so that nobody has to look at them to find out. */
  hide(index) {
    this.#pending ??= this.#held() ?? { isEnd: true }; // what is held is known only as long as the heights are as painted
    this.#heights.set(index, 0);
    this.#drop(index);
  }

  row(index) { return this.#rows.get(index); }

  /** The row under the top edge, and how much of it is above: {index, offset}. */
  get top() { return this.#held(); }

  isHidden(index) { return this.#heights.own[index] === 0; }

  later() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.paint(); });
  }

  /** Draw what is on screen now, holding `held` (index, offset from the top edge) where it is. */
  paint(held = this.#pending ?? this.#held()) {
    this.#pending = this.scroller.clientHeight ? null : held ?? { isEnd: true };
    if (this.#pending) return; // in a pane that is not shown nothing has a height; painted when it is
    if (held?.isEnd) held = null;
    for (let round = 0; round < 6; round++) {
      const [first, last] = this.#range(held);
      this.#place(first, last);
      const isSettled = !this.#measure();
      this.#hold(held);
      if (isSettled) break;
    }
    const top = this.scroller.scrollTop;
    this.seen?.(this.#heights.at(top), this.#heights.at(top + this.scroller.clientHeight));
  }

  show(index, offset = 0) {
    this.isAtEnd = false;
    this.paint({ index, offset });
  }

  /** Bring a row into view, and move nothing if it is there already. */
  reveal(index) {
    const top = this.#heights.before(index) - this.scroller.scrollTop;
    const isThere = this.#rows.has(index) && top >= 0 && top + Math.min(this.#heights.own[index],
      80) <= this.scroller.clientHeight;
    if (!isThere) this.show(index, -Math.min(80, this.scroller.clientHeight / 4));
  }

  toEnd() {
    this.isAtEnd = true;
    this.paint(null);
  }

  close() {
    this.#watcher.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    // Our own scrolling is told late, when the pane may have another height already: it says nothing of what is wanted.
    if (Math.abs(scrollTop - this.#own) > 1) this.isAtEnd = this.follows && scrollTop + clientHeight >= scrollHeight - 4;
    this.later();
  }

  #held() {
    if (this.isAtEnd) return null;
    const index = this.#heights.at(this.scroller.scrollTop);
    return { index, offset: this.scroller.scrollTop - this.#heights.before(index) };
  }

  #top(held) {
    const all = this.#heights.before(this.count), room = this.scroller.clientHeight;
    if (!held) return Math.max(0, all - room);
    return Math.max(0, Math.min(this.#heights.before(held.index) + held.offset, all - room));
  }

  #range(held) {
    const top = this.#top(held);
    return [this.#heights.at(Math.max(0, top - BEYOND)), this.#heights.at(top + this.scroller.clientHeight + BEYOND)];
  }

  #place(first, last) {
    for (const index of [...this.#rows.keys()]) if (index < first || index > last) this.#drop(index);
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

  #measure() {
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

  #hold(held) {
    const top = this.#top(held);
    if (Math.abs(this.scroller.scrollTop - top) > 1) this.scroller.scrollTop = top;
    this.#own = this.scroller.scrollTop;
  }

  #resized(changed) {
    const isNews = changed.some(({ target }) => target === this.scroller
      || Math.abs(target.getBoundingClientRect().height - this.#heights.own[target.dataset.index]) > 0.5);
    if (isNews) this.later();
  }

  #drop(index) {
    const row = this.#rows.get(index);
    if (!row) return;
    this.#watcher.unobserve(row);
    row.remove();
    this.#rows.delete(index);
  }
}
