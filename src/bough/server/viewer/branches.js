// A session's branches as rows: the path looked at runs straight down, what left it hangs on the side, folded.
// Pure: numbers in, rows out. Knows neither the page nor the words of an entry.

export const ENTRY = 0, SIDE = 1, RELATED = 2, PARENT = 3;

export class Branches {
  /** told: the answer of /branches. */
  constructor(told) {
    this.leaf = told.leaf;
    this.rows = new Map(told.branches.map(([branch, parent, from, tail, own]) => [branch,
      { branch, parent, from, tail, own }]));
    this.path = new Map(told.path.map(([branch, first, last]) => [branch, [first, last]]));
    this.related = told.related;
    this.children = new Map();
    for (const one of this.rows.values()) {
      if (one.parent === null) continue;
      const name = `${one.parent}:${one.from}`;
      if (!this.children.has(name)) this.children.set(name, []);
      this.children.get(name).push(one);
    }
  }

  get size() { return this.rows.size; }

  tail(branch) { return this.rows.get(branch)?.tail; }

  isOnPath(branch, seq) { return within(this.path.get(branch), seq); }

  /** The ranges of the path to a place, root first: [branch, first, last]. */
  ranges({ branch, seq }) {
    const found = [];
    let at = this.rows.get(branch), last = seq;
    while (at) {
      found.push([at.branch, at.from + 1, last]); // of a branch that was left at its very beginning: nothing
      last = Math.min(last, at.from);
      at = at.parent === null ? null : this.rows.get(at.parent);
    }
    return found.reverse();
  }

  /** An entry more on a branch that is known; false if it is not, or something between is missing. */
  grow(branch, seq) {
    const one = this.rows.get(branch);
    if (!one || seq > one.tail + 1) return false;
    one.tail = Math.max(one.tail, seq);
    const range = this.path.get(branch);
    if (range && range[1] === seq - 1) { range[1] = seq; this.leaf = `${branch}:${seq}`; }
    return true;
  }

  /** Every row there is to show: [kind, branch, seq, depth, …]. `open` holds the names of unfolded sides. */
  slots(trunk, open) {
    const slots = [], onTrunk = new Set(trunk.map(([branch]) => branch)), related = this.#relatedAt(trunk);
    const side = (branch, first, depth, isRest) => this.#side(slots, [branch, first, depth, null, isRest], open, onTrunk);
    for (const [branch, first, last] of trunk) {
      this.#hang(branch, first - 1, 0, side, onTrunk);
      for (let seq = first; seq <= last; seq++) {
        slots.push([ENTRY, branch, seq, 0]);
        for (const other of related.get(seq) ?? []) slots.push([RELATED, branch, seq, 0, other]);
        this.#hang(branch, seq, 0, side, onTrunk);
      }
      if (this.tail(branch) > last) side(branch, last + 1, 1, true);
    }
    return slots;
  }

  #hang(branch, seq, depth, side, onTrunk) {
    for (const child of this.children.get(`${branch}:${seq}`) ?? []) if (!onTrunk.has(child.branch)) side(child.branch,
      child.from + 1, depth + 1, false);
  }

  /** A line that left: its head, and what is in it if it is open. Without recursion, for lines lie in lines. */
  #side(slots, begin, open, onTrunk) {
    const todo = [begin];
    while (todo.length) {
      const [line, seq, level, at, isRest] = todo.pop(), tail = this.tail(line);
      if (at === null) {
        slots.push([SIDE, line, seq, level]);
        if (!open.has(`${line}:${seq}`)) continue;
        todo.push([line, seq, level, isRest ? seq : seq - 1]); // what left before the rest of a branch hangs on the path
        continue;
      }
      if (at > tail) continue;
      if (at >= seq) slots.push([ENTRY, line, at, level]);
      todo.push([line, seq, level, at + 1]);
      const hung = (this.children.get(`${line}:${at}`) ?? []).filter((child) => !onTrunk.has(child.branch));
      for (const child of hung.reverse()) todo.push([child.branch, child.from + 1, level + 1, null, false]);
    }
  }

  /** Forks, tasks and replays, by the seq of the shown path they hang on. */
  #relatedAt(trunk) {
    const found = new Map();
    let last = 0; // as far as the shown path is the present one: those that left it later hang where the two part
    for (const [branch, first, end] of trunk) if (this.isOnPath(branch, first)) last = Math.min(end,
      this.path.get(branch)[1]);
    for (const one of this.related) {
      const seq = Math.max(1, Math.min(one.parent_seq ?? 1, last));
      if (!found.has(seq)) found.set(seq, []);
      found.get(seq).push(one);
    }
    return found;
  }

  /** Whether the session stands on this line, or on one that hangs on it. */
  holdsLeaf(branch, first) { return within(this.path.get(branch), first); }
}

function within(range, seq) {
  return Boolean(range) && seq >= range[0] && seq <= range[1];
}
