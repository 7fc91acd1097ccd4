// The inspector of the selected entry: details, prompt, usage, JSON.
// Each tab is loaded when it is opened.

import { fetchJson, rawUrl, sessionPath } from "./api.js";
import { button, commandRow, copy, fill, h, savePreference, loadPreference } from "./dom.js";
import { jsonTree } from "./json_tree.js";
import { splitter } from "./layout.js";
import { shown } from "./state.js";
import { PromptView, promptDialog } from "./prompt_view.js";
import { bytes, cost, count, formatPosition, plural, money, printable, timestamp, tokens, turnText } from "./format.js";

const FOLLOW_MS = 200;
const TABS = [["entry", "Entry"], ["prompt", "Prompt"], ["usage", "Usage"], ["raw", "JSON"]];
const TOTALS = [["calls", "calls"], ["input_tokens", "input"], ["output_tokens", "output"],
  ["cache_read_tokens", "cache read"], ["cache_write_tokens", "cache write"]];

export class Inspector {
  #drawn = null;
  #timer = 0;
  #request = 0;

  /** host: {id, about, link(entry), actions(entry)} */
  constructor(host) {
    this.host = host;
    this.tab = loadPreference("tab", "entry");
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "Inspector" }, TABS.map(([name, label]) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "inspected",
      "aria-selected": String(name === this.tab), onclick: () => this.#choose(name),
    }, label)));
    this.body = h("div.inspected",
      { id: "inspected", role: "tabpanel", tabindex: 0, "aria-labelledby": `tab-${this.tab}` });
    this.element = h("aside.pane.inspector", { "aria-label": "Inspector" }, this.tabs, this.body, splitter("inspector", "the details"));
    this.#draw();
    new ResizeObserver(() => this.#drawSelected()).observe(this.element);
  }

  /** Draw the selected entry; of a burst that the selection follows, only the last. */
  show() {
    clearTimeout(this.#timer);
    if (shown.now.isExplicit) this.#drawSelected();
    else this.#timer = setTimeout(() => this.#drawSelected(), FOLLOW_MS);
  }

  #drawSelected() {
    const { selected } = shown.now, place = selected && formatPosition(selected);
    if (place === this.#drawn || !this.element.clientWidth) return; // a hidden pane reads nothing
    this.#drawn = place;
    this.#draw();
  }

  #choose(name) {
    this.tab = name;
    savePreference("tab", name);
    for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
    this.body.setAttribute("aria-labelledby", `tab-${name}`);
    this.#draw();
  }

  async #draw() {
    const turn = ++this.#request, entry = shown.now.selected, read = TABS_BY_NAME[this.tab];
    if (!entry) return void fill(this.body, h("p.empty", "Select an entry to see its prompt, cost and actions."));
    this.body.setAttribute("aria-busy", "true");
    try {
      const nodes = await read(entry, this.host);
      if (turn === this.#request) fill(this.body, nodes);
    } catch (problem) {
      if (turn === this.#request) fill(this.body, h("p.error-text", problem.message));
    }
    if (turn === this.#request) this.body.setAttribute("aria-busy", "false");
  }
}

function facts(pairs) {
  return h("dl.facts", pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [h("dt", name), h("dd", value)]));
}

// -- the entry --------------------------------------------------------------------------------

async function entryTab(entry, host) {
  const reply = await fetchJson(sessionPath(host.id, `/entries/${formatPosition(entry)}`));
  const { call, reference } = reply, detail = reply.entry;
  return [
    h("div.row-actions", host.actions(entry)),
    facts([["position", h("code", formatPosition(detail))], ["turn", turnText(detail) ?? "none"],
      ["kind", detail.role ? `${detail.kind}, ${detail.role}` : detail.kind],
      ["visibility", detail.internal ? "internal" : "public"], ["time", timestamp(detail.at)],
      ["model", detail.model && printable(detail.model)], ["finish", detail.finish],
      ["on current path", reply.on_path ? "yes" : "no"], ["id", h("code.breaks", detail.entry_id)]]),
    call && h("section", h("h3", "Model call"),
      facts([["provider", call.provider], ["model", printable(call.model ?? "")], ["cost", callCost(call)],
      ["tokens", tokensOf(call.usage)], ["purpose", call.purpose]])),
    h("section", h("h3", "Command line"), commands(host.id, reference).map((command) => commandRow(command, wordsOf(command)))),
  ];
}

