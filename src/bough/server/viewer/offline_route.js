// Addresses within one file: everything stands behind the #, for a file has no paths of its own.
// Stands in for route.js. A copy has no list, so it has no filters, and every other page is its session.

import { Value } from "./dom.js";
import { root } from "./offline.js";

export const route = new Value(read());

function read() {
  const url = new URL(location.hash.slice(1) || "/", "https://copy.invalid"), parts = url.pathname.split("/").filter(Boolean);
  const id = parts[0] === "s" && parts[1] ? decodeURIComponent(parts[1]) : root;
  return { page: "session", id, query: Object.fromEntries(url.searchParams) };
}

export function filters() { return {}; }

export function to(path, query = {}) {
  const said = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  return said ? `#${path}?${said}` : `#${path}`;
}

export function sessionLink(id, at = null) {
  const place = at === null ? null : typeof at === "object" ? `${at.branch}:${at.seq}` : String(at);
  return to(`/s/${encodeURIComponent(id)}`, { at: place }).replaceAll("%3A", ":");
}

export function go(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  route.set(read());
}

export function note(url) {
  history.replaceState(null, "", url);
  route.now = read();
}

/** Links are fragments, which the browser follows by itself. */
export function follow() {
  addEventListener("popstate", () => route.set(read()));
}
