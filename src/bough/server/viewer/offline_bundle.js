// The bundle inside this page: its bytes, and the sessions in them as they can be looked things up in.
// Knows the lines of a bundle (docs/format.md) and lineage. Does not know what is asked for.

const SHOWN = /^image\/(png|jpeg|gif|webp|avif)$/;

/** The very bytes the export wrote, "bundle" or "requests"; each piece is base64 of its own. */
export function embedded(name) {
  const pieces = [...document.querySelectorAll(`script.${name}`)].map((piece) => decoded(piece.textContent.trim()));
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) { all.set(piece, at); at += piece.length; }
  return all;
}

function decoded(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

/** One session: its row, branches, entries, model calls and facts. */
export class Copied {
  #entries = new Map(); // branch → its own entries, oldest first

  constructor({ row }) {
    this.id = row.session_id;
    this.row = row;
    this.branches = new Map();
    this.calls = [];
    this.below = [];
    this.facts = [];
    this.queued = 0;
  }

  take(line) {
    switch (line.line) {
      case "branch": this.branches.set(line.n, { branch: line.n, parent: line.parent ?? null, from: line.parent_seq ?? 0, tail: line.tail, isOwn: !line.below }); break;
      case "entry": this.#take(line); break;
      case "call": (line.below ? this.below : this.calls).push(line.call); break;
      case "fact": this.facts.push({ n: line.n, kind: line.kind, at: line.at, data: line.data ?? {} }); break;
      case "queued": this.queued++; break;
    }
  }

  #take({ branch, seq, id, turn, step, at, body, kind = "message", internal = false, model = null, finish = null }) {
    if (!this.#entries.has(branch)) this.#entries.set(branch, []);
    const role = kind === "message" ? body.role : null;
    this.#entries.get(branch).push({ branch, seq, entry_id: id, turn, step, kind, role, internal, at, model, finish, payload: body });
  }

  /** The entry at a place; undefined if there is none. */
  entry({ branch, seq }) {
    const from = this.branches.get(branch)?.from;
    return from === undefined ? undefined : this.#entries.get(branch)?.[seq - from - 1];
  }

  *entries(isMeant = () => true) {
    for (const branch of this.branches.values()) if (isMeant(branch)) yield* this.#entries.get(branch.branch) ?? [];
  }

  /** [branch, first, last] from the root to a place. */
  ranges({ branch, seq }) {
    const found = [];
    let last = seq;
    for (let at = this.branches.get(branch); at; at = at.parent === null ? undefined : this.branches.get(at.parent)) {
      if (last <= at.from) continue;
      found.push([at.branch, at.from + 1, last]);
      last = at.from;
    }
    return found.reverse();
  }

  /** The entries of the path to a place, between two seqs. */
  path(leaf, first = 1, last = leaf.seq) {
    const found = [];
    for (const [branch, begin, end] of this.ranges(leaf)) {
      for (let seq = Math.max(begin, first); seq <= Math.min(end, last); seq++) found.push(this.entry({ branch, seq }));
    }
    return found;
  }

  isOnPath(leaf, { branch, seq }) {
    return this.ranges(leaf).some(([name, first, last]) => name === branch && seq >= first && seq <= last);
  }
}

/** Everything in the bundle: {header, sessions, blobs}. */
export function opened(bytes) {
  const found = { header: null, sessions: new Map(), blobs: new Map() };
  let session = null, blob = null;
  for (const line of lines(bytes)) {
    if (line.line === "bundle") found.header = line;
    else if (line.line === "session") found.sessions.set(line.row.session_id, (session = new Copied(line)));
    else if (line.line === "blob") found.blobs.set(line.hash, (blob = { mime: line.mime, pieces: [] }));
    else if (line.line === "piece") blob.pieces.push(line.data);
    else if (line.line !== "end") session.take(line);
  }
  return found;
}

function* lines(bytes) {
  const decoder = new TextDecoder();
  for (let at = 0, end; at < bytes.length; at = end + 1) {
    end = bytes.indexOf(10, at);
    yield JSON.parse(decoder.decode(bytes.subarray(at, end)));
  }
}

/** Pictures under their type, everything else only to be saved. Pieces are whole groups of three bytes, so they join. */
export function dataUrl(blob) {
  const mime = blob.mime.split(";")[0].trim().toLowerCase();
  return `data:${SHOWN.test(mime) ? mime : "application/octet-stream"};base64,${blob.pieces.join("")}`;
}
