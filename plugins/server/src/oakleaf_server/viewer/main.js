// Entry point: logs in, builds the page frame, and shows the page of the current URL.

import { Problem, fetchJson, assetUrl, sendJson, locked } from "./api.js";
import { helpDialog, loginDialog, startDialog } from "./dialogs.js";
import { DiffPage } from "./diff_page.js";
import { HomePage } from "./home.js";
import { applyLayout, togglePane } from "./layout.js";
import { button, fill, h, icon, iconButton, savePreference, loadPreference } from "./dom.js";
import { listenForShortcuts } from "./shortcuts.js";
import { SessionList } from "./session_list.js";
import { filters, followLinks, navigate, replaceUrl, route, sessionLink, buildUrl } from "./route.js";
import { openSearch } from "./search.js";
import { SessionPage } from "./session_page.js";
import { isSelected, show as change, shown } from "./state.js";
import { showWaiting } from "./title.js";
import { UsagePage } from "./usage_page.js";
import { printable, sentence } from "./format.js";

const TABS = {
  sessions: [["transcript", "Home"], ["sessions", "Sessions"]],
  session: [["sessions", "Sessions"], ["tree", "Tree"], ["transcript", "Transcript"], ["inspector", "Details"]],
};
let about = null, listing = null, page = null, panes = null;
const tabBar = h("nav.tab-bar", { "aria-label": "Panes" });

async function begin() {
  theme(loadPreference("theme", "system"));
  applyLayout();
  await logIn();
  try {
    about = await fetchJson("");
  } catch (problem) {
    if (problem instanceof Problem && problem.status === 401) return; // the login dialog is open
    document.body.replaceChildren(h("main.page", h("h1", "Server unreachable"), h("p.error-text", problem.message),
      h("p.muted", "Is oakleaf serve still running?"), button("replay", "Try again", () => location.reload())));
    return;
  }
  listing = new SessionList(about, start);
  document.body.replaceChildren(top(), (panes = h("div.panes")), tabBar);
  followLinks();
  listenForShortcuts(() => page, listing);
  route.on(show);
  shown.on(markPane);
  await show();
}

function start() {
  startDialog(about.models, ({ session }) => {
    listing.refresh();
    navigate(sessionLink(session.id));
  });
}

/** A token in the URL fragment never reaches the server's log; it is sent once and removed from the URL. */
async function logIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  replaceUrl(location.pathname + location.search);
  try { await sendJson("POST", "/login", { token }); } catch { /* the next request says what is wrong */ }
}

locked.on((isLocked) => {
  if (isLocked && !document.querySelector("dialog[open]")) loginDialog(() => location.reload());
});

// -- frame ------------------------------------------------------------------------------------

function top() {
  return h("header.top", h("a.skip",
    { href: "#main", onclick: (event) => { event.preventDefault(); document.querySelector(".transcript, #main")?.focus(); } },
    "Skip to content"),
    !about.copy && iconButton("list", "Show or hide the list of sessions", () => togglePane("sessions"), { class: "quiet toggle-sessions" }),
    h("a.brand", { href: buildUrl("/") }, h("img", { src: assetUrl("icon.svg"), alt: "", width: 18, height: 18 }), "Oakleaf"),
    about.copy ? copyButton(about.copy) : h("nav", { "aria-label": "Pages" },
      h("a", { href: "/", data: { page: "sessions" } }, "Home"),
      about.level === "service" && [h("a", { href: "/usage", data: { page: "usage" } }, "Usage"),
        about.pages.map((added) => h("a", { href: `/${added.name}`, data: { page: `/${added.name}` } }, printable(added.title)))]),
    h("span.grow"),
    about.level === "service" && h("button.search-button", { type: "button", "aria-label": "Search", onclick: () => openSearch() }, icon("search"),
      h("span", "Search"), h("kbd", "/")),
    iconButton("moon", "Theme: light, dark or system", cycleTheme),
    h("button.quiet", { type: "button", onclick: () => helpDialog(), "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)" }, "?"));
}

/** The button of a read-only copy that downloads the bundle inside it. */
function copyButton({ label, name, save }) {
  return h("a.button.copied", { "aria-label": "Read-only copy: download bundle",
    title: `${label}. Download the bundle and load it with oakleaf import.`, download: name, href: "#",
    onclick: (event) => { event.currentTarget.href = save(); } }, icon("import"), h("span", "Read-only copy: download bundle"));
}