const callCost = ({ cost_microcents: microcents }) => (microcents === null ? "unpriced" : money(microcents));

function tokensOf(usage) {
  if (!usage) return null;
  const counts = Object.entries(usage).filter(([, value]) => typeof value === "number");
  if (!counts.length) return "unknown";
  return counts.filter(([, value]) => value)
    .map(([name, value]) => `${count(value)} ${name.replace("_tokens", "").replace("_", " ")}`).join(" · ");
}

function commands(id, reference) {
  const seq = reference.split(":").at(-1);
  return [`oakleaf show ${reference} --full`, `oakleaf fork ${reference}`, `oakleaf rewind ${reference}`,
    `oakleaf replay ${id} --from ${seq}`, `oakleaf context ${reference}`];
}

/** The words of a command, between which a line may break. */
const wordsOf = (command) => command.split(" ").flatMap((label) => [h("span.word", label), " "]);

// -- the prompt -------------------------------------------------------------------------------

async function promptTab(entry, host) {
  const view = new PromptView(host, entry);
  await view.open();
  return [h("div.bar", button("expand", "Wide", () => promptDialog(host, entry)), h("span.grow"), ...view.controls), view.element];
}

// -- usage and JSON ---------------------------------------------------------------------------

async function usageTab(entry, host) {
  const at = formatPosition(entry), turn = entry.turn, session = `${host.id}@${at}`;
  const [detail, turnUsage, pathUsage, tree, storage] = await Promise.all([
    fetchJson(sessionPath(host.id, `/entries/${at}`)),
    turn ? fetchJson("/usage", { session, view: "path", since: turn - 1 }) : null,
    fetchJson("/usage", { session, view: "path" }), fetchJson("/usage", { session: host.id, view: "tree", by: "model" }), fetchJson(sessionPath(host.id, "/storage")),
  ]);
  const used = detail.call?.usage ?? {}, isUnknown = used.input_tokens === undefined && used.output_tokens === undefined;
  const message = detail.call && { calls: 1, unknown_calls: isUnknown ? 1 : 0, ...used, cost_microcents: detail.call.cost_microcents,
    unpriced_calls: detail.call.cost_microcents === null ? 1 : 0 };
  const columns = [["entry", message], ["turn", turnUsage?.total], ["path", pathUsage.total], ["tree", tree.total]];
  return [
    h("div.wide", { tabindex: 0 }, h("table.usage",
      h("thead", h("tr", h("th", ""), columns.map(([name]) => h("th", { scope: "col" }, name)))), h("tbody",
      TOTALS.map(([key, label]) => h("tr", h("th", { scope: "row" }, label),
        columns.map(([, totals]) => h("td", key === "calls" ? count(totals?.calls) : tokens(totals, key))))),
      h("tr", h("th", { scope: "row" }, "cost"),
        columns.map(([, totals]) => h("td", totals ? cost({ unpriced_calls: 0, ...totals }) : "–")))))),
    h("p.muted", "Turn and path: up to this entry. Tree: all branches and tasks."),
    tree.usage.length > 0 && h("section", h("h3", "By model"),
      facts(byCost(tree.usage).map(({ name, totals }) => [printable(name),
      `${cost(totals)}, ${plural(totals.calls, "call")}`]))),
    h("section", h("h3", "Storage"),
      facts([["entries", count(storage.entries)], ["bytes", bytes(storage.bytes)], ["branches", count(storage.branches)],
      ["media", storage.blobs ? `${storage.blobs}, ${bytes(storage.blob_bytes)}` : null]])),
  ];
}

/** The most expensive first. */
function byCost(groups) {
  return groups.toSorted((a, b) => b.totals.cost_microcents - a.totals.cost_microcents || b.totals.calls - a.totals.calls);
}

async function rawTab(entry, host) {
  const reply = await fetchJson(sessionPath(host.id, `/entries/${formatPosition(entry)}`));
  const raw = rawUrl(host.id, formatPosition(entry));
  return [h("div.row-actions", button("copy", "Copy", () => copy(JSON.stringify(reply.entry, null, 2))),
    h("a.button", { href: raw, download: `${host.id}-${entry.branch}-${entry.seq}.json` }, "Download raw JSON")),
    jsonTree(reply.entry, { open: 4 })];
}

const TABS_BY_NAME = { entry: entryTab, prompt: promptTab, usage: usageTab, raw: rawTab };
