// What each model was given, as the export rendered it: requests that share their messages.
// Knows how they are kept (exchange/requests.py). Says them in the shape of the server's /seen.

export class Requests {
  #sessions;

  constructor(bytes) { this.#sessions = JSON.parse(new TextDecoder().decode(bytes)); }

  /** For the answer at an entry, or for the one that was made behind it; null if it is not here. */
  of(session, entry, first, limit) {
    const kept = this.#sessions[session.id], place = `${entry.branch}:${entry.seq}`;
    if (!kept) return null;
    const index = kept.told.findIndex((one) => one.at === place), found = index >= 0 ? index : kept.told.findIndex((one) => one.behind === place);
    return found < 0 ? null : this.#told(session, kept, found, first, Number(limit));
  }

  missing(session, entry) {
    const kept = this.#sessions[session.id], command = `bough context ${session.id}@${entry.branch}:${entry.seq}`;
    const why = kept?.left ? `This copy had no room for ${kept.left} of the session's requests` : "No model was asked here";
    return `${why}. Save the bundle, take it in with bough import, and ${command} renders what a model would be given here.`;
  }

  #told(session, kept, index, first, limit) {
    const { at, behind, provider, history, rest, tokens } = kept.told[index], places = messagesOf(kept.told, index);
    const begin = first === undefined || first === null ? Math.max(0, places.length - limit) : Number(first);
    const messages = places.slice(begin, begin + limit).map((place) => kept.pool[place]);
    const before = this.#before(session, kept, index);
    return {
      at, behind, provider, history, first: begin, of: places.length, cut: 0, request: { ...kept.pool[rest], [history]: messages },
      model: session.entry(parsed(at))?.model ?? null, tokens: tokens.map(([part, count]) => ({ part, tokens: count })),
      before: before === null ? null : kept.told[before].behind, difference: before === null ? null : difference(kept, before, index, places),
    };
  }

  /** The request for the answer before, on the same path. */
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

/** Which of the pool: each request says what it adds to the one before it. */
function messagesOf(told, index) {
  let start = index;
  while (start > 0 && told[start].same > 0) start--;
  let places = [];
  for (let at = start; at <= index; at++) places = [...places.slice(0, told[at].same), ...told[at].more];
  return places;
}

/** The first message, or the settings, in which a request does not go on from an earlier one; null if it only adds. */
function difference(kept, before, index, now) {
  const { history, rest } = kept.told[index], was = messagesOf(kept.told, before);
  if (kept.told[before].rest !== rest) return { path: "everything but the messages", before: kept.pool[kept.told[before].rest], after: kept.pool[rest] };
  const at = was.findIndex((place, nth) => place !== now[nth]);
  return at < 0 ? null : { path: `${history}[${at}]`, before: kept.pool[was[at]], after: at < now.length ? kept.pool[now[at]] : null };
}
