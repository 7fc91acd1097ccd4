// The requests sent to models, as rendered by the export; they share their messages.
// Reads the format of exchange/exports/requests.py and returns the shape of the server's /request.

import { parsePosition } from "./format.js";

export class Requests {
  #sessions;

  constructor(bytes) { this.#sessions = JSON.parse(new TextDecoder().decode(bytes)); }

  /** The request for the answer at an entry, or for the answer after it; null if it is not included. */
  of(session, entry, before, limit) {
    const exported = this.#sessions[session.id], place = `${entry.branch}:${entry.seq}`;
    if (!exported) return null;
    const index = exported.requests.findIndex((one) => one.at === place), found = index >= 0 ? index : exported.requests.findIndex((one) => one.after === place);
    return found < 0 ? null : this.#response(session, exported, found, before, Number(limit));
  }

  missing(session, entry) {
    const exported = this.#sessions[session.id], command = `oakleaf context ${session.id}@${entry.branch}:${entry.seq}`;
    const why = exported?.omitted ? `This copy omits ${exported.omitted} of the session's requests` : "No model call was made here";
    return `${why}. Download the bundle, run oakleaf import, then ${command} to render it.`;
  }

  #response(session, exported, index, before, limit) {
    const { at, after, provider, history, rest, tokens } = exported.requests[index], places = messagesOf(exported.requests, index);
    // The cursor is the index of a message here; the server's is the seq of an entry.
    const end = before ? Number(before) : places.length, begin = Math.max(0, end - limit);
    const messages = places.slice(begin, end).map((place) => exported.pool[place]), previous = this.#previous(session, exported, index);
    return {
      at, after, provider, messages_key: history, earlier: begin || null, omitted_chars: 0, request: { ...exported.pool[rest], [history]: messages },
      model: session.entry(parsePosition(at))?.model ?? null, tokens: tokens.map(([part, count]) => ({ part, tokens: count })),
      previous: previous === null ? null : exported.requests[previous].after, difference: previous === null ? null : difference(exported, previous, index, places),
    };
  }

  /** The index of the previous request on the same path. */
  #previous(session, exported, index) {
    const leaf = parsePosition(exported.requests[index].after);
    for (let at = index - 1; at >= 0; at--) if (session.isOnPath(leaf, parsePosition(exported.requests[at].at))) return at;
    return null;
  }
}

/** Indexes into the pool: each request lists only what it adds to the one before it. */
function messagesOf(requests, index) {
  let start = index;
  while (start > 0 && requests[start].shared_messages > 0) start--;
  let places = [];
  for (let at = start; at <= index; at++) places = [...places.slice(0, requests[at].shared_messages), ...requests[at].added_messages];
  return places;
}

/** The first message or other part that differs from an earlier request; null if the request only extends it. */
function difference(exported, before, index, now) {
  const { history, rest } = exported.requests[index], was = messagesOf(exported.requests, before);
  if (exported.requests[before].rest !== rest) return { path: "everything but the messages", before: exported.pool[exported.requests[before].rest], after: exported.pool[rest] };
  const at = was.findIndex((place, nth) => place !== now[nth]);
  return at < 0 ? null : { path: `${history}[${at}]`, before: exported.pool[was[at]], after: at < now.length ? exported.pool[now[at]] : null };
}
