// The message box of a session, its pending approvals, and the stop and resume buttons.
// The results of a run arrive through the session's events.

import { sendJson, sessionPath } from "./api.js";
import { taskLink } from "./tool_cards.js";
import { button, fill, h, icon, notice } from "./dom.js";
import { whileDisabled } from "./dialogs.js";
import { compactJson, printable } from "./format.js";

export class Composer {
  #detail = null;

  /** host: {id, about, approve, changed()} */
  constructor(host) {
    this.host = host;
    this.isRunning = false;
    this.text = h("textarea", { rows: 1, "aria-label": "Message", placeholder: "Send a message",
      oninput: () => this.#resize(), onkeydown: (event) => this.#onKey(event) });
    this.send = button("send", "Send", () => this.#send(), { class: "primary" });
    this.stop = button("stop", "Stop", () => this.#stop());
    this.note = h("div.composer-note", { role: "status" });
    this.approvals = h("div.approvals");
    this.bar = h("form.composer-bar", { onsubmit: (event) => { event.preventDefault(); this.#send(); } }, this.text,
      this.stop, this.send);
    this.element = h("footer.composer", this.approvals, this.note, this.bar);
  }

  show(detail, viewing) {
    this.#detail = detail;
    const { session } = detail, { about } = this.host;
    this.isRunning = session.status === "running" && detail.is_held !== false;
    this.bar.hidden = !about.can_send || Boolean(viewing) || Boolean(session.trashed_at) || session.relation === "replay";
    this.stop.hidden = !this.isRunning || detail.is_running_here === false;
    this.send.lastChild.textContent = this.isRunning ? "Queue" : "Send";
    this.#approvals(detail.pending_approvals ?? []);
    fill(this.note, this.#statusNodes(detail, viewing));
  }

  focus() { this.text.focus(); }

  #statusNodes({ session, next_action: next, queued, pending_approvals: waiting, is_running_here: isHere }, viewing) {
    if (viewing) return null;
    if (session.trashed_at) return "This session is in the trash. Restore it to continue.";
    const parts = [];
    if (queued) parts.push(`${queued} queued. `);
    if (this.isRunning && isHere === false) parts.push("Running in another process. ");
    if (!this.isRunning && !waiting?.length && next && (next !== "Rest" || queued)) {
      parts.push(next === "Rest" ? "Queued input is waiting. " : "The last turn is unfinished. ");
      if (this.host.about.can_send) parts.push(button("replay", "Resume", (event) => this.#resume(event.currentTarget, false),
        { class: "quiet" }), button("undo", "Discard this turn", (event) => this.#resume(event.currentTarget, true),
        { class: "quiet" }));
    }
    return parts.length ? parts : null;
  }

  /** Pending approvals, including those of tasks, which link to their session. */
  #approvals(waiting) {
    fill(this.approvals, waiting.map((call) => h("div.approval", { role: "group", "aria-label": `Approval of ${call.name}` },
      icon("wait"),
      h("span.approval-text", h("strong", printable(call.name)), " needs approval ",
        h("code", compactJson(call.arguments, 160)), call.parent_call && [" in ", taskLink(call)]),
      this.host.approve && button("check", "Approve", () => this.host.approve(call, true), { class: "primary" }),
      this.host.approve && button("denied", "Deny", () => this.host.approve(call, false)))));
  }

  async #send() {
    const text = this.text.value;
    if (!text.trim()) return;
    await whileDisabled(this.send, async () => {
      const reply = await sendJson("POST", sessionPath(this.host.id, "/send"),
        { text, ...(this.isRunning ? { queue: true } : {}) });
      this.text.value = "";
      this.#resize();
      if (reply.queued) {
        notice("Queued: it will be sent when the current turn ends");
        this.host.changed(); // queueing writes no fact, so no event reports it
      }
    });
    this.text.focus();
  }

  async #stop() {
    const reply = await whileDisabled(this.stop, () => sendJson("POST", sessionPath(this.host.id, "/cancel")));
    if (reply && !reply.cancelled) notice("This session is not running in this server", { kind: "bad" });
  }

  #resume(pressed, rollback) {
    return whileDisabled(pressed, () => sendJson("POST", sessionPath(this.host.id, "/resume"), { rollback }));
  }

  #resize() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(200, this.text.scrollHeight + 2)}px`;
  }

  #onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.#send(); }
    if (event.key === "Escape") this.text.blur();
  }
}
