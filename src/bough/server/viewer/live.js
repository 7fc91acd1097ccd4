// A session's live events: every fact once and in order, across reconnections.
// EventSource stops reconnecting while a server restarts, so this class reconnects itself, after the last fact received.

import { apiUrl, sessionPath } from "./api.js";

// The names of durable events, each with the number of its fact; a client sees some facts as "hidden".
const FACTS = ["started", "input", "turn_started", "turn_resumed", "answer", "tool_result", "compacted", "note", "settings",
  "appended", "call_started", "call_failed", "call_dropped", "calls_started", "approval_requested", "approved", "denied",
  "waiting", "task_started", "task_decided", "enqueued", "cancel_requested", "interrupted", "moved", "titled", "tagged",
  "labelled", "ended", "recorded", "turn_completed", "hidden"];
const LIVE = ["delta", "draft", "retry", "warning"];
const FIRST_PAUSE = 500, LONGEST_PAUSE = 8000;

export class Live {
  #source = null;
  #timer = 0;
  #pause = FIRST_PAUSE;
  #isClosed = false;

  /** handlers: {fact, delta, draft, retry, warning, resync, connected(isConnected)} */
  constructor(id, after, handlers) {
    this.id = id;
    this.lastFact = after;
    this.handlers = handlers;
    this.#open();
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#source?.close();
  }

  #open() {
    const source = new EventSource(apiUrl(sessionPath(this.id, "/events"), { after: this.lastFact }));
    this.#source = source;
    source.onopen = () => { this.#pause = FIRST_PAUSE; this.handlers.connected(true); };
    source.onerror = () => this.#reconnect(source);
    const on = (names, handle) => {
      for (const name of names) source.addEventListener(`session:${name}`, (event) => handle(JSON.parse(event.data)));
    };
    on(FACTS, (fact) => this.#fact(fact));
    on(["resync"], (data) => this.#resync(data.last_fact));
    for (const name of LIVE) on([name], (data) => this.handlers[name](data));
  }

  #fact(fact) {
    if (fact.number <= this.lastFact) return; // repeated after a reconnection
    if (fact.number > this.lastFact + 1) return this.#resync(fact.number);
    this.lastFact = fact.number;
    this.handlers.fact(fact);
  }

  #resync(number) {
    this.lastFact = number;
    this.handlers.resync(number);
  }

  #reconnect(source) {
    if (this.#isClosed) return;
    this.handlers.connected(false);
    source.close();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
  }
}
