// The viewer begins here: who is asked, which page the address names, and the frame around it.

import { Problem, ask, asset, change, locked } from "./api.js";
import { helpDialog, loginDialog, startDialog } from "./dialogs.js";
import { DiffPage } from "./diffpage.js";
import { button, fill, h, icon, remember, remembered } from "./dom.js";
import { listenToKeys } from "./keys.js";
import { Listing } from "./listing.js";
import { filters, follow, go, note, route, sessionLink, to } from "./route.js";
import { openSearch } from "./search.js";
import { SessionPage } from "./session.js";
import { UsagePage } from "./usagepage.js";
import { shown } from "./words.js";

const PANES = [["sessions", "Sessions"], ["tree", "Tree"], ["transcript", "Transcript"], ["inspector", "Details"]];
let about = null, listing = null, page = null, panes = null;

async function begin() {
  theme(remembered("theme", "system"));
  await logIn();
  try {
    about = await ask("");
  } catch (problem) {
    if (problem instanceof Problem && problem.status === 401) return; // the login dialog is open
    document.body.replaceChildren(h("main.page", h("h1", "No answer"), h("p.said-bad", problem.message),
      h("p.muted", "Is bough serve still running?"), button("replay", "Try again", () => location.reload())));
    return;
  }
  listing = new Listing(about, start);
  document.body.replaceChildren(top(), (panes = h("div.panes")), tabBar());
  follow();
  listenToKeys(() => page);
  route.on(show);
  await show();
}

function start() {
  startDialog(about.models, ({ session }) => {
    listing.refresh();
    go(sessionLink(session.id));
  });
}

/** A token in the fragment never reaches the server's log; it is handed in once and forgotten. */
async function logIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  note(location.pathname + location.search);
  try { await change("POST", "/login", { token }); } catch { /* the next request says what is wrong */ }
}

locked.on((isLocked) => {
  if (isLocked && !document.querySelector("dialog[open]")) loginDialog(() => location.reload());
});

// -- frame ------------------------------------------------------------------------------------

function top() {
  return h("header.top", h("a.skip",
    { href: "#main", onclick: (event) => { event.preventDefault(); document.querySelector(".transcript, #main")?.focus(); } },
    "To the content"),
    h("a.brand", { href: to("/") }, h("img", { src: asset("icon.svg"), alt: "", width: 18, height: 18 }), "Bough"),
    about.copy ? copied(about.copy) : h("nav", { "aria-label": "Pages" },
      h("a", { href: "/", data: { page: "sessions" } }, "Sessions"),
      about.level === "service" && h("a", { href: "/usage", data: { page: "usage" } }, "Usage")),
    h("span.grow"),
    about.level === "service" && h("button.search-button", { type: "button", onclick: () => openSearch() }, icon("search"),
      h("span", "Search"), h("kbd", "/")),
    button("moon", "", cycleTheme,
      { class: "quiet", title: "Light, dark, or as the system is", "aria-label": "Light, dark, or as the system is" }),
    h("button.quiet", { type: "button", onclick: () => helpDialog(), "aria-label": "Keys", title: "Keys (?)" }, "?"));
}

/** A page that is a file: what it is, and the bundle inside it to be saved. */
function copied({ words, name, save }) {
  return h("a.button.copied", { "aria-label": "Copy: save the bundle",
    title: `${words}. Save the bundle that is inside; bough import takes it in.`, download: name, href: "#",
    onclick: (event) => { event.currentTarget.href = save(); } }, icon("import"), h("span", "Copy: save the bundle"));
}

function tabBar() {
  return h("nav.tab-bar", { "aria-label": "Panes" },
    PANES.map(([name, word]) => h("button", { type: "button", data: { tab: name }, onclick: () => pane(name) }, word)));
}

function pane(name) {
  document.body.dataset.pane = name;
  for (const tab of document.querySelectorAll(".tab-bar button")) tab.setAttribute("aria-pressed",
    String(tab.dataset.tab === name));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  remember("theme", name);
}

function cycleTheme() {
  const now = document.documentElement.dataset.theme, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = isDark ? ["system", "light", "dark"] : ["system", "dark", "light"];
  theme(order[(order.indexOf(now) + 1) % 3]);
}

// -- pages ------------------------------------------------------------------------------------

async function show() {
  const { page: name, id, query } = route.now;
  document.body.dataset.page = name;
  for (const link of document.querySelectorAll(".top nav a")) link.toggleAttribute("aria-current",
    link.dataset.page === (name === "session" ? "sessions" : name));
  if (name === "session" && page?.id === id) return again(query);
  page?.close();
  page = { session: () => new SessionPage(id, about, listing), diff: () => new DiffPage(), usage: () => new UsagePage(),
    sessions: () => null }[name]();
  draw(name);
  const isList = name === "session" || name === "sessions";
  pane(name === "session" ? "transcript" : "sessions");
  await Promise.all([isList && listing.show(), opened(page, query.at)]);
}

/** The same session at another place, or with another filter of the list. */
async function again(query) {
  await listing.show();
  const [branch, seq] = (query.at ?? "").split(":").map(Number), here = page.transcript.selected;
  if (branch && seq && !(here?.branch === branch && here.seq === seq)) await page.look({ branch, seq });
}

function draw(name) {
  document.title = { session: "Session · Bough", diff: "Compare · Bough", usage: "Usage · Bough" }[name] ?? "Bough";
  if (name === "diff" || name === "usage") fill(panes, page.element);
  else if (page) fill(panes, listing.element, page.element, about.level === "service" && page.inspector.element);
  else fill(panes, listing.element,
    h("section.pane.center.nothing", { id: "main", tabindex: -1 },
    h("div.empty", h("img", { src: asset("icon.svg"), alt: "", width: 40, height: 40 }), h("p", "Choose a session."),
      h("p.muted", h("kbd", "/"), " searches everything, ", h("kbd", "?"), " tells the keys."))));
}

async function opened(now, at) {
  if (!now) return;
  try {
    await now.open(at);
    const heading = now.detail?.session.heading;
    if (heading && page === now) document.title = `${shown(heading)} · Bough`;
  } catch (problem) {
    if (page !== now) return;
    now.element.replaceChildren(h("div.empty", icon("error"), h("p.said-bad", problem.message),
      problem.next && h("p.muted", problem.next), h("a", { href: to("/", filters()) }, "All sessions")));
    if (!(problem instanceof Problem)) throw problem;
  }
}

begin();
