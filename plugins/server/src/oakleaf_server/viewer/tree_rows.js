// The rows of the tree: the viewed path is the trunk, other branches hang from it, folded.
// Pure functions on branch and seq numbers, without DOM or entry text.

export const ENTRY = 0;
export const SIDE = 1;
export const RELATED = 2;
export const PARENT = 3;

export class TreeRows {
  /** reply: the reply of /branches. */
  constructor(reply) {
    this.leaf = reply.leaf;
    this.rows = new Map(reply.branches.map(([branch, parent, from, tail, own]) => [branch,
      { branch, parent, from, tail, own }]));
    this.path = new Map(reply.path.map(([branch, first, last]) => [branch, [first, last]]));
    const [branch, seq] = String(reply.leaf).split(":").map(Number);
    if (!this.path.has(branch)) this.path.set(branch, [seq + 1, seq]); // a new fork has a branch without entries
    this.related = reply.related;
    this.children = new Map();
    for (const row of this.rows.values()) {
      if (row.parent === null) continue;
      const name = `${row.parent}:${row.from}`;
      if (!this.children.has(name)) this.children.set(name, []);
      this.children.get(name).push(row);
    }
  }

  get size() { return this.rows.size; }

  tail(branch) { return this.rows.get(branch)?.tail; }

  isOnPath(branch, seq) { return within(this.path.get(branch), seq); }

  /** The ranges of the path to a position, root first: [branch, first, last]. */
  ranges({ branch, seq }) {
    const ranges = [];
    let at = this.rows.get(branch), last = seq;
    while (at) {
      ranges.push([at.branch, at.from + 1, last]); // empty if the path leaves the branch at its beginning
      last = Math.min(last, at.from);
      at = at.parent === null ? null : this.rows.get(at.parent);
    }
    return ranges.reverse();
  }

  /** Add an entry to a known branch; return false if the branch is unknown or entries are missing. */
  grow(branch, seq) {
    const row = this.rows.get(branch);
    if (!row || seq > row.tail + 1) return false;
    row.tail = Math.max(row.tail, seq);
    const range = this.path.get(branch);
    if (range && range[1] === seq - 1) { range[1] = seq; this.leaf = `${branch}:${seq}`; }
    return true;
  }

  /** All rows to show: [kind, branch, seq, depth, …]. `open` contains the names of unfolded side branches. */
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

  /** A side branch: its head, and its entries if it is open. Iterative, because side branches nest deeply. */
  #side(slots, begin, open, onTrunk) {
    const todo = [begin];
    while (todo.length) {
      const [line, seq, level, at, isRest] = todo.pop(), tail = this.tail(line);
      if (at === null) {
        slots.push([SIDE, line, seq, level]);
        if (!open.has(`${line}:${seq}`)) continue;
        todo.push([line, seq, level, isRest ? seq : seq - 1]); // branches that left earlier hang from the trunk
        continue;
      }
      if (at > tail) continue;
      if (at >= seq) slots.push([ENTRY, line, at, level]);
      todo.push([line, seq, level, at + 1]);
      const hung = (this.children.get(`${line}:${at}`) ?? []).filter((child) => !onTrunk.has(child.branch));
      for (const child of hung.reverse()) todo.push([child.branch, child.from + 1, level + 1, null, false]);
    }
  }

  /** Forks, tasks and replays by the seq of the trunk entry they hang from. */
  #relatedAt(trunk) {
    const ranges = new Map();
    let last = 0; // the last entry shared by the trunk and the current path: later relatives hang there
    for (const [branch, first, end] of trunk) if (this.isOnPath(branch, first)) last = Math.min(end,
      this.path.get(branch)[1]);
    for (const row of this.related) {
      const seq = Math.max(1, Math.min(row.parent_seq ?? 1, last));
      if (!ranges.has(seq)) ranges.set(seq, []);
      ranges.get(seq).push(row);
    }
    return ranges;
  }

  /** Whether the current leaf is on this side branch or below it. */
  holdsLeaf(branch, first) { return within(this.path.get(branch), first); }
}

function within(range, seq) {
  return Boolean(range) && seq >= range[0] && seq <= range[1];
}
