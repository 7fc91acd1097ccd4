// Reads the bundle embedded in this page into sessions with lookup by position.
// Knows the lines of a bundle (docs/format.md) and the lineage of branches.

const SHOWN = /^image\/(png|jpeg|gif|webp|avif)$/;

/** The bytes embedded by the export as "bundle" or "requests"; each piece is encoded separately. */
export function embedded(name) {
  const pieces = [...document.querySelectorAll(`script.${name}`)].map((piece) => decodeBase64(piece.textContent.trim()));
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) { all.set(piece, at); at += piece.length; }
  return all;
}

function decodeBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

/** One session: its row, branches, entries, model calls and facts. */
class SessionCopy {
  #entries = new Map(); // branch → its own entries, oldest first

  constructor({ row }) {
    this.id = row.session_id;
    this.row = row;
    this.branches = new Map();
    this.calls = [];
    this.inherited_calls = [];
    this.facts = [];
    this.queued = 0;
  }

  add(line) {
    switch (line.line) {
      case "branch": this.branches.set(line.number, { branch: line.number, parent: line.parent ?? null, from: line.parent_seq ?? 0, tail: line.tail, isOwn: !line.inherited }); break;
      case "entry": this.#addEntry(line); break;
      case "call": (line.inherited ? this.inherited_calls : this.calls).push(line.call); break;
      case "fact": this.facts.push({ number: line.number, kind: line.kind, at: line.at, data: factView(line) }); break;
      case "queued": this.queued++; break;
    }
  }

  #addEntry({ branch, seq, id, turn, step, at, body, kind = "message", internal = false, model = null, finish = null }) {
    if (!this.#entries.has(branch)) this.#entries.set(branch, []);
    const role = kind === "message" ? body.role : null;
    this.#entries.get(branch).push({ branch, seq, entry_id: id, turn, step, kind, role, internal, at, model, finish, payload: body });
  }

  /** The entry at a position, or undefined. */
  entry({ branch, seq }) {
    const from = this.branches.get(branch)?.from;
    return from === undefined ? undefined : this.#entries.get(branch)?.[seq - from - 1];
  }

  *entries(isIncluded = () => true) {
    for (const branch of this.branches.values()) if (isIncluded(branch)) yield* this.#entries.get(branch.branch) ?? [];
  }

  /** [branch, first, last] from the root to a position. */
  ranges({ branch, seq }) {
    const result = [];
    let last = seq;
    for (let at = this.branches.get(branch); at; at = at.parent === null ? undefined : this.branches.get(at.parent)) {
      if (last <= at.from) continue;
      result.push([at.branch, at.from + 1, last]);
      last = at.from;
    }
    return result.reverse();
  }

  /** The entries of the path to `leaf`, between two seqs. */
  path(leaf, first = 1, last = leaf.seq) {
    const result = [];
    for (const [branch, begin, end] of this.ranges(leaf)) {
      for (let seq = Math.max(begin, first); seq <= Math.min(end, last); seq++) result.push(this.entry({ branch, seq }));
    }
    return result;
  }

  isOnPath(leaf, { branch, seq }) {
    return this.ranges(leaf).some(([name, first, last]) => name === branch && seq >= first && seq <= last);
  }
}

/** Everything in the bundle: {header, sessions, blobs}. */
export function readBundle(bytes) {
  const result = { header: null, sessions: new Map(), blobs: new Map() };
  let session = null, blob = null;
  for (const line of lines(bytes)) {
    if (line.line === "oakleaf") result.header = line;
    else if (line.line === "session") result.sessions.set(line.row.session_id, (session = new SessionCopy(line)));
    else if (line.line === "blob") result.blobs.set(line.hash, (blob = { mime: line.mime, pieces: [] }));
    else if (line.line === "piece") blob.pieces.push(line.data);
    else if (line.line !== "end") session.add(line);
  }
  return result;
}

function* lines(bytes) {
  const decoder = new TextDecoder();
  for (let at = 0, end; at < bytes.length; at = end + 1) {
    end = bytes.indexOf(10, at);
    yield JSON.parse(decoder.decode(bytes.subarray(at, end)));
  }
}

/** Images keep their type, everything else is download only. Pieces are multiples of three bytes, so their base64 can be joined. */
export function dataUrl(blob) {
  const mime = blob.mime.split(";")[0].trim().toLowerCase();
  return `data:${SHOWN.test(mime) ? mime : "application/octet-stream"};base64,${blob.pieces.join("")}`;
}

/** The place and the fields of a fact, as on the server. */
function factView({ first, leaf, body }) {
  return { ...(first !== undefined && { first }), ...(leaf && { branch: leaf.branch, last: leaf.seq }), ...body };
}
