// What the model saw: the exact request of a model call, readable, or as JSON.
// Reads the formats of all providers; what it does not recognize is shown as JSON, so that nothing is left out.

import { fetchJson, requestUrl, sessionPath } from "./api.js";
import { choice, copy, fill, h, icon, iconButton, loadPreference, markChosen, openDialog, savePreference } from "./dom.js";
import { jsonTree } from "./json_tree.js";
import { count, plural, printable } from "./format.js";

const WINDOW = 50, LONG = 4000;

/** The prompt of an entry in a wide dialog. host: {id, about} */
export function promptDialog(host, entry) {
  const view = new PromptView(host, entry);
  const box = openDialog("dialog.prompt-dialog", "What the model saw", { onclick: (event) => { if (event.target === box) box.close(); } },
    h("header.head-line", h("h2", "What the model saw"), h("span.grow"), ...view.controls,
      h("button.quiet", { type: "button", "aria-label": "Close", onclick: () => box.close() }, icon("cross"))), view.element);
  view.open();
}

export class PromptView {
  #reply = null;
  #isJson = loadPreference("prompt", "text") === "json";

  /** host: {id, about} */
  constructor(host, entry) {
    this.host = host;
    this.entry = entry;
    this.element = h("div.prompt-view", { tabindex: 0 }, h("p.muted", "Loading…"));
    this.provider = host.about.copy ? null : h("select", { "aria-label": "Provider", title: "Provider format", onchange: () => this.open() },
      host.about.providers.map((name) => h("option", { value: name }, name)));
    this.modes = choice("Show as", [["text", "Text"], ["json", "JSON"]], this.#isJson ? "json" : "text", (mode) => this.#setMode(mode));
  }

  get controls() {
    return [this.provider, this.modes,
      iconButton("copy", "Copy as JSON", () => copy(JSON.stringify(this.#reply?.request ?? {}, null, 2)), { title: "Copy the shown request as JSON" })].filter(Boolean);
  }

  async open() {
    try {
      this.#reply = await this.#load({ provider: this.#reply ? this.provider?.value : null });
      if (this.provider) this.provider.value = this.#reply.provider;
      this.#draw();
    } catch (problem) {
      fill(this.element, h("p.error-text", problem.message));
    }
  }

  get #place() { return `${this.entry.branch}:${this.entry.seq}`; }

  #load(query) { return fetchJson(sessionPath(this.host.id, "/request"), { at: this.#place, limit: WINDOW, ...query }); }

  /** The messages before those shown; what is shown stays where it is. */
  async #loadEarlier() {
    const reply = this.#reply, { messages_key: history, provider } = reply;
    const page = await this.#load({ provider, before: reply.earlier });
    if (reply !== this.#reply) return; // another provider was chosen meanwhile
    reply.request[history] = [...page.request[history], ...reply.request[history]];
    reply.earlier = page.earlier;
    reply.first = page.first;
    reply.omitted_chars += page.omitted_chars;
    const fromEnd = this.element.scrollHeight - this.element.scrollTop;
    this.#draw();
    this.element.scrollTop = this.element.scrollHeight - fromEnd;
  }

  #setMode(mode) {
    this.#isJson = mode === "json";
    savePreference("prompt", mode);
    markChosen(this.modes, mode);
    if (this.#reply) this.#draw();
  }

  #draw() {
    const reply = this.#reply, { request, messages_key: history } = reply, messages = request[history];
    const isWhole = reply.earlier === null, earlier = reply.start < reply.first ? ` (entries ${reply.start}–${reply.first - 1})` : "";
    fill(this.element, this.#intro(reply), tokenBar(reply), difference(reply),
      !isWhole && this.#isJson && h("p.muted", `Only the newest ${plural(messages.length, "message")} are shown. `,
        !this.host.about.copy && h("a", { href: requestUrl(this.host.id, this.#place, reply.provider), download: "" }, "Download the whole request")),
      this.#isJson ? jsonTree(request, { open: 2 }) : [setupNodes(request, history),
        h("h3", messages.length ? `${isWhole ? "" : "The newest "}${plural(messages.length, "message")}` : "No messages"),
        !isWhole && h("button.quiet", { type: "button", onclick: () => this.#loadEarlier() }, `Show earlier messages${earlier}`),
        messages.map(messageNode)],
      reply.omitted_chars > 0 && h("p.muted", `${reply.omitted_chars.toLocaleString("en")} characters omitted.`));
  }

  #intro(reply) {
    const { about } = this.host, model = reply.model ? ` Model: ${printable(reply.model)}.` : "";
    const text = this.entry.role === "assistant" ? `The request behind answer ${reply.at}: the path up to ${reply.after}.${model}`
      : `The request a model would get after ${reply.after}.${model}`;
    return [h("p.muted", text), about.copy && h("p.muted", `In ${reply.provider} format, rendered from this copy. Values redacted here were not redacted for the model; media are not included.`)];
  }
}

// -- system prompt, tools, options ------------------------------------------------------------

const SYSTEM = ["system", "instructions", "systemInstruction", "system_instruction"];

function setupNodes(request, history) {
  const system = SYSTEM.map((name) => request[name]).find((value) => value !== undefined);
  const options = Object.entries(request).filter(([name]) => name !== history && name !== "tools" && !SYSTEM.includes(name));
  const tools = toolsOf(request.tools);
  return [
    system !== undefined && h("details.prompt-part", { open: true }, h("summary", "System prompt"), pieceNodes(piecesOf({ content: system.parts ?? system }))),
    h("details.prompt-part.prompt-tools", { open: tools.length > 0 && tools.length <= 6 }, h("summary", tools.length ? plural(tools.length, "tool") : "Tools: none recorded"), tools.map(toolNode)),
    options.length > 0 && h("details.prompt-part", { open: true }, h("summary", "Options"),
      h("dl.facts", options.flatMap(([name, value]) => [h("dt", printable(name)), h("dd", typeof value === "object" ? jsonTree(value, { open: 2 }) : printable(value))]))),
  ];
}

/** Tools in any provider's format: Gemini's are in groups, those of Chat Completions in a wrapper. */
function toolsOf(tools) {
  return (tools ?? []).flatMap((tool) => tool.functionDeclarations ?? [tool.function ?? tool]);
}

function toolNode(tool) {
  const schema = tool.input_schema ?? tool.parameters ?? tool.parametersJsonSchema ?? null, properties = schema?.properties;
  return h("details.prompt-tool", h("summary", h("strong", printable(tool.name ?? tool.type ?? "")), h("span.muted", ` ${printable(tool.description ?? "")}`)),
    properties ? h("dl.facts", Object.entries(properties).flatMap(([name, value]) => [
      h("dt", printable(name), schema.required?.includes(name) ? "" : "?"), h("dd", h("code", printable(value?.type ?? "any")), ` ${printable(value?.description ?? "")}`)]))
      : jsonTree(tool, { open: 1 }));
}

// -- messages ---------------------------------------------------------------------------------

function messageNode(message) {
  const pieces = piecesOf(message), role = message.role ?? roleOf(message);
  return h("section.prompt-message", { class: `role-${role}` }, h("header", h("span.badge", printable(role))), pieceNodes(pieces));
}

const roleOf = ({ type }) => ({ function_call: "assistant", function_call_output: "tool", reasoning: "assistant" }[type] ?? type ?? "message");

/** A message of any provider as pieces: {kind, title?, text?, json?}. */
function piecesOf(message) {
  const content = message.content ?? message.parts ?? message;
  const pieces = typeof content === "string" ? [{ kind: "text", text: content }]
    : Array.isArray(content) ? content.map(pieceOf) : content === message ? [pieceOf(message)] : content === null ? [] : [pieceOf(content)];
  for (const call of message.tool_calls ?? []) pieces.push({ kind: "call", title: call.function?.name ?? call.name, text: call.function?.arguments ?? "" });
  return message.role === "tool" ? pieces.map((piece) => ({ ...piece, kind: "result" })) : pieces;
}

function pieceOf(part) {
  if (typeof part === "string") return { kind: "text", text: part };
  if (typeof part?.text === "string") return { kind: part.thought ? "reasoning" : "text", text: part.text };
  if (part?.type === "thinking") return { kind: "reasoning", text: part.thinking };
  if (part?.type === "tool_use") return { kind: "call", title: part.name, json: part.input };
  if (part?.type === "function_call") return { kind: "call", title: part.name, text: part.arguments };
  if (part?.functionCall) return { kind: "call", title: part.functionCall.name, json: part.functionCall.args };
  if (part?.type === "tool_result") return resultPiece(part.is_error ? "error" : "", part.content);
  if (part?.type === "function_call_output") return resultPiece("", part.output);
  if (part?.functionResponse) return { kind: "result", title: part.functionResponse.name, json: part.functionResponse.response };
  return { kind: "other", json: part };
}

function resultPiece(title, content) {
  if (typeof content === "string") return { kind: "result", title, text: content };
  const texts = Array.isArray(content) && content.every((part) => typeof part?.text === "string");
  return texts ? { kind: "result", title, text: content.map((part) => part.text).join("\n") } : { kind: "result", title, json: content };
}

const WORDS = { call: "calls", result: "result", reasoning: "reasoning" };

function pieceNodes(pieces) {
  return pieces.map(({ kind, title, text, json }) => h(`div.prompt-piece.is-${kind}`,
    WORDS[kind] && h("div.label", WORDS[kind], title && h("strong", ` ${printable(title)}`)), text !== undefined ? textNode(text) : jsonTree(json, { open: 3 })));
}

/** The exact text; a long one is unfolded on request. */
function textNode(text) {
  const box = h("div.prompt-text", { dir: "auto" }, printable(text.slice(0, LONG)));
  if (text.length > LONG) box.append(h("button.quiet.show-all", { type: "button", onclick: () => { box.textContent = printable(text); } },
    `Show all: ${(text.length - LONG).toLocaleString("en")} more characters`));
  return box;
}

// -- tokens and differences -------------------------------------------------------------------

/** A bar of tokens by part, with widths by share. Of a very long request the newest entries are measured. */
function tokenBar({ tokens, window: windowTokens, call, start, tokens_from: tokensFrom, last }) {
  const estimate = tokens.reduce((sum, part) => sum + part.tokens, 0), billed = call?.usage?.input_tokens;
  const parts = tokens.filter((part) => part.tokens > 0), isWhole = !(tokensFrom > start);
  const barNode = h("div.token-bar",
    { role: "img", "aria-label": `about ${estimate} tokens: ${parts.map((part) => `${part.part} ${part.tokens}`).join(", ")}` },
    parts.map(tokenShare));
  return h("div", barNode, h("div.legend",
    parts.map((part) => h("span", h("i", { class: slug(part.part) }), `${part.part} ${count(part.tokens)}`))),
    h("p.muted", `about ${count(estimate)} ${windowTokens && isWhole ? `of ${count(windowTokens)} ` : ""}tokens${
      windowTokens && isWhole ? ` (${Math.floor((100 * estimate) / windowTokens)} % of the window)` : ""}, estimated${
      isWhole ? "" : ` for the newest ${plural(last - tokensFrom + 1, "entry", "entries")} of ${(last - start + 1).toLocaleString("en")}`}${
      billed ? `; billed: ${count(billed)}` : ""}`));
}

function tokenShare({ part, tokens }) {
  const piece = h("span", { class: slug(part), title: `${part}: about ${count(tokens)}` });
  piece.style.flexGrow = tokens;
  return piece;
}

const slug = (words) => `part-${words.replaceAll(" ", "-")}`;

function difference({ previous, difference: change }) {
  if (!previous) return h("p.muted", "First model call on this path.");
  if (!change) return h("p.good", icon("check"),
    ` Extends the request after ${previous}; the provider's prompt cache still applies.`);
  return h("section.differs", h("h3", icon("compare"), ` First difference from the request after ${previous}`),
    h("code", change.path),
    h("div.label", "before"), jsonTree(change.before, { open: 1 }), h("div.label", "after"), jsonTree(change.after, { open: 1 }));
}
