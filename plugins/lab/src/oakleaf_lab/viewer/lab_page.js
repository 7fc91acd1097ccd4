// The list of lab runs, and one run: its sessions are loaded in pages, the turns of a session when it is opened.

import { fetchJson } from "../api.js";
import { commandRow, fill, h } from "../dom.js";
import { LabReport } from "./lab_report.js";
import { ago, printable } from "../format.js";
import { buildUrl, replaceUrl, route } from "../route.js";

const PAGE = 500;

export function openPage(id) { return new LabPage(id); }

class LabPage {
  constructor(id) {
    this.id = id;
    this.element = h("main.page", { id: "main", tabindex: -1, "aria-label": "Lab" }, h("p.muted", "Loading…"));
  }

  async open() {
    if (this.id) await this.#run();
    else this.#list((await fetchJson("/lab")).runs);
  }

  #list(runs) {
    fill(this.element, h("h1", "Lab runs"), runs.length ? h("div.wide", { tabindex: 0 }, h("table.fills",
      h("thead", h("tr", ["run", "cohort", "status", "started"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", runs.map((run) => h("tr", h("td", h("a", { href: labLink(run.run_id) }, h("code", run.run_id))),
        h("td.cut", printable(run.title ?? "")), h("td", run.status), h("td", ago(run.started_at)))))))
      : [h("p", "No lab run yet. A lab replays many sessions with another prompt, model or tool, and says whether it makes a difference."),
        h("div.steps", commandRow("oakleaf lab run QUERY --prompt @new.txt"))]);
  }

  async #run() {
    const { kind, sort } = route.now.query, path = `/lab/${encodeURIComponent(this.id)}`;
    const reply = await fetchJson(path, { limit: PAGE }), sessions = reply.sessions;
    while (sessions.length < reply.total) {
      const next = await fetchJson(path, { first: sessions.length, limit: PAGE });
      if (!next.sessions.length) break;
      sessions.push(...next.sessions);
    }
    const report = new LabReport(reply.run, sessions, { kind, sort,
      turns: async (row) => (await fetchJson(`${path}/sessions/${encodeURIComponent(row.session_id)}`)).turns,
      links: { diff: (a, b) => buildUrl("/diff", { a, b }) },
      onchange: (chosenKind, chosenSort) => replaceUrl(buildUrl(labLink(this.id),
        { kind: chosenKind, sort: chosenSort === "change" ? "" : chosenSort })) });
    fill(this.element, h("p", h("a", { href: "/lab" }, "All lab runs")), report.element);
  }
}

function labLink(id) { return `/lab/${encodeURIComponent(id)}`; }
