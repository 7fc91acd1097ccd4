// The home page: what waits for approval, what failed, what runs, what it cost, and the latest sessions by day.
// An empty store gets the first steps instead.

import { fetchJson, sendJson } from "./api.js";
import { button, commandRow, fill, h, icon, loadPreference, notice, savePreference } from "./dom.js";
import { buildUrl, sessionLink } from "./route.js";
import { activeAt, dayHeading, relationBadge, statusDot } from "./session_list.js";
import { sendApproval } from "./dialogs.js";
import { showWaiting } from "./title.js";
import { approvalNode } from "./tool_cards.js";
import { ago, cost, money, plural, printable, sessionCount, timestamp } from "./format.js";

const POLL_MS = 5_000, JOB_POLL_MS = 300, RECENT = 8;

export class HomePage {
  #timer = 0;
  #drawn = "";

  /** start(): opens the dialog for a new session; onImport(): called when sessions were imported. */
  constructor(about, start, onImport) {
    this.about = about;
    this.start = start;
    this.onImport = onImport;
    this.element = h("main.pane.center.home", { id: "main", tabindex: -1, "aria-label": "Home" });
  }

  close() { clearInterval(this.#timer); }

  async open() {
    await this.#refresh();
    this.#timer = setInterval(() => { if (document.visibilityState === "visible") this.#refresh().catch(() => undefined); }, POLL_MS);
  }

  async #refresh() {
    if (this.about.level === "client") { fill(this.element, h("div.empty", h("p", "Choose a session."))); return; }
    const [overview, recent] = await Promise.all([fetchJson("/overview"), fetchJson("/sessions", { limit: RECENT })]);
    const key = JSON.stringify([overview, recent.sessions, Math.floor(Date.now() / 60_000)]);
    if (key === this.#drawn || this.element.contains(document.activeElement) && this.#drawn) return; // keep the focus where it is
    this.#drawn = key;
    showWaiting("Oakleaf", overview.counts.waiting ?? 0);
    fill(this.element, overview.total ? this.#content(overview, recent.sessions) : this.#welcome());
  }

  #content(overview, recent) {
    const { counts, waiting, failed, interrupted, running } = overview;
    return h("div.home-inner", h("header.head-line", h("h1", "Home"), h("span.grow"), button("plus", "New session", this.start)),
      h("div.tiles",
        tile("wait", "Waiting for approval", counts.waiting ?? 0, "/?status=waiting", "warn"),
        tile("error", "Failed", counts.failed ?? 0, "/?status=failed", "bad"),
        tile("interrupted", "Interrupted", counts.interrupted ?? 0, "/?status=interrupted", "special"),
        tile("replay", "Running", counts.running ?? 0, "/?status=running", "info"),
        costTile("Cost today", overview.cost_today, null), costTile("Cost in 7 days", overview.cost_week, overview.days)),
      workersSection(overview.queues ?? []),
      waiting.length > 0 && h("section", h("h2", "Waiting for approval ", h("span.badge.is-waits_for_approval", sessionCount(counts.waiting))), waiting.map((item) => this.#waiting(item))),
      group("Failed", failed, counts.failed, "failed", errorText), group("Interrupted", interrupted, counts.interrupted, "interrupted", () => "Open it to resume."),
      group("Running", running, counts.running, "running"), recentSection(recent), this.#importHint());
  }

  #waiting({ session, approvals }) {
    return h("div.home-approval", sessionLine(session),
      approvals.map((call) => approvalNode(call, "", (allow, pressed) => this.#approve(pressed, session, call, allow))));
  }

  async #approve(pressed, session, call, allow) {
    pressed.disabled = true;
    await sendApproval(session.id, call, allow);
    this.#drawn = "";
    await this.#refresh();
  }

  #importHint() {
    if (loadPreference("import-hint", "on") === "off") return null;
    const hint = h("aside.hint", icon("import"), h("div.grow", h("strong", "Import your Claude Code sessions"),
      h("p.muted", "They are read from this computer and never changed. Codex, Gemini, ChatGPT and others work too.")), this.#importNode(),
      h("button.quiet", { type: "button", "aria-label": "Dismiss", onclick: () => { savePreference("import-hint", "off"); hint.remove(); } }, icon("cross")));
    return hint;
  }

  /** Imports at a click, if the server runs on this computer; else the command to copy. */
  #importNode() {
    const command = commandRow("oakleaf import --from claude-code");
    if (!this.about.can_import) return command;
    return h("div.import-row", button("import", "Import", (event) => this.#import(event.currentTarget), { class: "primary" }), h("span.muted", "or"), command);
  }

  async #import(pressed) {
    pressed.disabled = true;
    const row = pressed.closest(".import-row"), status = h("p.import-status.muted", { role: "status" }, "Importing…");
    row.querySelector(".import-status")?.remove();
    row.append(status);
    try {
      let { job } = await sendJson("POST", "/import/claude-code");
      while (job.status === "running") {
        await new Promise((resolve) => { setTimeout(resolve, JOB_POLL_MS); });
        ({ job } = await fetchJson(`/jobs/${job.id}`));
        status.textContent = `Importing… ${plural(job.done, "session")}`;
      }
      if (job.problem) throw new Error([job.problem.detail, job.problem.hint].filter(Boolean).join(". "));
      const { sessions, failed } = job.report;
      notice(`Imported ${plural(sessions, "session")}${failed ? `; ${failed} could not be read` : ""}`);
      pressed.blur();
      this.#drawn = "";
      await Promise.all([this.#refresh(), this.onImport?.()]);
    } catch (problem) {
      status.textContent = problem.text ?? problem.message;
      status.classList.add("error-text");
    } finally {
      pressed.disabled = false;
    }
  }

  #welcome() {
    return h("div.home-inner.welcome", h("h1", "Welcome to Oakleaf"), h("p", "This store has no sessions yet. Ways to get one:"),
      h("ol.steps",
        h("li", h("h2", "Import your Claude Code sessions"), h("p.muted", "Read from this computer, never changed. Codex, Gemini, ChatGPT and others work too."), this.#importNode()),
        h("li", h("h2", "Watch an agent crash and recover"), h("p.muted", "The demo needs no key and no network."), commandRow("oakleaf demo --open")),
        h("li", h("h2", "Record your own agent"), h("p.muted", "Any program whose model address can be set, without changing its code."), commandRow("oakleaf record -- python agent.py")),
        this.about.can_send && h("li", h("h2", "Or write a message"), button("plus", "New session", this.start, { class: "primary" }))));
  }
}

function tile(name, label, number, url, kind) {
  return h("a.tile", { href: url, class: number ? `is-${kind}` : "is-zero" }, h("span.tile-label", icon(name), label), h("span.tile-value", sessionCount(number)));
}

function costTile(label, totals, days) {
  return h("a.tile", { href: "/usage?since=7d" }, h("span.tile-label", icon("chart"), label), h("span.tile-value", cost(totals)),
    days && spark(days));
}

/** Seven bars, one per day. */
function spark(days) {
  const most = Math.max(...days.map(({ totals }) => totals.cost_microcents), 1);
  return h("span.spark", { role: "img", "aria-label": days.map(({ name, totals }) => `${name} ${money(totals.cost_microcents)}`).join(", ") },
    days.map(({ totals }) => { const bar = h("i"); bar.style.height = `${Math.max(6, (totals.cost_microcents / most) * 100)}%`; return bar; }));
}

function group(title, sessions, count, status, note) {
  if (!sessions.length) return null;
  return h("section", h("h2", `${title} `, h("span.badge", sessionCount(count))), sessions.slice(0, 5).map((session) => sessionLine(session, note?.(session))),
    count > 5 && h("a", { href: buildUrl("/", { status }) }, `Show all ${sessionCount(count)}`));
}

const errorText = ({ error }) => error && String(error.message ?? error.code ?? error).slice(0, 240);

function sessionLine(session, note) {
  return h("a.home-line", { href: sessionLink(session.id) }, statusDot(session), h("span.home-heading.ellipsis", { dir: "auto" }, printable(session.heading)), relationBadge(session),
    h("span.muted", [session.agent, session.totals && cost(session.totals)].filter(Boolean).map(printable).join(" · ")),
    h("time.muted", { title: timestamp(activeAt(session)) }, ago(activeAt(session))), note && h("span.home-note", printable(note)));
}

/** The queues of the engine: who works on them, what waits, and which sessions' workers died. */
function workersSection(queues) {
  if (!queues.length) return null;
  return h("section", { "aria-label": "Workers" }, h("h2", "Workers"), queues.map((queue) => h("div.home-queue", { class: queue.problem ? "is-bad" : "" },
    h("strong", printable(queue.queue)),
    h("span.muted", [plural(queue.workers, "worker"), plural(queue.slots, "slot"), `${queue.running} running`, `${queue.waiting} waiting`,
      queue.dead_workers > 0 && `${queue.dead_workers} died lately`].filter(Boolean).join(" · ")),
    queue.problem && h("span.home-note", printable(queue.problem)), queue.problem && (queue.hint.startsWith("oakleaf ") ? commandRow(queue.hint) : h("span.home-note", printable(queue.hint))),
    queue.suspects.length > 0 && h("span.home-note", "Workers died while they ran: ", queue.suspects.map((id) => [h("a", { href: sessionLink(id) }, id), " "])))));
}

/** The latest sessions by the day of their last activity. */
function recentSection(sessions) {
  return h("section", h("h2", "Recent"), sessions.flatMap((session, at) => [dayHeading(session, sessions[at - 1]), sessionLine(session)]));
}
