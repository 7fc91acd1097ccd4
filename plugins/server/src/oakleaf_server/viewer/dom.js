// Builds DOM nodes from function calls, never from HTML strings.
// Session content becomes text nodes, so it can never run as markup. Knows nothing about sessions.

const SVG = "http://www.w3.org/2000/svg";

/** h("button.plain", {title: "…", onclick: f}, "text", node, [more]) */
export function h(shape, props, ...children) {
  const isProps = props && typeof props === "object" && !Array.isArray(props) && !(props instanceof Node);
  const [tag, ...classes] = shape.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  if (isProps) setProps(element, props);
  add(element, isProps || props === undefined ? children : [props, ...children]);
  return element;
}

function setProps(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

export function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

const ICONS = {
  user: "M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2.5 14c.5-3 2.7-4.5 5.5-4.5s5 1.5 5.5 4.5",
  assistant: "M3 5.5h10v7H3zM8 5.5V3M6 8.5v1M10 8.5v1M1.5 8v2.5M14.5 8v2.5",
  system: "M2.5 3.5h11v9h-11zM5 6.5l2 1.7L5 10M8.5 10.5H11",
  tool: "M9.5 2.5a3.5 3.5 0 0 0-3.3 4.7L2 11.5 4.5 14l4.2-4.2a3.5 3.5 0 0 0 4.7-4.3L11 7.8 8.7 7l-.6-2.3z",
  shell: "M3 4.5l3.5 3.5L3 11.5M8 12h5",
  file: "M4 1.5h5l3.5 3.5v9.5H4zM9 1.5V5h3.5",
  fork: "M5 13.5V2.5M5 9.5c0-3 6-1.5 6-5.5M11 4V2.5",
  task: "M4 2.5v6.5h7.5M9 6.5l2.5 2.5L9 11.5",
  replay: "M3 8a5 5 0 1 1 1.6 3.7M3 12.5V9.5h3",
  import: "M8 2v7M5 6.5 8 9.5l3-3M2.5 13h11",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.3 10.3 14 14",
  copy: "M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1",
  link: "M6.5 9.5l3-3M7 4.5l1.5-1.5a3 3 0 0 1 4.3 4.3L11.5 9M9 11.5 7.5 13a3 3 0 0 1-4.3-4.3L4.5 7",
  undo: "M6 3 2.5 6.5 6 10M3 6.5h6a4 4 0 0 1 0 8H7",
  redo: "M10 3l3.5 3.5L10 10M13 6.5H7a4 4 0 0 0 0 8h2",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  unknown: "M5.5 5.8a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.7M8 12.3v.2",
  denied: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM3.8 3.8l8.4 8.4",
  interrupted: "M9 1.5 4 9h4l-1 5.5L12 7H8z",
  dry_run: "M6.5 2v4L3 12.5c-.4.9 0 1.5 1 1.5h8c1 0 1.4-.6 1-1.5L9.5 6V2M5.5 2h5",
  not_recorded: "M3 8h10",
  wait: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.5V8l2.5 1.5",
  compaction: "M3 2.5h10M3 13.5h10M8 4.5v2.5M6 6l2 2 2-2M8 11.5V9M6 10l2-2 2 2",
  settings: "M2.5 5h6M12 5h1.5M2.5 11H4M7.5 11h6M10.2 6.7a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4ZM5.7 12.7a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4Z",
  note: "M3 2.5h10v7l-4 4H3zM9 13.5v-4h4",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z",
  shut: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM3 13 13 3",
  plus: "M8 3v10M3 8h10",
  label: "M2.5 2.5h5.5l5.5 5.5-5.5 5.5-5.5-5.5zM5.3 5.3h.1",
  trash: "M2.5 4.5h11M6 4V2.5h4V4M4 4.5l.7 9h6.6l.7-9",
  pencil: "M10.5 3l2.5 2.5L5.5 13l-3 .5.5-3z",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5Z",
  tree: "M4 2.5v9.5h3M4 6.5h3M9 6.5h4M9 12h4",
  chart: "M2.5 13.5h11M4.5 11V8M8 11V4M11.5 11V6",
  send: "M14 2 7.5 8.5M14 2l-4 12-2.5-5.5L2 6z",
  stop: "M4 4h8v8H4z",
  reasoning: "M8 2a4 4 0 0 0-2.3 7.3c.5.4.8.9.8 1.7h3c0-.8.3-1.3.8-1.7A4 4 0 0 0 8 2ZM6.5 13.5h3",
  error: "M8 2 1.5 13.5h13zM8 6.5v3.5M8 11.8v.2",
  compare: "M2.5 3h4v10h-4zM9.5 3h4v10h-4z",
  expand: "M9.5 2.5h4v4M13.5 2.5 9 7M6.5 13.5h-4v-4M2.5 13.5 7 9",
  list: "M2.5 4h11M2.5 8h11M2.5 12h11",
  side: "M2.5 3h11v10h-11zM10 3v10",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
};

export function icon(name, label) {
  const meaning = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", width: 16, height: 16, ...meaning },
    svg("path", { d: ICONS[name] ?? ICONS.note }));
}

