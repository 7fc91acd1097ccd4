// Dialogs for actions: fork, rewind, replay, compare, compact, label, start. Each is one form.
// The caller decides what happens after the request succeeds.

import { apiUrl, fetchJson, sendJson, sessionPath } from "./api.js";
import { attempt, fill, h, icon, notice, openDialog } from "./dom.js";
import { wordsQuery } from "./query.js";
import { sessionLink, buildUrl } from "./route.js";
import { relationBadge } from "./session_list.js";
import { ago, cost, printable } from "./format.js";

/** A form in a dialog. `act(values)` runs on submit; the dialog stays open if it returns true. */
export function dialog(title, fields, submit, act, { canCancel = true } = {}) {
  const problem = h("p.error-text", { role: "alert" });
  const confirm = h("button.primary", { type: "submit" }, submit);
  const close = canCancel && h("button", { type: "button", onclick: () => box.close() }, "Cancel");
  const foot = h("footer", close, confirm);
  const form = h("form", { method: "dialog" }, h("h2", title), fields, problem, foot);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    problem.textContent = "";
    try {
      if ((await act(Object.fromEntries(new FormData(form)), { box, foot })) !== true) box.close();
    } catch (error) {
      problem.textContent = error.text ?? error.message;
    } finally {
      confirm.disabled = false;
    }
  });
  const box = openDialog("dialog", title, { oncancel: (event) => { if (!canCancel) event.preventDefault(); } }, form);
  return box;
}

function field(label, control, hint) {
  return h("label.field", h("span", label), control, hint && h("small.muted", hint));
}

const withoutEmpty = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));

/** The server takes only the models that it offers. */
function modelField(models, hint) {
  return field("Model", h("select", { name: "model" }, h("option", { value: "" }, hint),
    models.map((model) => h("option", { value: model }, printable(model)))));
}

export function forkDialog(id, at, models, done) {
  dialog(`Fork at ${at}`, [
    h("p.muted", "Creates a new session from this entry. This session does not change."),
    field("Title", h("input", { name: "title", autocomplete: "off" })), modelField(models, "unchanged"),
    field("Prompt", h("textarea", { name: "prompt", rows: 3, placeholder: "unchanged" })),
    field("Append to prompt", h("textarea", { name: "prompt_patch", rows: 2 })),
    field("Unsafe calls that were made already", h("select", { name: "effects" }, h("option", { value: "" }, "ask before they are made again"),
      h("option", { value: "repeat" }, "make them again"), h("option", { value: "reuse" }, "use the recorded results"))),
  ], "Fork", async (values) => done(await sendJson("POST", sessionPath(`${id}@${at}`, "/fork"), withoutEmpty(values))));
}

/** Say which calls of unsafe tools a move left behind: nothing undoes them. */
export function noticeLeftBehind(calls) {
  if (!calls?.length) return;
  const names = [...new Set(calls.map(({ name }) => printable(name)))];
  const shown = `${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}`;
  notice(`Left behind, and not undone: ${calls.length === 1 ? "a call" : `${calls.length} calls`} of ${shown}. The same call waits for approval.`);
}

export function rewindDialog(id, to_, leaf, done) {
  dialog(`Rewind to ${to_}`, [
    h("p.muted", `The current leaf is ${leaf}. Nothing is deleted: later entries stay in the tree, and Redo goes back.`),
    field("Summary of the abandoned branch", h("textarea", { name: "summary", rows: 3 }), "shown to the model; optional"),
  ], "Rewind", async (values) => done(await sendJson("POST", sessionPath(`${id}@${to_}`, "/rewind"),
    { leaf, ...withoutEmpty(values) })));
}

export function labelDialog(id, at, label, done) {
  dialog(`Label ${at}`, [
    h("p.muted", "Names this entry in the tree. The model does not see labels."),
    field("Label", h("input", { name: "label", value: label ?? "", maxlength: 100, autocomplete: "off" }), label && "leave empty to remove"),
  ], "Label", async ({ label: words }) => done(await sendJson("POST", sessionPath(`${id}@${at}`, "/labels"), { text: words.trim() })));
}

export function startDialog(models, done) {
  dialog("New session", [
    field("Title", h("input", { name: "title", autocomplete: "off" }), "default: the first message"),
    field("Agent", h("input", { name: "agent", autocomplete: "off" })), modelField(models, "server default"),
    field("Prompt", h("textarea", { name: "prompt", rows: 4, placeholder: "system prompt" })),
  ], "Start", async ({ model, ...values }) => {
    const reply = await sendJson("POST", "/sessions", withoutEmpty(values));
    // A session setting overrides the server's default model.
    if (model) await sendJson("POST", sessionPath(reply.session.id, "/settings"), { model });
    done(reply);
  });
}

