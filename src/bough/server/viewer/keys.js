// One key, one verb. Nothing happens while somebody types, or while a dialog is open.

import { helpDialog } from "./dialogs.js";
import { openSearch } from "./search.js";

/** page(): what is shown now: a SessionPage, a DiffPage or null. */
export function listenToKeys(page) {
  let before = "";
  addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey)
      && event.key.toLowerCase() === "k") { event.preventDefault(); openSearch(); return; }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)
      || document.querySelector("dialog[open]")) return;
    const verb = verbs(page(), before)[event.key];
    before = event.key;
    if (!verb) return;
    event.preventDefault();
    verb();
  });
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null;
}

function verbs(page, before) {
  const common = { "/": () => openSearch(), "?": () => helpDialog() };
  if (page?.step) return { ...common, n: () => page.step(1), p: () => page.step(-1) };
  const transcript = page?.transcript;
  if (!transcript) return common;
  const selected = transcript.selected;
  const after = before === "g" ? { l: () => page.toLeaf(), g: () => transcript.to(1) } : {};
  return {
    ...common, j: () => transcript.step(1), k: () => transcript.step(-1), "[": () => transcript.stepTurn(-1), "]": () => transcript.stepTurn(1),
    o: () => transcript.cycleSelected(), t: () => transcript.cycleCards(), i: () => page.setPublic(!page.isPublic),
    f: () => { if (selected && page.canChange) page.fork(selected); },
    l: () => { if (selected && page.canChange) page.label(selected); }, b: () => page.jump(), r: () => page.composer.focus(), ...after,
  };
}
