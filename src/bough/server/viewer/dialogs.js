// The questions asked before something is done: fork, rewind, replay, compare, compact. Each is one form.
// Knows what each verb wants; what happens afterwards is the caller's.

import { address, change, sessionPath } from "./api.js";
import { h, icon, notice } from "./dom.js";
import { sessionLink, to } from "./route.js";
import { relation } from "./listing.js";
import { money, shown } from "./words.js";

/** A form in a dialog. `act(values)` runs on submit; what it returns true for stays open. */
export function dialog(title, fields, submit, act) {
  const problem = h("p.said-bad", { role: "alert" });
  const confirm = h("button.primary", { type: "submit" }, submit);
  const close = h("button", { type: "button", onclick: () => box.close() }, "Cancel");
  const foot = h("footer", close, confirm);
  const form = h("form", { method: "dialog" }, h("h2", title), fields, problem, foot);
  const box = h("dialog", { "aria-label": title, onclose: () => box.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    problem.textContent = "";
    try {
      if ((await act(Object.fromEntries(new FormData(form)), { box, foot })) !== true) box.close();
    } catch (refused) {
      problem.textContent = refused.words ?? refused.message;
    } finally {
      confirm.disabled = false;
    }
  });
  document.body.append(box);
  box.showModal();
  return box;
}

function field(label, control, hint) {
  return h("label.field", h("span", label), control, hint && h("small.muted", hint));
}

const filled = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));

function modelField(models, hint) {
  return [field("Model", h("input", { name: "model", list: "models", placeholder: hint, autocomplete: "off" })),
    h("datalist", { id: "models" }, models.map((model) => h("option", { value: model })))];
}

export function forkDialog(id, at, models, done) {
  dialog(`Fork at ${at}`, [
    h("p.muted", "A new session that stands on these entries; this one is not touched."),
    field("Title", h("input", { name: "title", autocomplete: "off" })), modelField(models, "as it is"),
    field("Prompt", h("textarea", { name: "prompt", rows: 3, placeholder: "the prompt as it is" })),
    field("Added to the prompt", h("textarea", { name: "prompt_patch", rows: 2 })),
  ], "Fork", async (values) => done(await change("POST", sessionPath(id, "/fork"), { at, ...filled(values) })));
}

export function rewindDialog(id, to_, leaf, done) {
  dialog(`Rewind to ${to_}`, [
    h("p.muted", `The session stands at ${leaf}. Nothing is deleted: what lies behind stays in the tree, and redo goes back.`),
    field("What was found on the way", h("textarea", { name: "summary", rows: 3 }), "for the model to know; may be empty"),
  ], "Rewind", async (values) => done(await change("POST", sessionPath(id, "/rewind"),
    { to: to_, leaf, ...filled(values) })));
}

export function labelDialog(id, at, label, done) {
  dialog(`Label ${at}`, [
    h("p.muted", "A name for this place, to find it again in the tree. Nothing is moved, and no model sees it."),
    field("Label", h("input", { name: "label", value: label ?? "", maxlength: 100, autocomplete: "off" }), label && "empty takes it away"),
  ], "Label", async ({ label: words }) => done(await change("POST", sessionPath(id, "/labels"), { at, label: words.trim() || null })));
}

export function startDialog(models, done) {
  dialog("New session", [
    field("Title", h("input", { name: "title", autocomplete: "off" }), "empty: its first message names it"),
    field("Agent", h("input", { name: "agent", autocomplete: "off" })), modelField(models, "as the server has it"),
    field("Prompt", h("textarea", { name: "prompt", rows: 4, placeholder: "what the model is told before anything else" })),
  ], "Start", async ({ model, ...values }) => {
    const told = await change("POST", "/sessions", filled(values));
    // As a setting: it holds in this session, whatever model the server has for others.
    if (model) await change("POST", sessionPath(told.session.id, "/settings"), { model });
    done(told);
  });
}

export function compactDialog(id, leaf, done) {
  dialog("Compact", [
    h("p.muted", "The model will see a summary in place of what came before. Nothing is deleted, and it can be undone."),
    field("Summary", h("textarea", { name: "summary", rows: 5 }), "empty: one is made without a model"),
  ], "Compact", async (values) => done(await change("POST", sessionPath(id, "/compact"), { leaf, ...filled(values) })));
}