export function button(name, label, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, name && icon(name), label && h("span", label));
}

/** A quiet button that shows an icon only. */
export function iconButton(name, label, onclick, props = {}) {
  return button(name, "", onclick, { class: "quiet", title: label, "aria-label": label, ...props });
}

/** Buttons of which one is chosen. options: [[value, label]] */
export function choice(label, options, chosen, choose) {
  return h("div.choice", { role: "radiogroup", "aria-label": label }, options.map(([value, words]) => h("button",
    { type: "button", role: "radio", "aria-checked": String(value === chosen), data: { value }, onclick: () => choose(value) }, words)));
}

export function markChosen(group, chosen) {
  for (const option of group.children) option.setAttribute("aria-checked", String(option.dataset.value === chosen));
}

/** Open a modal dialog, which is removed when it is closed. */
export function openDialog(shape, label, props, ...content) {
  const box = h(shape, { "aria-label": label, onclose: () => box.remove(), ...props }, ...content);
  document.body.append(box);
  box.showModal();
  return box;
}

/** A value with change listeners. */
export class Value {
  #listeners = new Set();
  constructor(now) { this.now = now; }
  set(next) {
    this.now = next;
    for (const listener of [...this.#listeners]) listener(next);
  }
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Show a notice that disappears after a few seconds, later if it has an action. */
export function notice(text, { kind = "", action = null, label = "Undo" } = {}) {
  let box = document.getElementById("notices");
  if (!box) document.body.append((box = h("div", { id: "notices", role: "status", "aria-live": "polite" })));
  const dismiss = () => element.remove();
  const element = h("div.notice", { class: kind }, h("span", text),
    action && h("button.quiet", { type: "button", onclick: () => { dismiss(); action(); } }, label),
    h("button.quiet", { type: "button", "aria-label": "Dismiss", onclick: dismiss }, icon("cross")));
  box.append(element);
  setTimeout(dismiss, action || kind === "bad" ? 12000 : 5000);
}

/** Run an action and return its result; a problem is shown as a notice. */
export async function attempt(act) {
  try {
    return await act();
  } catch (problem) {
    notice(problem.text ?? problem.message, { kind: "bad" });
    return undefined;
  }
}

export function loadPreference(name, fallback) {
  try { return localStorage.getItem(`oakleaf.${name}`) ?? fallback; } catch { return fallback; }
}

export function savePreference(name, value) {
  try { localStorage.setItem(`oakleaf.${name}`, value); } catch { /* a browser without storage forgets, nothing else */ }
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notice("Copied");
  } catch {
    notice(text, { kind: "copyable" });
  }
}

/** A command of the command line with a button that copies it. */
export function commandRow(command, content = command) {
  return h("div.command-row", h("code", content), iconButton("copy", "Copy", () => copy(command), { "aria-label": `Copy: ${command}` }));
}
