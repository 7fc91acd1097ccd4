// Answers the viewer's requests from the bundle embedded in this page: a read-only copy.
// Replaces api.js. Requests and responses have the shapes of docs/http.md.

import { Problem, locked, sessionPath } from "./api.js";
import { dataUrl, embedded, readBundle } from "./offline_bundle.js";
import { failures, isInput, isListed, outlineLine, mediaOf, fullEntry, oneLine, parts, truncateEntry, text } from "./entry_lines.js";
import { hits, parseQuery } from "./offline_search.js";
import { Requests } from "./offline_requests.js";

export { Problem, locked, sessionPath };

const bytes = embedded("bundle");
const { header, sessions, blobs } = readBundle(bytes);
const requests = new Requests(embedded("requests"));

/** The session that was exported. */
export const root = header.session;

export async function fetchJson(path, params = {}) {
  const query = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const [, name, verb = "", place] = /^\/sessions\/([^/]+)(?:\/(\w+)(?:\/(.+))?)?$/.exec(path) ?? [];
  if (name) return ofSession(findSession(decodeURIComponent(name)), verb, place, query);
  const answer = { "": about, "/sessions": listSessions, "/facets": facetCounts, "/search": searchSessions, "/usage": usage }[path];
  if (!answer) throw new Problem(404, { code: "copy", detail: "Not available in this read-only copy." });
  return answer(query);
}

function ofSession(session, verb, place, query) {
  const answer = { "": detail, path: pathWindow, entries: entryDetail, turns, calls: modelCalls, branches, outline, storage, labels, request }[verb];
  if (!answer) throw new Problem(404, { code: "copy", detail: `${verb} is not available in this read-only copy.` });
  return answer(session, query, place);
}

export async function sendJson() {
  throw new Problem(409, { code: "copy", detail: "This is a read-only copy", hint: "Download the bundle and run oakleaf import to make changes." });
}

export function apiUrl(path) { return `#${path}`; }

export function assetUrl(name) { return document.querySelector(`link[data-name="${name}"]`).href; }

export function blobUrl(hash) { return blobs.has(hash) ? dataUrl(blobs.get(hash)) : null; }

export async function fetchEntry(id, place) { return entryAt(findSession(id), place); }

export function requestUrl() { return null; } // a copy has only what it shows

export function rawUrl(id, place) {
  const entry = entryAt(findSession(id), place);
  return `data:application/json;charset=utf-8,${encodeURIComponent(JSON.stringify(entry, null, 1))}`;
}

function findSession(id) {
  const session = sessions.get(id);
  if (!session) throw new Problem(404, { code: "not_found", detail: `session ${id} is not in this copy` });
  return session;
}

// -- the copy ---------------------------------------------------------------------------------

