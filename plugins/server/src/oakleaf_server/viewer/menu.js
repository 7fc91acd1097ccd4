// A menu behind a button. Knows nothing about what its items do.

import { button, h } from "./dom.js";

/** items: buttons. Esc and a click elsewhere close the menu; the arrow keys move within it. */
export function menu(label, items) {
  const list = h("div.menu", { role: "menu", popover: "auto", "aria-label": label, onclick: () => list.hidePopover() }, items);
  const opener = button("more", label, () => list.togglePopover(), { class: "quiet", "aria-haspopup": "menu", "aria-expanded": "false" });
  list.addEventListener("toggle", ({ newState }) => {
    opener.setAttribute("aria-expanded", String(newState === "open"));
    if (newState !== "open") return;
    const { bottom, right } = opener.getBoundingClientRect();
    list.style.top = `${bottom + 4}px`;
    list.style.left = `${Math.max(8, right - list.offsetWidth)}px`;
    list.querySelector("button")?.focus();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...list.querySelectorAll("button")];
    if (!step) return;
    event.preventDefault();
    all.at((all.indexOf(document.activeElement) + step) % all.length).focus();
  });
  return [opener, list];
}
