// A session's events as they come: every fact once and in order, whatever the connection does.
// A browser that reconnects by itself gives up on a server that is restarting, so we reconnect, behind the last fact seen.

import { address, sessionPath } from "./api.js";

const FIRST_PAUSE = 500, LONGEST_PAUSE = 8000;

export class Live {
  #source = null;
  #timer = 0;
  #pause = FIRST_PAUSE;
  #isClosed = false;

  /** heard: {fact, delta, draft, run, resync, connected(isConnected)} */
  constructor(id, after, heard) {
    this.id = id;
    this.seen = after;
    this.heard = heard;
    this.#open();
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#source?.close();
  }

  #open() {
    const source = new EventSource(address(sessionPath(this.id, "/events"), { after: this.seen }));
    this.#source = source;
    source.onopen = () => { this.#pause = FIRST_PAUSE; this.heard.connected(true); };
    source.onerror = () => this.#lost(source);
    source.addEventListener("fact", (event) => this.#fact(JSON.parse(event.data)));
    source.addEventListener("resync", (event) => this.#resync(JSON.parse(event.data).facts));
    for (const name of ["delta", "draft", "run"]) {
      source.addEventListener(name, (event) => this.heard[name](JSON.parse(event.data)));
    }
  }

  #fact(fact) {
    if (fact.n <= this.seen) return; // told twice across a reconnection
    if (fact.n > this.seen + 1) return this.#resync(fact.n);
    this.seen = fact.n;
    this.heard.fact(fact);
  }

  #resync(n) {
    this.seen = n;
    this.heard.resync(n);
  }

  #lost(source) {
    if (this.#isClosed) return;
    this.heard.connected(false);
    source.close();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
  }
}
