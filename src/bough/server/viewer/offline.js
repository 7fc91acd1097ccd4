// What the viewer asks, answered from the bundle inside this page: a copy, so it can be read and not changed.
// Stands in for api.js. The questions and the shapes of answers are those of docs/http.md.

import { Problem, locked, sessionPath } from "./api.js";
import { dataUrl, embedded, opened } from "./offline_bundle.js";
import { isInput, lineOf, mediaOf, nearlyWhole, oneLine, parts, shortened, text } from "./offline_lines.js";
import { hits, understood } from "./offline_search.js";
import { Requests } from "./offline_seen.js";

export { Problem, locked, sessionPath };

const bytes = embedded("bundle");
const { header, sessions, blobs } = opened(bytes);
const requests = new Requests(embedded("requests"));

/** The session the copy was made of. */
export const root = header.session;

export async function ask(path, params = {}) {
  const given = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const [, name, verb = "", place] = /^\/sessions\/([^/]+)(?:\/(\w+)(?:\/(.+))?)?$/.exec(path) ?? [];
  if (name) return ofSession(found(decodeURIComponent(name)), verb, place, given);
  const answer = { "": about, "/sessions": listed, "/facets": counted, "/search": searched }[path];
  if (!answer) throw new Problem(404, { code: "copy", detail: "This is a copy of one session; that is not in it." });
  return answer(given);
}

function ofSession(session, verb, place, given) {
  const answer = { "": detail, path: windowOf, entries: one, turns, branches, outline, usage, storage, journal, labels, seen }[verb];
  if (!answer) throw new Problem(404, { code: "copy", detail: `This is a copy; it cannot tell the ${verb} of a session.` });
  return answer(session, given, place);
}

export async function change() {
  throw new Problem(409, { code: "copy", detail: "This is a copy, and nothing in it can be changed", next: "Save the bundle and take it in with bough import." });
}

export function address(path) { return `#${path}`; }

export function asset(name) { return document.querySelector(`link[data-name="${name}"]`).href; }

export function blobAddress(hash) { return blobs.has(hash) ? dataUrl(blobs.get(hash)) : null; }

export function rawAddress(id, place) {
  const entry = at(found(id), place);
  return `data:application/json;charset=utf-8,${encodeURIComponent(JSON.stringify(entry, null, 1))}`;
}

function found(id) {
  const session = sessions.get(id);
  if (!session) throw new Problem(404, { code: "not_found", detail: `no session ${id} in this copy` });
  return session;
}

// -- the copy ---------------------------------------------------------------------------------

function about() {
  const words = header.redacted ? "A copy of a session; secrets are hidden in it" : "A copy of a session";
  const save = () => URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  return { level: "service", models: [], tools: [], providers: [], can_send: false, can_export: false, copy: { words, name: `${root}.bough`, save } };
}

function view(session) {
  const { session_id: id, ...row } = session.row;
  return { id, heading: heading(session), ...row };
}

function heading(session) {
  const { title, agent, seed_count: seeds = 0, leaf } = session.row;
  const first = session.path(leaf, seeds + 1, seeds + 3).find((entry) => entry.role === "user" && !entry.internal && text(entry).trim());
  return oneLine(title || (first ? text(first) : "")) || agent || session.id;
}

function childrenOf(session) { return [...sessions.values()].filter((other) => other.row.parent_session === session.id); }

function listed() { return { sessions: [...sessions.values()].map(view), next: null }; }

function counted() { return { total: sessions.size, facets: {} }; }

function searched({ q, limit = 20, page = 0 }) {
  const query = understood(q);
  if (typeof query === "string") throw new Problem(400, { code: "invalid_search", detail: query });
  const all = [...sessions.values()].flatMap((session) => hits(session, query, heading(session)));
  const end = Number(page) + Number(limit);
  return { hits: all.slice(Number(page), end), next: end < all.length ? String(end) : null, behind: 0 };
}

function detail(session) {
  const parent = sessions.get(session.row.parent_session), open = openCalls(session);
  return {
    session: view(session), open_calls: open, waiting: open.flatMap((call) => asked(session, call)), next_action: open.length ? "RunTools" : isTurnOpen(session) ? "CallModel" : "Rest",
    queued: session.queued, draft: null, is_running_here: false, parent: parent ? view(parent) : null, related: childrenOf(session).map(view),
  };
}

// -- what is open -----------------------------------------------------------------------------

/** The last input or answer of the path, and the results behind it. */
function ending(session) {
  const results = [], { leaf } = session.row;
  for (let seq = leaf.seq; seq > 0; seq--) {
    const [entry] = session.path(leaf, seq, seq);
    if (entry.role === "user" || entry.role === "assistant") return { entry, results };
    results.push(...parts(entry, "tool_result"));
  }
  return { entry: null, results };
}

function isTurnOpen(session) {
  const { entry, results } = ending(session);
  if (!entry || !entry.turn) return false;
  if (entry.role === "user") return true;
  return parts(entry, "tool_call").length > 0 && !results.some((result) => result.ends_turn);
}

