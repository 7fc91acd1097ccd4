// When calls ran and how long they waited: for a person, or for a process that resumed their turn.
// Entries have only the times of answers and results; the facts between them tell the rest.

const REQUESTS = ["approval_requested", "task_waits"], DECISIONS = ["approved", "denied"];

export class CallTimes {
  #facts = new Map(); // by kind, time and call

  /** facts: {kind, at, seq, index} of /calls. */
  add(facts) {
    for (const fact of facts) this.#facts.set(`${fact.kind} ${fact.at} ${fact.seq} ${fact.index}`, fact);
  }

  /** A fact of the live stream. */
  addLive({ kind, at, data = {} }) {
    if (kind === "tool_calls_started") this.add((data.indexes ?? []).map((index) => ({ kind, at, seq: data.seq, index })));
    else if (kind === "turn_left" && data.status === "waiting") this.add([{ kind: "waiting", at }]);
    else if (kind === "turn_resumed" || REQUESTS.includes(kind) || DECISIONS.includes(kind)) this.add([{ kind, at, seq: data.seq, index: data.index }]);
  }

  /** A tool call from its answer to its result: {start, waited}; start is null if it never ran. */
  ofTool(answer, index, { result, entry }) {
    const own = this.#between(answer.at, entry.at).filter((fact) => fact.kind === "turn_resumed" || (fact.seq === answer.seq && fact.index === index));
    const starts = own.filter(({ kind }) => kind === "turn_resumed" || kind === "tool_calls_started").map(({ at }) => at);
    return { start: result.outcome === "denied" ? null : Math.max(answer.at, ...starts), waited: totalWait(own) };
  }

  /** When a tool call that has no result yet started, as far as it is known. */
  startOfTool(answer, index) {
    const starts = [...this.#facts.values()].filter((fact) => fact.kind === "tool_calls_started" && fact.seq === answer.seq && fact.index === index);
    return Math.max(answer.at, ...starts.map(({ at }) => at));
  }

  /** When the call of a model started that the entry before it led to. */
  startOfModel(before, answer) {
    const resumed = this.#between(before.at, answer.at).filter(({ kind }) => kind === "turn_resumed").map(({ at }) => at);
    return Math.max(before.at, ...resumed);
  }

  /** How long nothing ran because everything waited for a person: from each pause to the resumption. */
  idle(since, until) {
    const facts = this.#between(since, until);
    let sum = 0, paused = null;
    for (const { kind, at } of facts) {
      if (kind === "waiting") paused = at;
      if (kind === "turn_resumed" && paused !== null) { sum += at - paused; paused = null; }
    }
    return sum;
  }

  #between(since, until) {
    return [...this.#facts.values()].filter(({ at }) => at >= since && at <= until).sort((a, b) => a.at - b.at);
  }
}

/** From each request to its decision; what a task asked for is decided in the task, and ends when the turn is resumed. */
function totalWait(facts) {
  return facts.reduce((sum, request, n) => {
    if (!REQUESTS.includes(request.kind)) return sum;
    const later = facts.slice(n + 1), end = later.find(({ kind }) => DECISIONS.includes(kind)) ?? later.find(({ kind }) => kind === "turn_resumed");
    return end ? sum + end.at - request.at : sum;
  }, 0);
}
