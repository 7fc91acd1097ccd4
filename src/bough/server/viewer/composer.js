// Where one speaks to a session: an input, what waits for a person, and a way to stop.
// Knows the verbs of running. What comes of them is told by the session's events.

import { change, sessionPath } from "./api.js";
import { taskLink } from "./cards.js";
import { button, fill, h, icon, notice } from "./dom.js";
import { wait } from "./dialogs.js";
import { compact, shown } from "./words.js";

export class Composer {
  #detail = null;

  /** host: {id, about, approve, changed()} */
  constructor(host) {
    this.host = host;
    this.isRunning = false;
    this.text = h("textarea", { rows: 1, "aria-label": "Message", placeholder: "Send a message",
      oninput: () => this.#grow(), onkeydown: (event) => this.#key(event) });
    this.send = button("send", "Send", () => this.#send(), { class: "primary" });
    this.stop = button("stop", "Stop", () => this.#stop());
    this.note = h("div.composer-note", { role: "status" });
    this.waiting = h("div.approvals");
    this.bar = h("form.composer-bar", { onsubmit: (event) => { event.preventDefault(); this.#send(); } }, this.text,
      this.stop, this.send);
    this.element = h("footer.composer", this.waiting, this.note, this.bar);
  }

  show(detail, looking) {
    this.#detail = detail;
    const { session } = detail, { about } = this.host;
    this.isRunning = session.status === "running";
    this.bar.hidden = !about.can_send || Boolean(looking) || Boolean(session.trashed_at) || session.relation === "replay";
    this.stop.hidden = !this.isRunning || detail.is_running_here === false;
    this.send.lastChild.textContent = this.isRunning ? "Queue" : "Send";
    this.#approvals(detail.waiting ?? []);
    fill(this.note, this.#words(detail, looking));
  }

  focus() { this.text.focus(); }

  #words({ session, next_action: next, queued, waiting, is_running_here: isHere }, looking) {
    if (looking) return null;
    if (session.trashed_at) return "This session is in the trash.";
    const said = [];
    if (queued) said.push(`${queued} in the queue. `);
    if (session.status === "running" && isHere === false) said.push("Another process runs this session. ");
    if (session.status !== "running" && !waiting?.length && next && (next !== "Rest" || queued)) {
      said.push(next === "Rest" ? "Input waits. " : "Its last turn is unfinished. ");
      if (this.host.about.can_send) said.push(button("replay", "Go on", (event) => this.#resume(event.currentTarget, false),
        { class: "quiet" }), button("undo", "Leave it behind", (event) => this.#resume(event.currentTarget, true),
        { class: "quiet" }));
    }
    return said.length ? said : null;
  }

  /** Those of tasks too, each with a way to its session. */
  #approvals(waiting) {
    fill(this.waiting, waiting.map((call) => h("div.approval", { role: "group", "aria-label": `Approval of ${call.name}` },
      icon("wait"),
      h("span.approval-words", h("strong", shown(call.name)), " waits for approval ",
        h("code", compact(call.arguments, 160)), call.task_of && [" in ", taskLink(call)]),
      this.host.approve && button("check", "Approve", () => this.host.approve(call, true), { class: "primary" }),
      this.host.approve && button("denied", "Deny", () => this.host.approve(call, false)))));
  }

  async #send() {
    const text = this.text.value;
    if (!text.trim()) return;
    await wait(this.send, async () => {
      const told = await change("POST", sessionPath(this.host.id, "/send"),
        { text, ...(this.isRunning ? { queue: true } : {}) });
      this.text.value = "";
      this.#grow();
      if (told.queued) {
        notice("In the queue: it is sent when this turn is over");
        this.host.changed(); // the queue is no fact, so no event tells of it
      }
    });
    this.text.focus();
  }

  async #stop() {
    const told = await wait(this.stop, () => change("POST", sessionPath(this.host.id, "/cancel")));
    if (told && !told.cancelled) notice("Nothing of it runs in this server", { kind: "bad" });
  }

  #resume(pressed, rollback) {
    return wait(pressed, () => change("POST", sessionPath(this.host.id, "/resume"), { rollback }));
  }

  #grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(200, this.text.scrollHeight + 2)}px`;
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.#send(); }
    if (event.key === "Escape") this.text.blur();
  }
}
