// The title and the icon of the tab: they say when something waits for a person, also while another tab is read.

const CALM = document.querySelector("link[rel=icon]")?.href;

/** Show the title; with `waiting` calls, their number before it, and a dot on the icon. */
export function showWaiting(title, waiting) {
  document.title = waiting ? `(${waiting}) ${title}` : title;
  const icon = document.querySelector("link[rel=icon]");
  if (!icon || icon.dataset.waiting === String(waiting > 0)) return;
  icon.dataset.waiting = String(waiting > 0);
  icon.href = waiting ? dotted() : CALM;
}

function dotted() {
  const dot = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="#c77700"/><path d="M8 4v5" stroke="#fff" stroke-width="2"/><circle cx="8" cy="11.6" r="1.2" fill="#fff"/></svg>';
  return `data:image/svg+xml,${encodeURIComponent(dot)}`;
}