export function compactDialog(id, leaf, done) {
  dialog("Compact", [
    h("p.muted", "Replaces earlier entries with a summary for the model. Nothing is deleted, and you can undo it."),
    field("Summary", h("textarea", { name: "summary", rows: 5 }), "default: generated without a model"),
  ], "Compact", async (values) => done(await sendJson("POST", sessionPath(id, "/compact"), { leaf, ...withoutEmpty(values) })));
}

export function replayDialog(id, seq, models) {
  dialog("Replay from here", [
    h("p.muted", "Runs the recorded inputs again in a separate fork, without side effects."),
    field("Keep entries up to", h("input", { name: "start", type: "number", min: 0, value: seq })), modelField(models,
      "default: recorded answers"),
    field("Prompt", h("textarea", { name: "prompt", rows: 3, placeholder: "unchanged" })),
    field("Append to prompt", h("textarea", { name: "prompt_patch", rows: 2 })),
    field("Tools", h("select", { name: "mode" },
      [["dry", "dry run: unrecorded calls are only described"], ["recorded", "recorded: recorded results only"],
      ["strict", "strict: recorded answers and results only"]]
      .map(([value, words]) => h("option", { value }, words)))),
  ], "Replay", async (values, { box, foot }) => {
    const { start, ...rest } = values;
    const { job } = await sendJson("POST", sessionPath(id, "/replays"), { ...withoutEmpty(rest), start: Number(start) });
    progress(id, job, box);
    return true;
  });
}

/** Progress of a running replay, then links to its result. */
function progress(id, job, box) {
  const form = box.firstElementChild;
  const bar = h("progress", { max: 1, "aria-label": "Replay" }), words = h("p.muted", { role: "status" }, "Replaying…");
  const stop = h("button", { type: "button",
    onclick: () => sendJson("DELETE", `/jobs/${job.id}`).catch((problem) => { words.textContent = problem.message; }) },
    "Stop");
  const panel = h("div.job", h("h2", "Replay"), bar, words, h("footer", stop));
  box.replaceChildren(panel);
  const source = new EventSource(apiUrl(`/jobs/${job.id}/events`));
  box.addEventListener("close", () => source.close());
  source.addEventListener("progress", (event) => {
    const { done, total } = JSON.parse(event.data);
    Object.assign(bar, { max: total || 1, value: done });
    words.textContent = `Turn ${done} of ${total}`;
  });
  source.addEventListener("end", (event) => {
    source.close();
    bar.remove();
    const reply = JSON.parse(event.data);
    panel.lastChild.replaceChildren(...outcomeNodes(id, reply.job ?? reply, words, box, form));
  });
}

function outcomeNodes(id, job, words, box, form) {
  const close = h("button", { type: "button", onclick: () => box.close() }, "Close");
  if (job.status !== "done") {
    words.textContent = job.problem?.detail ?? `The replay was ${job.status}.`;
    return [close, h("button.primary", { type: "button", onclick: () => box.replaceChildren(form) }, "Change it and try again")];
  }
  const { replay, same, usage_after: after, stop_reason: stopped, is_unanswered: isUnanswered } = job.report;
  words.textContent = [`${isUnanswered ? "Unknown" : same ? "Same" : "Different"} outcome.`,
    stopped && `Stopped: ${printable(stopped)}.`, `Cost: ${cost(after)}.`].filter(Boolean).join(" ");
  const leave = () => box.close();
  return [close, h("a.button", { href: sessionLink(replay), onclick: leave }, "Open the replay"),
    h("a.button.primary", { href: buildUrl("/diff", { a: id, b: replay }), onclick: leave }, "Compare")];
}

/** Choose what to compare with: relatives first, then any session by its title. */
export function compareDialog(session, at, related, parent) {
  const mine = at ? `${session.id}@${at}` : session.id, relatives = [...(parent ? [parent] : []), ...related];
  const list = h("div.choices"), input = h("input", { type: "search", "aria-label": "Find a session", placeholder: "Title, or ses_…@1:7", autocomplete: "off", oninput: () => schedule() });
  const box = openDialog("dialog", "Compare with", {},
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); list.querySelector("a")?.click(); } }, h("h2", "Compare with"), input, list,
      h("footer", h("button", { type: "button", onclick: () => box.close() }, "Cancel"))));
  const line = (other) => h("a.line", { href: buildUrl("/diff", { a: mine, b: other.id }), onclick: () => box.close() },
    relationBadge(other) ?? (other.id === parent?.id ? h("span.badge", "parent") : null), h("span.line-text", { dir: "auto" }, printable(other.heading ?? other.id)),
    h("span.muted", other.updated_at ? ago(other.updated_at) : ""), icon("compare"));
  let request = 0, timer = 0;
  const schedule = () => { clearTimeout(timer); timer = setTimeout(draw, 150); };
  const draw = async () => {
    const number = ++request, text = input.value.trim();
    if (/^ses_|@/.test(text)) return fill(list, line({ id: text, heading: text }));
    const words = text.toLowerCase().split(/\s+/u), matches = relatives.filter((other) => words.every((word) => (other.heading ?? "").toLowerCase().includes(word)));
    fill(list, matches.map(line));
    const reply = await fetchJson("/sessions", { query: wordsQuery(text), limit: 20 }).catch(() => ({ sessions: [] }));
    const known = new Set([session.id, ...matches.map((other) => other.id)]), others = reply.sessions.filter((other) => !known.has(other.id));
    if (number === request) fill(list, matches.map(line), others.length > 0 && matches.length > 0 && h("div.label", "Other sessions"), others.map(line),
      !matches.length && !others.length && h("p.muted", "No sessions match."));
  };
  input.focus();
  draw();
}

