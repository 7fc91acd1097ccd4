// HTTP requests to the server and their errors.
// Knows nothing about individual endpoints.

import { Value } from "./dom.js";
import { sentence } from "./format.js";

/** A failed request; `text` is the message with its hint. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.plan = body.plan ?? null;
  }
  get text() { return this.hint ? `${sentence(this.message)}. ${sentence(this.hint)}` : sentence(this.message); }
}

/** True while the server requires a token. */
export const locked = new Value(false);

export function apiUrl(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  const search = query.toString();
  return search ? `/api${path}?${search}` : `/api${path}`;
}

export async function fetchJson(path, params, signal) {
  return readReply(await request(apiUrl(path, params), { signal, headers: { accept: "application/json" } }));
}

export async function sendJson(method, path, body = {}) {
  const headers = { "content-type": "application/json", "x-oakleaf": "1" };
  return readReply(await request(apiUrl(path), { method, headers, body: JSON.stringify(body) }));
}

async function request(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "cannot reach the server", code: "offline" });
  }
}

async function readReply(response) {
  if (response.status === 204) return null;
  let body = {};
  try { body = await response.json(); } catch { body = {}; }
  if (response.ok) return body;
  if (response.status === 401) locked.set(true);
  throw new Problem(response.status, body);
}

export function sessionPath(id, rest = "") {
  return `/sessions/${encodeURIComponent(id)}${rest}`;
}

/** The URL of one of the viewer's own files. */
export function assetUrl(name) { return `/assets/${name}`; }

/** The URL of a blob; a read-only copy returns null for blobs it does not include. */
export function blobUrl(hash) { return apiUrl(`/blobs/${encodeURIComponent(hash)}`); }

/** The URL that downloads the stored JSON of an entry. */
export function rawUrl(id, place) { return apiUrl(sessionPath(id, `/entries/${place}/raw`)); }

/** The URL that downloads a whole request. */
export function requestUrl(id, at, provider) { return apiUrl(sessionPath(id, "/request/raw"), { at, provider }); }

/** An entry of any length. */
export async function fetchEntry(id, place) {
  return readReply(await request(rawUrl(id, place), { headers: { accept: "application/json" } }));
}