function openCalls(session) { return openIn(session).map((call) => ({ ...call, state: stateOf(session, call) })); }

function openIn(session) {
  const { entry, results } = ending(session), answered = results.map((result) => result.call_id);
  if (entry?.role !== "assistant") return [];
  const open = parts(entry, "tool_call").map((call, index) => ({ seq: entry.seq, index, id: call.id, name: call.name, arguments: call.arguments }));
  return open.filter((call) => !answered.includes(call.id) || !answered.splice(answered.indexOf(call.id), 1));
}

/** Nobody drives a copy: what was started is unknown, unless its task waits or has its word. */
function stateOf(session, call) {
  const known = factsOf(session, call), waits = known.filter(({ kind }) => kind === "task_waits");
  const states = [["calls_started", "unknown"], ["denied", "denied"], ["approved", "approved"], ["approval_asked", "waits_for_approval"]];
  if (waits.some((fact) => askedIn(fact))) return "waits_for_task";
  if (waits.some((fact) => sessions.has(fact.data.session))) return "task_decided";
  return states.find(([kind]) => known.some((fact) => fact.kind === kind))?.[1] ?? "not_started";
}

/** The facts about a call since the answer that made it. */
function factsOf(session, { seq, index }) {
  const begun = session.facts.findLastIndex(({ kind, data }) => kind === "appended" && data.first <= seq && seq <= data.last);
  return session.facts.slice(begun + 1).filter(({ data }) => data.seq === seq && (data.index === index || data.indexes?.includes(index)));
}

/** What a person is asked about: the call itself, or those that its tasks wait for. */
function asked(session, call) {
  if (call.state === "waits_for_approval") return [{ ...call, session_id: session.id, task_of: null }];
  const waits = factsOf(session, call).filter(({ kind }) => kind === "task_waits");
  return waits.map((fact) => askedIn(fact)).filter(Boolean).map((found) => ({ ...found, task_of: { seq: call.seq, index: call.index } }));
}

/** The call of a task that a fact names, if it waits there still. */
function askedIn({ data }) {
  const task = sessions.get(data.session), call = task && openIn(task).find(({ seq, index }) => seq === data.asked.seq && index === data.asked.index);
  const isSettled = call && factsOf(task, call).some(({ kind }) => ["calls_started", "approved", "denied"].includes(kind));
  return call && !isSettled ? { ...call, session_id: task.id } : null;
}

// -- entries ----------------------------------------------------------------------------------

/** `3:7`, or `7` on the path to where the session stands. */
function placed(session, said) {
  const { leaf } = session.row;
  if (said === undefined) return leaf;
  const [branch, seq] = String(said).includes(":") ? String(said).split(":").map(Number) : [null, Number(said)];
  if (branch !== null) return { branch, seq };
  const range = session.ranges(leaf).find(([, first, last]) => seq >= first && seq <= last);
  return { branch: range ? range[0] : leaf.branch, seq };
}

function at(session, said) {
  const entry = session.entry(placed(session, said));
  if (!entry) throw new Problem(404, { code: "no_entry", detail: `there is no entry ${said} in this session` });
  return entry;
}

function windowOf(session, { leaf: said, limit = 100, first, last, around, public: isPublic }) {
  const leaf = placed(session, said), of = leaf.seq;
  const begin = first ?? (around ? Math.max(1, Math.min(around, of) - Math.floor(limit / 2)) : Math.max(1, (last ?? of) - limit + 1));
  const end = Math.min(of, begin + limit - 1);
  const entries = session.path(leaf, begin, end).filter((entry) => !isPublic || !entry.internal).map(shortened);
  return { session_id: session.id, leaf: `${leaf.branch}:${leaf.seq}`, of, first: begin, last: end, has_before: begin > 1, has_after: end < of, entries };
}

function one(session, _, place) {
  const entry = at(session, place), said = `${entry.branch}:${entry.seq}`;
  return { entry: nearlyWhole(entry), reference: `${session.id}@${said}`, on_path: session.isOnPath(session.row.leaf, entry), call: callOf(session, said) };
}

/** The model call whose answer stands there. */
function callOf(session, place) {
  const call = [...session.below, ...session.calls].find((made) => `${made.branch}:${made.answer_seq}` === place);
  return call ? { ...call, cost_microcents: call.price?.microcents ?? null } : null;
}

function turns(session, { leaf: said, before, limit = 50 }) {
  const leaf = placed(session, said), end = before ? Math.min(before - 1, leaf.seq) : leaf.seq;
  const inputs = session.path(leaf, 1, end).filter(isInput).reverse();
  const told = inputs.slice(0, limit).map((entry) => ({ turn: entry.seq, input: oneLine(text(entry)), at: entry.at }));
  return { leaf: `${leaf.branch}:${leaf.seq}`, turns: told, next: inputs.length > limit ? told.at(-1).turn : null };
}

function journal(session, { after = 0, limit = 100 }) {
  return { facts: session.facts.filter((fact) => fact.n > after).slice(0, limit), of: session.row.facts };
}

