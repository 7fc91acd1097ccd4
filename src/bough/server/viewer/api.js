// The one way to the server: reads, changes and problems.
// Knows HTTP and the shape of an error; does not know what is asked for.

import { Value } from "./dom.js";

/** What the server refused, in its own words. */
export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the server answered ${status}`);
    this.status = status;
    this.code = told.code ?? "";
    this.next = told.next ?? "";
  }
  get words() { return this.next ? `${this.message}. ${this.next}` : this.message; }
}

/** True while the server wants a token. */
export const locked = new Value(false);

export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const said = query.toString();
  return said ? `/api${path}?${said}` : `/api${path}`;
}

export async function ask(path, params, signal) {
  return answered(await reach(address(path, params), { signal, headers: { accept: "application/json" } }));
}

export async function change(method, path, body = {}) {
  const headers = { "content-type": "application/json", "x-bough": "1" };
  return answered(await reach(address(path), { method, headers, body: JSON.stringify(body) }));
}

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server cannot be reached", code: "offline" });
  }
}

async function answered(response) {
  if (response.status === 204) return null;
  let told = {};
  try { told = await response.json(); } catch { told = {}; }
  if (response.ok) return told;
  if (response.status === 401) locked.set(true);
  throw new Problem(response.status, told);
}

export function sessionPath(id, rest = "") {
  return `/sessions/${encodeURIComponent(id)}${rest}`;
}

/** A file of the viewer. */
export function asset(name) { return `/assets/${name}`; }

/** The bytes of a blob; null where they are known not to be. */
export function blobAddress(hash) { return address(`/blobs/${encodeURIComponent(hash)}`); }

/** The stored JSON of an entry, to be saved. */
export function rawAddress(id, place) { return address(sessionPath(id, `/entries/${place}/raw`)); }
