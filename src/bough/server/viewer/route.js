// Addresses: which page, which session, which entry, which filters. Everything worth sharing stands in them.

import { Value } from "./dom.js";

export const FILTERS = ["status", "agent", "model", "relation", "words", "tag", "trashed"];

export const route = new Value(read());

function read() {
  const url = new URL(location.href), parts = url.pathname.split("/").filter(Boolean);
  const query = Object.fromEntries(url.searchParams);
  if (parts[0] === "s" && parts[1]) return { page: "session", id: decodeURIComponent(parts[1]), query };
  if (parts[0] === "diff") return { page: "diff", id: null, query };
  if (parts[0] === "usage") return { page: "usage", id: null, query };
  return { page: "sessions", id: null, query };
}

export function filters(query = route.now.query) {
  return Object.fromEntries(FILTERS.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
}

/** An address with these parameters; empty ones are left out. */
export function to(path, query = {}) {
  const said = new URLSearchParams(Object.entries(query)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  return said ? `${path}?${said}` : path;
}

/** A session, with the filters of its list kept. */
export function sessionLink(id, at = null) {
  const place = at === null ? null : typeof at === "object" ? `${at.branch}:${at.seq}` : String(at);
  return to(`/s/${encodeURIComponent(id)}`, { ...filters(), at: place }).replaceAll("%3A", ":");
}

export function go(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  route.set(read());
}

/** The address says where one is; nothing is loaded for it. */
export function note(url) {
  history.replaceState(null, "", url);
  route.now = read();
}

export function follow() {
  addEventListener("popstate", () => route.set(read()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.target || link.hasAttribute("download")
      || url.pathname.startsWith("/api/")) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
}