function about() {
  const label = header.redacted ? "Read-only copy of a session, secrets redacted" : "Read-only copy of a session";
  const save = () => URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  return { level: "service", models: [], tools: [], providers: [], can_send: false, can_export: false, copy: { label, name: `${root}.oakleaf`, save } };
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

function listSessions({ query = "" }) {
  const all = [...sessions.values()].map(view);
  const words = query.toLowerCase().replaceAll('"', "").split(/\s+/u);
  return { sessions: all.filter((row) => words.every((word) => row.heading.toLowerCase().includes(word))), next: null };
}

function facetCounts() { return { total: sessions.size, is_partial: false, facets: {} }; }

function searchSessions({ query: typed, limit = 20, page = 0 }) {
  const query = parseQuery(typed);
  if (typeof query === "string") throw new Problem(400, { code: "invalid_search", detail: query });
  const all = [...sessions.values()].flatMap((session) => hits(session, query, heading(session)));
  const end = Number(page) + Number(limit);
  return { hits: all.slice(Number(page), end), next: end < all.length ? String(end) : null, unindexed_sessions: 0 };
}

function detail(session) {
  const parent = sessions.get(session.row.parent_session), open = openCalls(session);
  return {
    session: view(session), open_tool_calls: open, pending_approvals: open.flatMap((call) => approvalsOf(session, call)), next_action: open.length ? "RunTools" : isTurnOpen(session) ? "CallModel" : "Rest",
    queued: session.queued, draft: null, is_running_here: false, is_held: false, parent: parent ? view(parent) : null, related: childrenOf(session).map(view),
  };
}

// -- open tool calls --------------------------------------------------------------------------

/** The last input or answer of the path, and the results after it. */
function lastMessage(session) {
  const results = [], { leaf } = session.row;
  let ended = false;
  for (let seq = leaf.seq; seq > 0; seq--) {
    const [entry] = session.path(leaf, seq, seq);
    if (entry.role === "user" || entry.role === "assistant") return { entry, results, ended };
    ended ||= entry.finish === "ended_by_tool";
    results.push(...parts(entry, "tool_result"));
  }
  return { entry: null, results, ended };
}

function isTurnOpen(session) {
  const { entry, results, ended } = lastMessage(session);
  if (!entry || !entry.turn || ended) return false;
  if (entry.role === "user") return true;
  return parts(entry, "tool_call").length > 0 && !results.some((result) => result.ends_turn);
}

function openCalls(session) { return openIn(session).map((call) => ({ ...call, state: stateOf(session, call) })); }

function openIn(session) {
  const { entry, results } = lastMessage(session), answered = results.map((result) => result.call_id);
  if (entry?.role !== "assistant") return [];
  const open = parts(entry, "tool_call").map((call, index) => ({ seq: entry.seq, index, id: call.id, name: call.name, arguments: call.arguments }));
  return open.filter((call) => !answered.includes(call.id) || !answered.splice(answered.indexOf(call.id), 1));
}

/** Nothing runs in a copy: the outcome of a started call is unknown, unless its task needs or has an approval. */
function stateOf(session, call) {
  const known = factsOf(session, call), waits = known.filter(({ kind }) => kind === "task_waits");
  const states = [["tool_calls_started", "unknown"], ["denied", "denied"], ["approved", "approved"], ["approval_requested", "waits_for_approval"]];
  if (waits.some((fact) => taskApproval(fact))) return "waits_for_task";
  if (waits.some((fact) => sessions.has(fact.data.session))) return "task_decided";
  const state = states.find(([kind]) => known.some((fact) => fact.kind === kind))?.[1];
  return state ?? (hasRecordedStarts(session, call) ? "not_started" : "no_start_recorded");
}

/** Whether the runner of these calls recorded the start of any: only then is one without a start not started. */
function hasRecordedStarts(session, { seq }) {
  const begun = answerFact(session, seq);
  const resumed = session.facts.slice(0, begun + 1).findLastIndex(({ kind }) => kind === "turn_started" || kind === "turn_resumed");
  return session.facts.slice(resumed + 1).some(({ kind }) => kind === "tool_calls_started");
}

function answerFact(session, seq) {
  return session.facts.findLastIndex(({ kind, data }) => kind === "appended" && data.first <= seq && seq <= data.last);
}

/** The facts about a call since the answer that made it. */
function factsOf(session, { seq, index }) {
  return session.facts.slice(answerFact(session, seq) + 1).filter(({ data }) => data.seq === seq && (data.index === index || data.indexes?.includes(index)));
}

/** Pending approvals of a call: its own, or those its tasks wait for. */
function approvalsOf(session, call) {
  if (call.state === "waits_for_approval") return [{ ...call, session_id: session.id, parent_call: null, decided_elsewhere: null }];
  const waits = factsOf(session, call).filter(({ kind }) => kind === "task_waits");
  return waits.map((fact) => taskApproval(fact)).filter(Boolean).map((approval) => ({ ...approval, parent_call: { seq: call.seq, index: call.index }, decided_elsewhere: null }));
}

/** The task's call named by a fact, if it still waits for approval. */
function taskApproval({ data }) {
  const task = sessions.get(data.session), call = task && openIn(task).find(({ seq, index }) => seq === data.call.seq && index === data.call.index);
  const isSettled = call && factsOf(task, call).some(({ kind }) => ["tool_calls_started", "approved", "denied"].includes(kind));
  return call && !isSettled ? { ...call, session_id: task.id } : null;
}

// -- entries ----------------------------------------------------------------------------------

/** `3:7`, or `7` on the current path. */
function resolvePosition(session, value) {
  const { leaf } = session.row;
  if (value === undefined) return leaf;
  const [branch, seq] = String(value).includes(":") ? String(value).split(":").map(Number) : [null, Number(value)];
  if (branch !== null) return { branch, seq };
  const range = session.ranges(leaf).find(([, first, last]) => seq >= first && seq <= last);
  return { branch: range ? range[0] : leaf.branch, seq };
}

function entryAt(session, value) {
  const entry = session.entry(resolvePosition(session, value));
  if (!entry) throw new Problem(404, { code: "no_entry", detail: `entry ${value} does not exist in this session` });
  return entry;
}

function pathWindow(session, { leaf: value, limit = 100, first, last, around, public: isPublic }) {
  const leaf = resolvePosition(session, value), total = leaf.seq;
  const begin = first ?? (around ? Math.max(1, Math.min(around, total) - Math.floor(limit / 2)) : Math.max(1, (last ?? total) - limit + 1));
  const end = Math.min(total, begin + limit - 1);
  const entries = session.path(leaf, begin, end).filter((entry) => !isPublic || !entry.internal).map(truncateEntry);
  return { session_id: session.id, leaf: `${leaf.branch}:${leaf.seq}`, total, facts: session.row.facts, first: begin, last: end, has_before: begin > 1, has_after: end < total, entries };
}

function entryDetail(session, _, place) {
  const entry = entryAt(session, place), value = `${entry.branch}:${entry.seq}`;
  return { entry: fullEntry(entry), reference: `${session.id}@${value}`, on_path: session.isOnPath(session.row.leaf, entry), call: callOf(session, value) };
}

/** The model call whose answer is at this position. */
function callOf(session, place) {
  const call = [...session.inherited_calls, ...session.calls].find((made) => `${made.branch}:${made.answer_seq}` === place);
  return call ? { ...call, cost_microcents: call.price?.microcents ?? null } : null;
}

function turns(session, { leaf: value, before, limit = 50 }) {
  const leaf = resolvePosition(session, value), end = before ? Math.min(before - 1, leaf.seq) : leaf.seq, entries = session.path(leaf, 1, end);
  const inputs = entries.filter(isInput).reverse(), data = inputs.slice(0, limit).map((entry, at) => turnSummary(session, leaf, entry, entries, at ? inputs[at - 1].seq - 1 : end));
  return { leaf: `${leaf.branch}:${leaf.seq}`, turns: data, next: inputs.length > limit ? data.at(-1).turn : null };
}

function turnSummary(session, leaf, input, entries, last) {
  const own = entries.filter((entry) => entry.turn === input.turn && entry.seq <= last), calls = own.flatMap((entry) => parts(entry, "tool_call"));
  const results = own.flatMap((entry) => parts(entry, "tool_result")), denied = results.filter((result) => result.outcome === "denied").length;
  const behind = new Set(failuresOnPath(session, leaf).map(({ seq }) => seq)), inTurn = entries.filter(({ seq }) => seq >= input.seq && seq <= last);
  return { turn: input.seq, last, input: oneLine(text(input)), at: input.at, ended_at: own.at(-1).at, steps: own.filter((entry) => entry.role === "assistant").length,
    tools: calls.length ? [{ name: "", calls: calls.length, denied }] : [],
    errors: inTurn.filter((entry) => failures(entry).length || behind.has(entry.seq)).length, usage: total(callsInRange(session, leaf, input.seq, last)) };
}

function callsInRange(session, leaf, first, last) {
  return callsOnPath(session, leaf, 0).filter(({ answer_seq: answer, after_seq: after }) => (answer ?? after) >= first && (answer ?? after) <= last);
}

function modelCalls(session, { leaf: value, first, last }) {
  const leaf = resolvePosition(session, value);
  const calls = callsInRange(session, leaf, first, last).map((call) => ({ ...call, cost_microcents: call.price?.microcents ?? null }));
  return { leaf: `${leaf.branch}:${leaf.seq}`, calls, facts: [...waitingFacts(session), ...failuresOnPath(session, leaf).filter(({ seq }) => seq >= first && seq <= last)] };
}

/** The model calls of a session's journal that failed, each behind the entry after which it was made. */
function failedCalls(session) {
  const source = sessions.get(session.row.parent_session), failed = [];
  let place = { branch: 0, seq: 0 };
  for (const { kind, at, data } of session.facts) {
    if (data.branch !== undefined) place = { branch: data.branch, seq: data.last };
    if (kind === "model_call_failed") failed.push({ kind: "failed", at, ...place, why: data.why, ended: false });
    if (kind !== "turn_left" || data.status !== "failed") continue;
    if (failed.at(-1)?.branch === place.branch && failed.at(-1).seq === place.seq) failed.pop(); // the same failure
    failed.push({ kind: "failed", at, ...place, why: data.error, ended: true });
  }
  return source ? [...failedCalls(source), ...failed] : failed;
}

function failuresOnPath(session, leaf) { return failedCalls(session).filter((failure) => session.isOnPath(leaf, failure)); }

const WAITING = ["approval_requested", "approved", "denied", "task_waits", "turn_resumed"];

/** Requests, decisions, pauses and resumptions, and the starts of calls that waited; those of a fork's source too, if it is in the copy. */
function waitingFacts(session) {
  const source = sessions.get(session.row.parent_session), requested = new Set();
  const facts = session.facts.flatMap(({ kind, at, data }) => {
    if (kind === "approval_requested") requested.add(`${data.seq}:${data.index}`);
    if (kind === "tool_calls_started") return data.indexes.filter((index) => requested.has(`${data.seq}:${index}`)).map((index) => ({ kind, at, seq: data.seq, index }));
    if (kind === "turn_left" && data.status === "waiting") return [{ kind: "waiting", at }];
    return WAITING.includes(kind) ? [{ kind, at, seq: data.seq, index: data.index }] : [];
  });
  return source ? [...waitingFacts(source), ...facts] : facts;
}

/** As on the server: the last label of a position counts. Branches are numbered as in the bundle. */
function labels(session) {
  const byPlace = new Map();
  for (const { kind, data } of session.facts) {
    if (kind !== "labelled") continue;
    byPlace.delete(`${data.nth}:${data.seq}`);
    if (data.label !== null) byPlace.set(`${data.nth}:${data.seq}`, data.label);
  }
  return { labels: [...byPlace].map(([place, label]) => ({ position: place, label })), total: byPlace.size };
}

function request(session, { at: value, before, limit = 50 }) {
  const entry = entryAt(session, value), data = requests.of(session, entry, before, limit);
  if (!data) throw new Problem(404, { code: "copy", detail: requests.missing(session, entry) });
  return { ...data, call: callOf(session, data.at) };
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

function outline(session, { branch, leaf: value, positions, first = 1, last, kinds = "all", limit = 500 }) {
  if (positions) return { first: 0, last: 0, has_after: false, lines: positions.split(",").map((place) => session.entry(resolvePosition(session, place))).filter(Boolean).map(outlineLine) };
  const node = session.branches.get(Number(branch)), leaf = node ? { branch: node.branch, seq: node.tail } : resolvePosition(session, value);
  const begin = Math.max(first, node ? node.from + 1 : 1), end = Math.min(last ?? leaf.seq, leaf.seq);
  const behind = kinds === "errors" ? new Set(failedCalls(session).map(({ branch: name, seq }) => `${name}:${seq}`)) : new Set();
  const matching = session.path(leaf, begin, end).filter((entry) => isListed(entry, kinds) || behind.has(`${entry.branch}:${entry.seq}`));
  const covered = matching.length > limit ? matching[limit].seq - 1 : end;
  return { first: begin, last: covered, has_after: covered < end, lines: matching.slice(0, limit).map(outlineLine) };
}

// -- usage ------------------------------------------------------------------------------------

function usage({ session: reference, view: name = "own", since, by }) {
  const [, id, value] = /^(.*?)(?:@([\d:]+))?$/.exec(reference), session = findSession(id);
  const calls = name === "path" || since !== undefined ? callsOnPath(session, resolvePosition(session, value), Number(since ?? 0)) : name === "tree" ? callsBelow(session) : session.calls;
  return { total: total(calls), usage: by ? grouped(calls, by) : [] };
}

/** The calls whose answer is on the path; a call without an answer counts where it was made. */
function callsOnPath(session, leaf, since) {
  const reach = new Map(session.ranges(leaf).map(([branch, , last]) => [branch, last]));
  return [...session.inherited_calls, ...session.calls].filter(({ branch, answer_seq: answer, after_seq: after }) =>
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
  const names = [...new Set(calls.map((call) => call[key] ?? "(unknown)"))];
  return names.map((name) => ({ name, totals: total(calls.filter((call) => (call[key] ?? "(unknown)") === name)) }));
}

function storage(session) {
  const encoder = new TextEncoder(), blobSizes = new Map();
  let entries = 0, size = 0;
  for (const entry of session.entries((branch) => branch.isOwn)) {
    entries++;
    size += encoder.encode(JSON.stringify(entry.payload)).length;
    for (const { hash, size: long } of mediaOf(entry)) blobSizes.set(hash, long);
  }
  const own = [...session.branches.values()].filter((branch) => branch.isOwn).length;
  return { entries, bytes: size, branches: own, blobs: blobSizes.size, blob_bytes: [...blobSizes.values()].reduce((sum, long) => sum + long, 0) };
}
