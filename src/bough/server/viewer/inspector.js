// What is to know of one entry: itself, what the model saw, what it cost, its JSON.
// Each page of it is asked for when it is opened.

import { ask, rawAddress, sessionPath } from "./api.js";
import { button, copy, fill, h, icon, remember, remembered } from "./dom.js";
import { json } from "./json.js";
import { bytes, cost, count, many, money, shown, whole } from "./words.js";

const TABS = [["entry", "Entry"], ["seen", "Model saw"], ["usage", "Usage"], ["raw", "JSON"]];
const TOTALS = [["calls", "calls"], ["input_tokens", "input"], ["output_tokens", "output"],
  ["cache_read_tokens", "cache read"], ["cache_write_tokens", "cache write"]];

export class Inspector {
  #entry = null;
  #turn = 0;

  /** host: {id, about, link(entry), actions(entry)} */
  constructor(host) {
    this.host = host;
    this.tab = remembered("tab", "entry");
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "Inspector" }, TABS.map(([name, word]) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "inspected",
      "aria-selected": String(name === this.tab), onclick: () => this.#choose(name),
    }, word)));
    this.body = h("div.inspected",
      { id: "inspected", role: "tabpanel", tabindex: 0, "aria-labelledby": `tab-${this.tab}` });
    this.element = h("aside.pane.inspector", { "aria-label": "Inspector" }, this.tabs, this.body);
    fill(this.body, h("p.empty", "Select an entry to see what the model saw, what it cost, and what can be done with it."));
  }

  show(entry) {
    const isSame = this.#entry && this.#entry.branch === entry.branch && this.#entry.seq === entry.seq;
    this.#entry = entry;
    if (!isSame) this.#draw();
  }

  redraw() { if (this.#entry) this.#draw(); }

  #choose(name) {
    this.tab = name;
    remember("tab", name);
    for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
    this.body.setAttribute("aria-labelledby", `tab-${name}`);
    if (this.#entry) this.#draw();
  }

  async #draw() {
    const turn = ++this.#turn, entry = this.#entry, read = PAGES[this.tab];
    this.body.setAttribute("aria-busy", "true");
    try {
      const nodes = await read(entry, this.host);
      if (turn === this.#turn) fill(this.body, nodes);
    } catch (problem) {
      if (turn === this.#turn) fill(this.body, h("p.said-bad", problem.message));
    }
    if (turn === this.#turn) this.body.setAttribute("aria-busy", "false");
  }
}

const placeOf = (entry) => `${entry.branch}:${entry.seq}`;

function facts(pairs) {
  return h("dl.facts", pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [h("dt", name), h("dd", value)]));
}

// -- the entry --------------------------------------------------------------------------------

async function entryPage(entry, host) {
  const told = await ask(sessionPath(host.id, `/entries/${placeOf(entry)}`));
  const { call, reference } = told, one = told.entry;
  return [
    h("div.row-actions", host.actions(entry)),
    facts([["place", h("code", placeOf(one))], ["turn", one.turn ? `${one.turn}, step ${one.step}` : "before the first"],
      ["kind", one.role ? `${one.kind}, ${one.role}` : one.kind],
      ["visible", one.internal ? "internal" : "public"], ["when", whole(one.at)],
      ["model", one.model && shown(one.model)], ["finish", one.finish],
      ["on the path", told.on_path ? "yes" : "no, it was left"], ["id", h("code.breaks", one.entry_id)]]),
    call && h("section", h("h3", "Its model call"),
      facts([["provider", call.provider], ["model", shown(call.model ?? "")], ["cost", money(call.cost_microcents)],
      ["tokens", tokensOf(call.usage)], ["purpose", call.purpose]])),
    h("section", h("h3", "On the command line"), commands(host.id, reference).map(commandRow)),
  ];
}

function tokensOf(usage) {
  if (!usage) return null;
  return Object.entries(usage).filter(([, value]) => typeof value === "number" && value)
    .map(([name, value]) => `${count(value)} ${name.replace("_tokens", "").replace("_", " ")}`).join(" · ");
}

export function commands(id, reference) {
  const seq = reference.split(":").at(-1);
  return [`bough show ${reference} --full`, `bough fork ${reference}`, `bough rewind ${reference}`,
    `bough replay ${id} --from ${seq}`, `bough context ${reference}`];
}

function commandRow(command) {
  return h("div.command-row", h("code", command.split(" ").flatMap((word) => [h("span.word", word), " "])),
    button("copy", "", () => copy(command), { "aria-label": `Copy: ${command}`, title: "Copy", class: "quiet" }));
}

// -- what the model saw -----------------------------------------------------------------------

async function seenPage(entry, host) {
  const box = h("div"), providers = host.about.providers;
  if (host.about.copy) return copiedSeen(entry, host, box);
  const choice = h("select", { "aria-label": "Provider", onchange: () => read(choice.value, null) },
    providers.map((name) => h("option", { value: name }, name)));
  const read = async (provider, first) => {
    const told = await ask(sessionPath(host.id, "/seen"), { at: placeOf(entry), provider, first, limit: 50 });
    choice.value = told.provider;
    fill(box, seenNodes(told, entry, host, (from) => read(choice.value, from)));
  };
  await read(null, null);
  return [h("div.bar", h("span.muted", "request for"), choice), box];
}

/** A copy holds each request as it was rendered when the copy was made, in one format. */
async function copiedSeen(entry, host, box) {
  const read = async (first) => {
    const told = await ask(sessionPath(host.id, "/seen"), { at: placeOf(entry), first, limit: 50 });
    fill(box, h("p.muted", `As ${told.provider} is given it, rendered from this copy: what is hidden here was not hidden from the model, and media are not in it.`),
      seenNodes(told, entry, host, read));
  };
  await read(null);
  return box;
}

function seenNodes(told, entry, host, from) {
  const { request, history } = told, messages = request[history];
  const rest = Object.fromEntries(Object.entries(request).filter(([name]) => name !== history));
  return [
    h("p.muted", entry.role === "assistant" ? `What the model was given for ${told.at}, the path up to ${told.behind}.`
      : `What a model would be given behind ${told.behind}.`, told.model && ` Model: ${shown(told.model)}.`),
    bar(told.tokens, told.call),
    difference(told),
    Object.keys(rest).length > 0 && json(rest, { open: 1 }),
    h("h3", `${history} ${told.of ? `${told.first + 1}–${told.first + messages.length} of ${told.of}` : "none"}`),
    told.first > 0 && h("button.quiet", { type: "button", onclick: () => from(Math.max(0, told.first - 50)) },
      `Earlier: ${many(told.first, "message")}`),
    messages.map((message, at) => h("div.seen-message",
      json(message, { open: at >= messages.length - 3 ? 4 : 0,
      name: `${told.first + at} ${message.role ?? message.type ?? ""}` }))),
    told.first + messages.length < told.of && h("button.quiet",
      { type: "button", onclick: () => from(told.first + messages.length) }, "Later"),
    told.cut > 0 && h("p.muted", `${told.cut.toLocaleString("en")} characters of long texts are left out here.`),
  ];
}

/** Tokens by part; widths by share. */
function bar(tokens, call) {
  const all = tokens.reduce((sum, part) => sum + part.tokens, 0), billed = call?.usage?.input_tokens;
  const parts = tokens.filter((part) => part.tokens > 0);
  const drawn = h("div.token-bar",
    { role: "img", "aria-label": `about ${all} tokens: ${parts.map((part) => `${part.part} ${part.tokens}`).join(", ")}` },
    parts.map(share));
  return h("div", drawn, h("div.legend",
    parts.map((part) => h("span", h("i", { class: slug(part.part) }), `${part.part} ${count(part.tokens)}`))),
    h("p.muted", `about ${count(all)} tokens, estimated${billed ? `; billed: ${count(billed)}` : ""}`));
}

function share({ part, tokens }) {
  const piece = h("span", { class: slug(part), title: `${part}: about ${count(tokens)}` });
  piece.style.flexGrow = tokens;
  return piece;
}

const slug = (words) => `part-${words.replaceAll(" ", "-")}`;

function difference({ before, difference: found }) {
  if (!before) return h("p.muted", "The first call on this path: nothing to compare with.");
  if (!found) return h("p.good", icon("check"),
    ` Only adds to the call behind ${before}: the provider's cache stays warm.`);
  return h("section.differs", h("h3", icon("compare"), ` First difference to the call behind ${before}`),
    h("code", found.path),
    h("div.label", "before"), json(found.before, { open: 1 }), h("div.label", "after"), json(found.after, { open: 1 }));
}

// -- usage and JSON ---------------------------------------------------------------------------

async function usagePage(entry, host) {
  const at = placeOf(entry), turn = entry.turn, path = sessionPath(host.id, "/usage");
  const [one, turnUsage, pathUsage, tree, storage] = await Promise.all([
    ask(sessionPath(host.id, `/entries/${at}`)),
    turn ? ask(path, { view: "path", leaf: at, since: turn - 1 }) : null,
    ask(path, { view: "path", leaf: at }), ask(path, { view: "tree" }), ask(sessionPath(host.id, "/storage")),
  ]);
  const message = one.call && { calls: 1, ...one.call.usage, cost_microcents: one.call.cost_microcents };
  const columns = [["entry", message], ["turn", turnUsage?.total], ["path", pathUsage.total], ["tree", tree.total]];
  return [
    h("div.wide", h("table.usage",
      h("thead", h("tr", h("th", ""), columns.map(([name]) => h("th", { scope: "col" }, name)))), h("tbody",
      TOTALS.map(([key, word]) => h("tr", h("th", { scope: "row" }, word),
        columns.map(([, totals]) => h("td", totals ? count(totals[key] ?? 0) : "–")))),
      h("tr", h("th", { scope: "row" }, "cost"),
        columns.map(([, totals]) => h("td", totals ? cost({ unpriced_calls: 0, ...totals }) : "–")))))),
    h("p.muted", "Turn and path: up to this entry. Tree: every branch, and its tasks."),
    tree.models.length > 0 && h("section", h("h3", "By model"),
      facts(tree.models.map(({ name, totals }) => [shown(name || "unknown"),
      `${cost(totals)}, ${many(totals.calls, "call")}`]))),
    h("section", h("h3", "Stored"),
      facts([["entries", count(storage.entries)], ["bytes", bytes(storage.bytes)], ["branches", count(storage.branches)],
      ["media", storage.blobs ? `${storage.blobs}, ${bytes(storage.blob_bytes)}` : null]])),
  ];
}

async function rawPage(entry, host) {
  const told = await ask(sessionPath(host.id, `/entries/${placeOf(entry)}`));
  const raw = rawAddress(host.id, placeOf(entry));
  return [h("div.row-actions", button("copy", "Copy", () => copy(JSON.stringify(told.entry, null, 2))),
    h("a.button", { href: raw, download: `${host.id}-${entry.branch}-${entry.seq}.json` }, "As stored")),
    json(told.entry, { open: 4 })];
}

const PAGES = { entry: entryPage, seen: seenPage, usage: usagePage, raw: rawPage };