function drawTabs(name) {
  fill(tabBar, (TABS[name] ?? []).map(([tab, label]) => h("button", { type: "button", data: { tab }, onclick: () => showPane(tab) }, label)));
}

function showPane(name) { change({ pane: name }); }

function markPane({ pane: name }) {
  document.body.dataset.pane = name;
  for (const tab of document.querySelectorAll(".tab-bar button")) tab.setAttribute("aria-pressed", String(tab.dataset.tab === name));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  savePreference("theme", name);
}

function cycleTheme() {
  const opened = document.documentElement.dataset.theme, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = isDark ? ["system", "light", "dark"] : ["system", "dark", "light"];
  theme(order[(order.indexOf(opened) + 1) % 3]);
}

// -- pages ------------------------------------------------------------------------------------

async function show() {
  const { page: kind, id, query } = route.now, added = addedPage();
  const name = kind === "added" && !added ? "missing" : kind;
  document.body.dataset.page = name;
  for (const link of document.querySelectorAll(".top nav a")) link.toggleAttribute("aria-current",
    link.dataset.page === (added ? `/${added.name}` : name));
  if (name === "session" && page?.id === id) return again(query);
  if (name === "sessions" && page instanceof HomePage) { showPane(Object.keys(filters()).length ? "sessions" : "transcript"); return listing.show(); }
  page?.close?.();
  page = { session: () => new SessionPage(id, about, listing), diff: () => new DiffPage(), usage: () => new UsagePage(),
    added: () => new AddedPage(added, id), missing: missingPage,
    sessions: () => new HomePage(about, start, () => listing.refresh()) }[name]();
  draw(name, added);
  const isList = name === "session" || name === "sessions";
  drawTabs(name);
  showPane(Object.keys(filters()).length && name === "sessions" ? "sessions" : "transcript");
  await Promise.all([isList && listing.show(), openPage(page, query.at)]);
}

/** The same session at another entry, or with another filter of the list. */
async function again(query) {
  await listing.show();
  const [branch, seq] = (query.at ?? "").split(":").map(Number);
  if (branch && seq && !isSelected({ branch, seq })) await page.view({ branch, seq });
}

/** The page of a plugin that the URL names. */
function addedPage() {
  const { page: kind, name } = route.now;
  return kind === "added" ? about.pages.find((added) => added.name === name) : undefined;
}

function draw(name, added) {
  const title = added?.title ?? { session: "Session", diff: "Compare", usage: "Usage" }[name];
  showWaiting(title ? `${printable(title)} · Oakleaf` : "Oakleaf", 0);
  if (["added", "diff", "usage", "missing"].includes(name)) fill(panes, page.element);
  else fill(panes, listing.element, page.element, name === "session" && about.level === "service" && page.inspector.element);
}

async function openPage(opened, at) {
  if (!opened) return;
  try {
    await opened.open?.(at);
  } catch (problem) {
    if (page !== opened) return;
    opened.element.replaceChildren(h("div.empty", icon("error"), h("p.error-text", sentence(problem.message)),
      problem.hint && h("p.muted", sentence(problem.hint)), h("a", { href: buildUrl("/", filters()) }, "All sessions")));
    if (!(problem instanceof Problem)) throw problem;
  }
}

/** A page of a plugin. Its script is loaded when the page is opened: a broken page shows its problem and breaks nothing else. */
class AddedPage {
  #page = null;
  #isClosed = false;

  constructor(link, id) {
    this.link = link;
    this.id = id;
    this.element = h("main.page", { id: "main", tabindex: -1, "aria-label": link.title }, h("p.muted", "Loading…"));
  }

  async open() {
    const module = await import(this.link.script);
    if (this.#isClosed) return;
    this.#page = module.openPage(this.id);
    this.element.replaceWith(this.#page.element);
    this.element = this.#page.element;
    await this.#page.open?.();
  }

  close() {
    this.#isClosed = true;
    this.#page?.close?.();
  }
}

/** An address that is no page: an old link, or one that was typed. */
function missingPage() {
  return { element: h("main.page", { id: "main", tabindex: -1, "aria-label": "No such page" }, h("div.empty", icon("error"),
    h("p.error-text", "There is no such page"), h("p.muted", printable(location.pathname)), h("a", { href: "/" }, "All sessions"))) };
}

begin();
