// One tab stop per list: the arrow keys, Home and End move the focus between its rows and within a row.

/** list: the VirtualList of the scroller. target(row): what of a row takes the focus. start(): where the focus begins. */
export function rove(scroller, list, { target = (row) => row, start = () => undefined } = {}) {
  scroller.addEventListener("focusin", (event) => { scroller.tabIndex = event.target === scroller ? 0 : -1; });
  scroller.addEventListener("focusout", (event) => { if (!scroller.contains(event.relatedTarget)) scroller.tabIndex = 0; });
  scroller.addEventListener("keydown", (event) => {
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest("[data-index]");
    const isMoved = row && event.key in ACROSS ? moveWithin(row, event.target, ACROSS[event.key]) : move(event.key, row);
    if (!isMoved) return;
    event.preventDefault();
    event.stopPropagation();
  });

  function move(key, row) {
    const ends = { Home: [0, 1], End: [list.count - 1, -1] }, steps = { ArrowDown: 1, ArrowUp: -1 };
    if (!(key in ends) && !(key in steps)) return false;
    const begin = row ? Number(row.dataset.index) + steps[key] : start() ?? list.top?.index ?? 0;
    let [index, by] = ends[key] ?? [begin, steps[key]];
    while (index >= 0 && index < list.count && list.isHidden(index)) index += by;
    if (index < 0 || index >= list.count) return true;
    list.reveal(index);
    const next = list.row(index);
    if (next) target(next)?.focus({ preventScroll: true });
    return true;
  }
}

const ACROSS = { ArrowLeft: -1, ArrowRight: 1 };

function moveWithin(row, from, by) {
  const controls = [...row.querySelectorAll("a, button")], next = controls[controls.indexOf(from) + by];
  next?.focus({ preventScroll: true });
  return Boolean(next);
}