/** Download the session as a page, a text or a bundle. Secrets are masked unless the box is unchecked. */
export function exportDialog(id) {
  const redact = h("input", { type: "checkbox", checked: true, onchange: () => draw() }), list = h("div.choices");
  const draw = () => fill(list, [["html", "Web page", "One file that opens offline in any browser, with this viewer inside"],
    ["markdown", "Markdown", "A text for reading, issues and chats"], ["bundle", "Bundle", "Everything, for oakleaf import into another store"]]
    .map(([format, label, words]) => h("a.line.export-line", { href: apiUrl(sessionPath(id, "/share"), { format, redact: String(redact.checked) }), download: "", onclick: () => setTimeout(() => box.close()) },
      icon("import"), h("span", h("strong", label), h("small.muted", words)))));
  draw();
  const box = openDialog("dialog", "Export or share", {}, h("form", { method: "dialog" }, h("h2", "Export or share"), list,
    h("label.check", redact, "Mask secrets"), h("footer", h("button", "Close"))));
}

export async function whileDisabled(button, act) {
  button.disabled = true;
  const result = await attempt(act);
  button.disabled = false;
  return result;
}

/** Post; if an import left something open that would run now, show it and ask first. `done` is called after the second try. */
export async function postAccepting(path, body, done) {
  try {
    return await sendJson("POST", path, body);
  } catch (problem) {
    if (problem.code !== "import_not_accepted" || !problem.plan) throw problem;
    const { calls, inputs } = problem.plan;
    dialog("This was left open elsewhere", [
      h("p.muted", "The session was imported. This would run now, because somebody elsewhere said so. Fork the session to go on without it."),
      h("ul", calls.map((call) => h("li", h("strong", printable(call.name)), " ", h("code", printable(JSON.stringify(call.arguments))))),
        inputs.map(({ text }) => h("li", "Queued input: ", printable(text)))),
    ], "Let it run", async () => { await done(await sendJson("POST", path, { ...body, accept_imported: true })); });
    return null;
  }
}

/** Approve or deny a tool call; what happened is shown as a notice. */
export function sendApproval(id, { session_id, seq, index, name }, allow) {
  return attempt(async () => {
    try {
      await sendJson("POST", sessionPath(id, "/approve"), { call: [`${session_id}@${seq}.${index}`], deny: !allow, yes: true });
      notice(`${allow ? "Approved" : "Denied"} ${printable(name)}`);
    } catch (problem) {
      if (problem.code !== "not_waiting") throw problem;
      notice(`${printable(name)} waits no more: someone else decided, or the turn ended`, { kind: "bad" });
    }
  });
}

export function helpDialog() {
  const keys = [["j / k", "next, previous entry"], ["[ / ]", "previous, next turn"],
    ["o", "expand the selected tool calls"], ["t", "all tool calls: one line, preview, full"],
    ["a / d", "approve, deny the first call that waits"], ["s / S", "next, previous session"], ["Home / End", "first, last entry"], ["i", "show or hide internal entries"], ["g l", "go to the current leaf"], ["g g", "go to the first entry"], ["f",
      "fork at the selected entry"], ["l", "label the selected entry"], ["b", "jump to a label"], ["e / E", "next, previous error"], ["p", "what the model saw"], ["Ctrl F", "find in this session"], ["r", "write a message"],
    ["/ or Ctrl K", "sessions and search"],
    ["n / p", "next, previous difference"], ["?", "show shortcuts"], ["Esc", "close dialog"]];
  openDialog("dialog", "Keyboard shortcuts", {}, h("form", { method: "dialog" }, h("h2", "Keyboard shortcuts"),
    h("dl.keys", keys.flatMap(([key, words]) => [h("dt", h("kbd", key)), h("dd", words)])), h("footer", h("button.primary", "Close"))));
}

export function loginDialog(done) {
  dialog("Log in",
    [field("Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true }))],
    "Log in", async ({ token }) => { await sendJson("POST", "/login", { token }); done(); },
    { canCancel: false });
}
