// The panes beside the transcript: how wide they are and which are collapsed, as the user left them.
// The details open on demand. Below 1,400 pixels the list of sessions is a drawer over the page, below 1,150 the details are
// one too; below 900 the panes are tabs (layout.css).

import { h, loadPreference, savePreference } from "./dom.js";

/** Each pane: [default width, least, most, which edge is dragged]. */
const PANES = { sessions: [290, 200, 520, 1], tree: [280, 180, 640, 1], inspector: [380, 280, 1000, -1] };
const STEP = 24, WIDE = matchMedia("(min-width: 1400px)");

export function applyLayout() {
  for (const [name, [width]] of Object.entries(PANES)) setWidth(name, Number(loadPreference(`width.${name}`, width)) || width);
  document.documentElement.dataset.hidden = Object.keys(PANES).filter((name) => loadPreference(`pane.${name}`, name === "inspector" ? "closed" : "open") === "closed").join(" ");
}

function setWidth(name, width) {
  const [, least, most] = PANES[name], limited = Math.max(least, Math.min(most, width));
  document.documentElement.style.setProperty(`--w-${name}`, `${limited}px`);
  return limited;
}

function isPaneOpen(name) { return !document.documentElement.dataset.hidden.split(" ").includes(name); }

export function togglePane(name) {
  if (name === "sessions" && !WIDE.matches && document.body.dataset.page === "session") {
    document.documentElement.toggleAttribute("data-drawer");
    return;
  }
  savePreference(`pane.${name}`, isPaneOpen(name) ? "closed" : "open");
  applyLayout();
}

export function closeDrawer() { document.documentElement.removeAttribute("data-drawer"); }

/** The edge of a pane, dragged with the pointer or moved with the arrow keys; a double click restores the default. */
export function splitter(name, label) {
  const [fallback, least, most, direction] = PANES[name];
  const current = () => Number.parseInt(getComputedStyle(document.documentElement).getPropertyValue(`--w-${name}`), 10) || fallback;
  const move = (width) => {
    const limited = setWidth(name, width);
    edge.setAttribute("aria-valuenow", limited);
    savePreference(`width.${name}`, limited);
  };
  const edge = h(`div.splitter.splitter-${direction > 0 ? "right" : "left"}`, {
    role: "separator", tabindex: 0, "aria-orientation": "vertical", "aria-label": `Width of ${label}`, title: "Drag to resize",
    "aria-valuemin": least, "aria-valuemax": most, "aria-valuenow": current(), ondblclick: () => move(fallback),
    onkeydown: (event) => {
      const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (step) { event.preventDefault(); move(current() + step * direction); }
    },
    onpointerdown: (event) => {
      event.preventDefault();
      const from = event.clientX, width = current();
      edge.setPointerCapture(event.pointerId);
      edge.onpointermove = (moved) => move(width + (moved.clientX - from) * direction);
      edge.onpointerup = edge.onpointercancel = () => { edge.onpointermove = null; };
    },
  });
  return edge;
}
