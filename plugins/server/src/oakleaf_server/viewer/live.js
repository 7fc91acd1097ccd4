// A session's live events: every fact once and in order, across reconnections.
// EventSource stops reconnecting while a server restarts, so this class reconnects itself, after the last fact received.

import { apiUrl, fetchJson, sessionPath } from "./api.js";

// The names of durable events, each with the number of its fact; a client sees some facts as "hidden".
const FACTS = ["started", "input", "turn_started", "turn_resumed", "answer", "tool_result", "compacted", "note", "settings",
  "appended", "call_started", "call_failed", "call_dropped", "calls_started", "approval_requested", "approved", "denied",
  "waiting", "task_started", "task_decided", "enqueued", "cancel_requested", "interrupted", "moved", "titled", "tagged",
  "labelled", "ended", "recorded", "turn_completed", "hidden"];
const LIVE = ["delta", "draft", "retry", "warning"];
const FIRST_PAUSE = 500, LONGEST_PAUSE = 8000, POLL_MS = 2000;

// A browser opens six connections to an HTTP/1.1 server, for all its tabs together. Streams take at most this many of
// them, or the seventh tab would wait for ever: hidden tabs close their stream, and further ones poll.
const MOST_STREAMS = 3;

export class Live {
  #source = null;
  #timer = 0;
  #pause = FIRST_PAUSE;
  #isClosed = false;
  #isOpening = false;
  #release = () => undefined;
  #onVisibility = () => (document.visibilityState === "hidden" ? this.#stop() : this.#open());

  /** handlers: {fact, delta, draft, retry, warning, resync, connected(isConnected), inTrash(isInTrash), gone} */
  constructor(id, after, handlers) {
    this.id = id;
    this.lastFact = after;
    this.handlers = handlers;
    document.addEventListener("visibilitychange", this.#onVisibility);
    this.#open();
  }

  close() {
    this.#isClosed = true;
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#stop();
  }

  /** End the stream or the polling; the next one continues after the last fact. */
  #stop() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
    this.#release();
    this.#release = () => undefined;
  }

  get #isIdle() { return this.#isClosed || document.visibilityState === "hidden"; }

  async #open() {
    if (this.#isIdle || this.#isOpening) return;
    this.#isOpening = true;
    this.#stop();
    const release = await reserveStream();
    this.#isOpening = false;
    if (release) this.#release = release;
    if (this.#isIdle) this.#stop();
    else if (release) this.#connect();
    else this.#poll();
  }

  #connect() {
    const source = new EventSource(apiUrl(sessionPath(this.id, "/events"), { after: this.lastFact }));
    this.#source = source;
    source.onopen = () => { this.#pause = FIRST_PAUSE; this.handlers.connected(true); };
    source.onerror = () => { if (source === this.#source) this.#retry(); };
    const on = (names, handle) => {
      for (const name of names) source.addEventListener(`session:${name}`, (event) => handle(JSON.parse(event.data)));
    };
    on(FACTS, (fact) => this.#fact(fact));
    on(["resync"], (data) => this.#resync(data.last_fact));
    on(["trashed"], () => this.handlers.inTrash(true));
    on(["restored"], () => this.handlers.inTrash(false));
    for (const name of LIVE) on([name], (data) => this.handlers[name](data));
  }

  /** Ask for new facts until a stream is free. */
  async #poll() {
    try {
      const { session } = await fetchJson(sessionPath(this.id));
      if (this.#isIdle) return;
      this.handlers.connected(true);
      this.handlers.inTrash(Boolean(session.trashed_at));
      if (session.facts > this.lastFact) this.#resync(session.facts);
      this.#pause = FIRST_PAUSE;
      this.#timer = setTimeout(() => this.#open(), POLL_MS);
    } catch {
      if (!this.#isIdle) this.#retry();
    }
  }

  #fact(fact) {
    if (fact.number <= this.lastFact) return; // repeated after a reconnection
    if (fact.number > this.lastFact + 1) return this.#resync(fact.number);
    this.lastFact = fact.number;
    this.handlers.fact(fact);
  }

  /** Have everything read again, also if that fails for a moment: until it is read, the facts are missed. */
  async #resync(number) {
    const before = this.lastFact;
    this.lastFact = number;
    try {
      await this.handlers.resync(number);
    } catch {
      this.lastFact = before;
      if (!this.#isIdle) this.#retry();
    }
  }

  #retry() {
    this.handlers.connected(false);
    this.#stop();
    this.#timer = setTimeout(() => this.#reopen(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
  }

  /** Open the stream again if there is still a session: an EventSource does not tell why it was refused. */
  async #reopen() {
    try {
      await fetchJson(sessionPath(this.id));
      this.#open();
    } catch (problem) {
      if (this.#isClosed) return;
      if (problem.status !== 404) return this.#retry();
      this.close();
      this.handlers.gone();
    }
  }
}

/** Reserve one of the streams that all tabs share; resolves to a function that gives it back, or to null if all are taken. */
async function reserveStream() {
  if (!navigator.locks) return () => undefined; // only in a secure context, such as localhost
  for (let number = 0; number < MOST_STREAMS; number++) {
    const release = await new Promise((resolve) => {
      navigator.locks.request(`oakleaf.stream.${number}`, { ifAvailable: true },
        (lock) => (lock ? new Promise((done) => resolve(done)) : resolve(null)));
    });
    if (release) return release;
  }
  return null;
}
