// The requests sent to models, as rendered by the export; they share their messages.
// Reads the format of exchange/exports/requests.py and returns the shape of the server's /request.

export class Requests {
  #sessions;

  constructor(bytes) { this.#sessions = JSON.parse(new TextDecoder().decode(bytes)); }

  /** The request for the answer at an entry, or for the answer after it; null if it is not included. */
  of(session, entry, first, limit) {
    const kept = this.#sessions[session.id], place = `${entry.branch}:${entry.seq}`;
    if (!kept) return null;
    const index = kept.told.findIndex((one) => one.at === place), found = index >= 0 ? index : kept.told.findIndex((one) => one.behind === place);
    return found < 0 ? null : this.#told(session, kept, found, first, Number(limit));
  }

  missing(session, entry) {
    const kept = this.#sessions[session.id], command = `bough context ${session.id}@${entry.branch}:${entry.seq}`;
    const why = kept?.left ? `This copy omits ${kept.left} of the session's requests` : "No model call was made here";
    return `${why}. Download the bundle, run bough import, then ${command} to render it.`;
  }

  #told(session, kept, index, first, limit) {
    const { at, behind, provider, history, rest, tokens } = kept.told[index], places = messagesOf(kept.told, index);
    const begin = first === undefined || first === null ? Math.max(0, places.length - limit) : Number(first);
    const messages = places.slice(begin, begin + limit).map((place) => kept.pool[place]);
    const before = this.#before(session, kept, index);
    return {
      at, after: behind, provider, messages_key: history, first: begin, total: places.length, omitted_chars: 0, request: { ...kept.pool[rest], [history]: messages },
      model: session.entry(parsed(at))?.model ?? null, tokens: tokens.map(([part, count]) => ({ part, tokens: count })),
      previous: before === null ? null : kept.told[before].behind, difference: before === null ? null : difference(kept, before, index, places),
    };
  }

  /** The index of the previous request on the same path. */
  #before(session, kept, index) {
    const leaf = parsed(kept.told[index].behind);
    for (let at = index - 1; at >= 0; at--) if (session.isOnPath(leaf, parsed(kept.told[at].at))) return at;
    return null;
  }
}

function parsed(place) {
  const [branch, seq] = place.split(":").map(Number);
  return { branch, seq };
}

/** Indexes into the pool: each request lists only what it adds to the one before it. */
function messagesOf(told, index) {
  let start = index;
  while (start > 0 && told[start].same > 0) start--;
  let places = [];
  for (let at = start; at <= index; at++) places = [...places.slice(0, told[at].same), ...told[at].more];
  return places;
}

/** The first message or other part that differs from an earlier request; null if the request only extends it. */
function difference(kept, before, index, now) {
  const { history, rest } = kept.told[index], was = messagesOf(kept.told, before);
  if (kept.told[before].rest !== rest) return { path: "everything but the messages", before: kept.pool[kept.told[before].rest], after: kept.pool[rest] };
  const at = was.findIndex((place, nth) => place !== now[nth]);
  return at < 0 ? null : { path: `${history}[${at}]`, before: kept.pool[was[at]], after: at < now.length ? kept.pool[now[at]] : null };
}
