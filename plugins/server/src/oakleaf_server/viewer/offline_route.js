// URLs within a single file: everything is in the fragment.
// Replaces route.js in a read-only copy, which has no list, no filters and no other pages.

import { Value } from "./dom.js";
import { root } from "./offline.js";

export const route = new Value(read());

function read() {
  const url = new URL(location.hash.slice(1) || "/", "https://copy.invalid"), parts = url.pathname.split("/").filter(Boolean);
  const id = parts[0] === "s" && parts[1] ? decodeURIComponent(parts[1]) : root;
  return { page: "session", id, query: Object.fromEntries(url.searchParams) };
}

export function filters() { return {}; }

export function buildUrl(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  return search ? `#${path}?${search}` : `#${path}`;
}

export function sessionLink(id, at = null) {
  const place = at === null ? null : typeof at === "object" ? `${at.branch}:${at.seq}` : String(at);
  return buildUrl(`/s/${encodeURIComponent(id)}`, { at: place }).replaceAll("%3A", ":");
}

export function navigate(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  route.set(read());
}

export function replaceUrl(url) {
  history.replaceState(null, "", url);
  route.now = read();
}

/** The browser follows fragment links without help. */
export function followLinks() {
  addEventListener("popstate", () => route.set(read()));
}