/** As the server reads them: the last word on a place counts; branches are numbered here as a label counts them. */
function labels(session) {
  const found = new Map();
  for (const { kind, data } of session.facts) {
    if (kind !== "labelled") continue;
    found.delete(`${data.nth}:${data.seq}`);
    if (data.label !== null) found.set(`${data.nth}:${data.seq}`, data.label);
  }
  return { labels: [...found].map(([place, label]) => ({ place, label })), of: found.size };
}

function seen(session, { at: said, first, limit = 50 }) {
  const entry = at(session, said), told = requests.of(session, entry, first, limit);
  if (!told) throw new Problem(404, { code: "copy", detail: requests.missing(session, entry) });
  return { ...told, call: callOf(session, told.at) };
}

// -- the tree ---------------------------------------------------------------------------------

function branches(session) {
  const { leaf } = session.row;
  return {
    leaf: `${leaf.branch}:${leaf.seq}`, columns: ["branch", "parent", "parent_seq", "tail", "own"],
    branches: [...session.branches.values()].map(({ branch, parent, from, tail, isOwn }) => [branch, parent, from, tail, Number(isOwn)]),
    path: session.ranges(leaf),
    related: childrenOf(session).map((child) => ({ id: child.id, relation: child.row.relation, parent_seq: child.row.parent_seq, status: child.row.status, heading: heading(child) })),
  };
}

function outline(session, { branch, leaf: said, places, first = 1, last, kinds = "all", limit = 500 }) {
  if (places) return { first: 0, last: 0, has_after: false, lines: places.split(",").map((place) => session.entry(placed(session, place))).filter(Boolean).map(lineOf) };
  const node = session.branches.get(Number(branch)), leaf = node ? { branch: node.branch, seq: node.tail } : placed(session, said);
  const begin = Math.max(first, node ? node.from + 1 : 1), end = Math.min(last ?? leaf.seq, leaf.seq);
  const meant = session.path(leaf, begin, end).filter((entry) => isMeant(entry, kinds));
  const covered = meant.length > limit ? meant[limit].seq - 1 : end;
  return { first: begin, last: covered, has_after: covered < end, lines: meant.slice(0, limit).map(lineOf) };
}

function isMeant(entry, kinds) {
  if (kinds === "inputs") return isInput(entry);
  return kinds === "all" || ((entry.role === "user" || entry.role === "assistant") && text(entry).trim() !== "");
}

// -- usage ------------------------------------------------------------------------------------

function usage(session, { view: name = "own", leaf: said, since }) {
  const calls = name === "path" || since !== undefined ? callsOnPath(session, placed(session, said), Number(since ?? 0)) : name === "tree" ? callsBelow(session) : session.calls;
  return { view: name, total: total(calls), models: grouped(calls, "model"), purposes: grouped(calls, "purpose"), buckets: grouped(calls, "bucket") };
}

/** The calls whose answer stands on the path; an unanswered one counts where it was made. */
function callsOnPath(session, leaf, since) {
  const reach = new Map(session.ranges(leaf).map(([branch, , last]) => [branch, last]));
  return [...session.below, ...session.calls].filter(({ branch, answer_seq: answer, after_seq: after }) =>
    (answer ?? after) <= (reach.get(branch) ?? -1) && (answer === null ? after >= since : answer > since));
}

function callsBelow(session) {
  const tasks = childrenOf(session).filter((child) => child.row.relation === "task");
  return [...session.calls, ...tasks.flatMap(callsBelow)];
}

function total(calls) {
  const sum = (read) => calls.reduce((so_far, call) => so_far + (read(call) ?? 0), 0);
  const tokens = Object.fromEntries(["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"].map((name) => [name, sum((call) => call.usage?.[name])]));
  return {
    calls: calls.length, ...tokens, cost_microcents: sum((call) => call.price?.microcents), unpriced_calls: sum((call) => (call.price ? 0 : 1)),
    unknown_calls: sum((call) => (call.usage?.input_tokens === undefined && call.usage?.output_tokens === undefined ? 1 : 0)),
  };
}

function grouped(calls, key) {
  const names = [...new Set(calls.map((call) => call[key] ?? ""))];
  return names.map((name) => ({ name, totals: total(calls.filter((call) => (call[key] ?? "") === name)) })).sort((a, b) => b.totals.cost_microcents - a.totals.cost_microcents || b.totals.calls - a.totals.calls);
}

function storage(session) {
  const encoder = new TextEncoder(), held = new Map();
  let entries = 0, size = 0;
  for (const entry of session.entries((branch) => branch.isOwn)) {
    entries++;
    size += encoder.encode(JSON.stringify(entry.payload)).length;
    for (const { hash, size: long } of mediaOf(entry)) held.set(hash, long);
  }
  const own = [...session.branches.values()].filter((branch) => branch.isOwn).length;
  return { entries, bytes: size, branches: own, blobs: held.size, blob_bytes: [...held.values()].reduce((sum, long) => sum + long, 0) };
}