export function replayDialog(id, seq, models) {
  dialog("Replay from here", [
    h("p.muted", "The recorded inputs are executed again on a fork of their own. Nothing outside is touched."),
    field("Keep entries up to", h("input", { name: "start", type: "number", min: 0, value: seq })), modelField(models,
      "none: the recorded answers"),
    field("Prompt", h("textarea", { name: "prompt", rows: 3, placeholder: "the prompt as it was" })),
    field("Added to the prompt", h("textarea", { name: "prompt_patch", rows: 2 })),
    field("Tools", h("select", { name: "mode" },
      [["dry", "dry: unrecorded calls say what they would do"], ["recorded", "recorded results only"],
      ["strict", "strict: recorded answers and results"]]
      .map(([value, words]) => h("option", { value }, words)))),
  ], "Replay", async (values, { box, foot }) => {
    const { start, ...rest } = values;
    const { job } = await change("POST", sessionPath(id, "/replays"), { ...filled(rest), start: Number(start) });
    progress(id, job, box, foot);
    return true;
  });
}

/** A replay under way: how far, then where to look. */
function progress(id, job, box, foot) {
  const bar = h("progress", { max: 1, "aria-label": "Replay" }), words = h("p.muted", { role: "status" }, "Replaying…");
  const stop = h("button", { type: "button",
    onclick: () => change("DELETE", `/jobs/${job.id}`).catch((problem) => { words.textContent = problem.message; }) },
    "Stop");
  const shownBox = h("div.job", h("h2", "Replay"), bar, words, h("footer", stop));
  box.replaceChildren(shownBox);
  const source = new EventSource(address(`/jobs/${job.id}/events`));
  box.addEventListener("close", () => source.close());
  source.addEventListener("progress", (event) => {
    const { done, total } = JSON.parse(event.data);
    Object.assign(bar, { max: total || 1, value: done });
    words.textContent = `Turn ${done} of ${total}`;
  });
  source.addEventListener("end", (event) => {
    source.close();
    bar.remove();
    const told = JSON.parse(event.data);
    shownBox.lastChild.replaceChildren(...ended(id, told.job ?? told, words, box));
  });
}

function ended(id, job, words, box) {
  const close = h("button", { type: "button", onclick: () => box.close() }, "Close");
  if (job.status !== "done") {
    words.textContent = job.problem?.detail ?? `The replay was ${job.status}.`;
    return [close];
  }
  const { replay, same, usage_after: after, stop_reason: stopped } = job.report;
  words.textContent = [same ? "It came out the same." : "It came out differently.",
    stopped && `It stopped: ${shown(stopped)}.`, `It cost ${money(after.cost_microcents)}.`].filter(Boolean).join(" ");
  const leave = () => box.close();
  return [close, h("a.button", { href: sessionLink(replay), onclick: leave }, "Open the replay"),
    h("a.button.primary", { href: to("/diff", { a: id, b: replay }), onclick: leave }, "Compare")];
}

export function compareDialog(id, at, related, parent, go) {
  const others = [...(parent ? [parent] : []), ...related];
  const mine = at ? `${id}@${at}` : id;
  const box = dialog("Compare with", [
    others.length > 0 && h("div.choices",
      others.map((one) => h("a.line", { href: to("/diff", { a: mine, b: one.id }), onclick: () => box.close() },
      relation(one) ?? h("span.badge", "parent"), h("span.line-text", shown(one.heading ?? one.id)), icon("compare")))),
    field("Another session", h("input", { name: "other", placeholder: "ses_… or ses_…@1:7", autocomplete: "off" })),
  ], "Compare", ({ other }) => {
    if (!other.trim()) throw new Error("Name a session, or choose one above.");
    go(to("/diff", { a: mine, b: other.trim() }));
  });
}

export async function wait(button, act) {
  button.disabled = true;
  try {
    return await act();
  } catch (problem) {
    notice(problem.words ?? problem.message, { kind: "bad" });
    return undefined;
  } finally {
    button.disabled = false;
  }
}

export function helpDialog() {
  const keys = [["j / k", "next, previous entry"], ["[ / ]", "previous, next turn"],
    ["o", "open the selected cards further"], ["t", "all cards: line, preview, full"],
    ["i", "internal entries on, off"], ["g l", "to the leaf"], ["g g", "to the first entry"], ["f",
      "fork at the selected entry"], ["l", "label the selected entry"], ["b", "jump to a label"], ["r", "write a message"],
    ["/ or Ctrl K", "search"],
    ["n / p", "next, previous difference"], ["?", "these keys"], ["Esc", "close"]];
  const box = h("dialog", { "aria-label": "Keys", onclose: () => box.remove() },
    h("form", { method: "dialog" }, h("h2", "Keys"),
    h("dl.keys", keys.flatMap(([key, words]) => [h("dt", h("kbd", key)), h("dd", words)])), h("footer",
      h("button.primary", "Close"))));
  document.body.append(box);
  box.showModal();
}

export function loginDialog(done) {
  const box = dialog("This server wants a token",
    [field("Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true }))],
    "Enter", async ({ token }) => { await change("POST", "/login", { token }); done(); });
  box.addEventListener("cancel", (event) => event.preventDefault());
}
