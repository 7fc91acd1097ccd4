// URLs: page, session, entry and filters, so that every view can be shared.

import { Value } from "./dom.js";

export const FILTERS = ["status", "agent", "model", "relation", "text", "tag", "trashed"];

export const route = new Value(read());

function read() {
  const url = new URL(location.href), parts = url.pathname.split("/").filter(Boolean);
  const query = Object.fromEntries(url.searchParams);
  if (parts[0] === "s" && parts[1]) return { page: "session", id: decoded(parts[1]), query };
  if (parts[0] === "diff") return { page: "diff", id: null, query };
  if (parts[0] === "usage") return { page: "usage", id: null, query };
  if (parts.length) return { page: "added", name: decoded(parts[0]), id: parts[1] ? decoded(parts[1]) : null, query };
  return { page: "sessions", id: null, query };
}

/** A part of a path; as it is written if it is not valid, such as a link that was cut. */
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

export function filters(query = route.now.query) {
  return Object.fromEntries(FILTERS.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
}

/** A URL with these parameters, without empty ones. */
export function buildUrl(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  return search ? `${path}?${search}` : path;
}

/** The URL of a session, keeping the filters of the list. */
export function sessionLink(id, at = null) {
  const place = at === null ? null : typeof at === "object" ? `${at.branch}:${at.seq}` : String(at);
  return buildUrl(`/s/${encodeURIComponent(id)}`, { ...filters(), at: place }).replaceAll("%3A", ":");
}

export function navigate(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  route.set(read());
}

/** Replace the URL without loading anything. */
export function replaceUrl(url) {
  history.replaceState(null, "", url);
  route.now = read();
}

export function followLinks() {
  addEventListener("popstate", () => route.set(read()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.target || link.hasAttribute("download")
      || url.pathname.startsWith("/api/")) return;
    event.preventDefault();
    navigate(url.pathname + url.search);
  });
}
