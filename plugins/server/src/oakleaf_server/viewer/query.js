// The query of a list of sessions, as `oakleaf ls` reads it.

/** The filters as the query of a list: `status:"idle" refund`. */
export function listQuery({ text = "", trashed, ...named }) {
  const given = Object.entries(named).map(([name, value]) => `${name}:"${value.replaceAll('"', "")}"`);
  return [...given, trashed === "true" ? "is:trashed" : "", text].filter(Boolean).join(" ");
}

/** The query for words as they are, without filters. */
export function wordsQuery(text) {
  return text.replaceAll('"', " ").split(/\s+/u).filter(Boolean).map((word) => `"${word}"`).join(" ");
}
