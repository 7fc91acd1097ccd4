// The message box of a session, its pending approvals, and the stop and resume buttons.
// The results of a run arrive through the session's events.

import { sendJson, sessionPath } from "./api.js";
import { approvalNode } from "./tool_cards.js";
import { button, fill, h, icon, notice } from "./dom.js";
import { noticeLeftBehind, postAccepting, whileDisabled } from "./dialogs.js";
import { plural, printable, sentence } from "./format.js";

// A session that is marked running without a runner is written by a program of its own, which may still do so.
const UNFINISHED = { failed: "Failed", running: "Unfinished" };

export class Composer {
  #edited = null; // the rewind that precedes the message, while an earlier input is edited

  /** host: {id, about, approve, changed()} */
  constructor(host) {
    this.host = host;
    this.isRunning = false;
    this.text = h("textarea", { rows: 1, "aria-label": "Message", placeholder: "Send a message",
      oninput: () => { this.#resize(); this.#keep(); }, onkeydown: (event) => this.#onKey(event) });
    this.text.value = loadUnsent(host.id);
    this.send = button("send", "Send", () => this.#send(), { class: "primary" });
    this.stop = button("stop", "Stop", () => this.#stop());
    this.note = h("div.composer-note", { role: "status" });
    this.responder = h("div.responder.muted");
    this.editing = h("div.editing-note", { role: "status" });
    this.approvals = h("div.approvals");
    this.bar = h("form.composer-bar", { onsubmit: (event) => { event.preventDefault(); this.#send(); } }, this.text,
      this.stop, this.send);
    this.element = h("footer.composer", this.approvals, this.note, this.editing, this.bar, this.responder);
  }

  show(detail, viewing) {
    const { session, responder } = detail, { about } = this.host, isReplay = session.relation === "replay";
    this.isRunning = session.status === "running" && detail.is_held !== false;
    const canAnswer = about.can_send && !responder?.problem;
    this.bar.hidden = !canAnswer || Boolean(viewing) || Boolean(session.trashed_at) || isReplay;
    this.stop.hidden = !this.isRunning || detail.is_running_here === false;
    this.send.lastChild.textContent = this.isRunning ? "Queue" : "Send";
    this.#approvals(detail.pending_approvals ?? []);
    fill(this.note, viewing ? null : this.#statusNodes(detail));
    fill(this.responder, this.bar.hidden ? null : responderNodes(responder));
    if (!this.text.style.height) this.#resize();
  }

  focus() { this.text.focus(); }

  /** Put an earlier input into the message box; sending it starts a new branch before that input. */
  edit(text, entry, leaf) {
    this.#edited = { at: entry.seq - 1, leaf };
    this.text.value = text;
    this.#resize();
    this.text.focus();
    fill(this.editing, icon("pencil"), h("span.grow", `Editing the message at entry ${entry.seq}. Sending starts a new branch; nothing is deleted.`),
      button("cross", "Cancel", () => { this.text.value = loadUnsent(this.host.id); this.#endEdit(); }, { class: "quiet" }));
  }

  #endEdit() {
    this.#edited = null;
    fill(this.editing);
    this.#resize();
  }

  #statusNodes({ session, next_action: next, queued, pending_approvals: waiting, is_running_here: isHere, responder }) {
    if (session.trashed_at) return ["This session is in the trash. ", this.host.approve && button("undo", "Restore", (event) => this.#restore(event.currentTarget))];
    if (this.host.about.copy) return null;
    const parts = [];
    if (queued) parts.push(`${queued} queued. `);
    if (this.isRunning && isHere === false) parts.push("Running in another process. ");
    if (!this.isRunning && !waiting?.length && next && next !== "Rest") return [...parts, this.#interrupted(session, responder)];
    if (!this.isRunning && queued && !waiting?.length) parts.push(this.#resumeButton("Send it now"));
    if (session.relation === "replay") parts.push("This is a replay. Fork it to continue from here.");
    else if (responder?.problem && this.host.about.can_send) parts.push(cannotAnswer(responder));
    return parts.length ? parts : null;
  }

  /** The process that ran the turn is gone: what was written is safe, and one click continues. */
  #interrupted(session, responder) {
    const canResume = this.host.about.can_send && !responder?.problem, state = UNFINISHED[session.status] ?? "Interrupted";
    return h("div.state-bar.is-interrupted", { role: "group", "aria-label": state }, icon("interrupted"),
      h("span.grow", h("strong", state),
        session.status === "running" ? ": the last turn has no answer yet. A program may still be working on it."
          : ": the last turn is unfinished. Everything up to here is stored.",
        !canResume && responder?.problem && [" ", cannotAnswer(responder)]),
      canResume && this.#resumeButton("Resume"),
      button("undo", "Discard this turn", (event) => this.#resume(event.currentTarget, true)));
  }

  #restore(pressed) {
    return whileDisabled(pressed, async () => {
      await sendJson("POST", sessionPath(this.host.id, "/restore"));
      this.host.changed();
    });
  }

  #resumeButton(label) {
    return button("replay", label, (event) => this.#resume(event.currentTarget, false), { class: "primary" });
  }

  /** Pending approvals with all arguments, including those of tasks, which link to their session. */
  #approvals(waiting) {
    const { approve } = this.host;
    fill(this.approvals, waiting.map((call) => approvalNode(call, " needs approval", approve && ((allow) => approve(call, allow)))));
  }

  async #send() {
    const text = this.text.value;
    if (!text.trim()) return;
    const sent = await whileDisabled(this.send, async () => {
      if (this.#edited) {
        const { at, leaf } = this.#edited;
        noticeLeftBehind((await sendJson("POST", sessionPath(`${this.host.id}@${at}`, "/rewind"), { leaf })).left_behind);
      }
      this.#endEdit();
      const reply = await postAccepting(sessionPath(this.host.id, "/send"),
        { text, ...(this.isRunning ? { queue: true } : {}) }, (accepted) => this.#sent(accepted));
      if (reply) this.#sent(reply);
      return reply;
    });
    if (!sent) this.host.changed(); // refused: it may be in the trash, or run elsewhere, without an event that says so
    this.text.focus();
  }

  #sent(reply) {
    this.text.value = "";
    this.#resize();
    this.#keep();
    if (reply.queued) {
      notice("Queued: it will be sent when the current turn ends");
      this.host.changed(); // queueing writes no fact, so no event reports it
    }
  }

  async #stop() {
    const reply = await whileDisabled(this.stop, () => sendJson("POST", sessionPath(this.host.id, "/cancel"), { wait: 0 }));
    if (reply && !reply.requested) notice("This session is not running in this server", { kind: "bad" });
  }

  async #resume(pressed, rollback) {
    const reply = await whileDisabled(pressed, () => postAccepting(sessionPath(this.host.id, "/resume"), { rollback }, () => this.host.changed()));
    noticeLeftBehind(reply?.left_behind);
    return reply;
  }

  /** Keep what is typed, but not an edited message, which belongs to its turn. */
  #keep() { if (!this.#edited) saveUnsent(this.host.id, this.text.value); }

  #resize() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(200, this.text.scrollHeight + 2)}px`;
  }

  #onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.#send(); }
    if (event.key === "Escape") this.text.blur();
  }
}

/** The text that was typed for a session and not sent; the tab remembers it until it is closed. */
function loadUnsent(id) {
  try { return sessionStorage.getItem(`oakleaf.unsent.${id}`) ?? ""; } catch { return ""; }
}

function saveUnsent(id, text) {
  try {
    if (text) sessionStorage.setItem(`oakleaf.unsent.${id}`, text);
    else sessionStorage.removeItem(`oakleaf.unsent.${id}`);
  } catch { /* a browser without storage forgets, nothing else */ }
}

/** Which model and tools will answer. */
function responderNodes(responder) {
  if (!responder) return null;
  const { model, tools } = responder;
  return [h("span", h("strong", printable(model ?? "The model")), " will answer"),
    h("span", { title: tools.map(printable).join(", ") }, tools.length ? `with ${plural(tools.length, "tool")}: ${tools.slice(0, 6).map(printable).join(", ")}${tools.length > 6 ? ", …" : ""}`
      : "without tools")];
}

function cannotAnswer({ problem, hint }) {
  const next = hint ? ` ${sentence(hint)}.` : "";
  return h("span", printable(`No model can answer here: ${problem}.${next}`));
}
