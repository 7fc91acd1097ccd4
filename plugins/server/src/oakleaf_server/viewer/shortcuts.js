// Keyboard shortcuts. They are ignored while typing and while a dialog is open.

import { helpDialog } from "./dialogs.js";
import { openSearch } from "./search.js";
import { shown } from "./state.js";

/** page(): the current SessionPage or DiffPage, or null. */
export function listenForShortcuts(page, listing) {
  let previousKey = "";
  addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey)
      && event.key.toLowerCase() === "k") { event.preventDefault(); openSearch(); return; }
    if ((event.metaKey || event.ctrlKey) && !event.shiftKey && event.key.toLowerCase() === "f" && page()?.find && !page().isClient
      && !document.querySelector("dialog[open]")) { event.preventDefault(); page().find.open(); return; }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)
      || document.querySelector("dialog[open]")) return;
    const action = shortcuts(page(), previousKey, listing)[event.key];
    previousKey = event.key;
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable], [role=tree], [role=list], [role=menu]") !== null;
}

function shortcuts(page, previousKey, listing) {
  const common = { "/": () => openSearch(), "?": () => helpDialog(), s: () => listing.step(1), S: () => listing.step(-1) };
  if (page?.step) return { ...common, n: () => page.step(1), p: () => page.step(-1) };
  const transcript = page?.transcript;
  if (!transcript) return common;
  const { selected } = shown.now;
  const sequence = previousKey === "g" ? { l: () => page.toLeaf(), g: () => transcript.goTo(1) } : {};
  return {
    ...common, j: () => transcript.step(1), k: () => transcript.step(-1), "[": () => transcript.stepTurn(-1), "]": () => transcript.stepTurn(1),
    Home: () => transcript.goTo(1), End: () => page.toLeaf(), a: () => page.decide(true), d: () => page.decide(false),
    o: () => transcript.cycleSelected(), t: () => transcript.cycleCards(), i: () => page.setPublic(!page.isPublic),
    f: () => { if (selected && page.canChange) page.fork(selected); },
    l: () => { if (selected && page.canChange) page.label(selected); }, b: () => page.jump(), r: () => page.composer.focus(),
    e: () => page.tree.stepError(1), E: () => page.tree.stepError(-1), p: () => { if (selected && !page.isClient) page.prompt(selected); }, ...sequence,
  };
}
