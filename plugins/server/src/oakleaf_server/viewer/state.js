// The state of the page: the session, the branch that is viewed, the selected entry, the pane of a small screen.
// Every part reads it here and changes it here, so that no part acts on an entry that another part has left.

import { Value } from "./dom.js";

/** viewing: branch:seq of the end of another branch, null on the current path. isExplicit: the user selected the entry;
 *  otherwise the selection follows the newest entry. */
export const shown = new Value({ session: null, viewing: null, selected: null, isExplicit: false, pane: "transcript" });

export function show(changes) { shown.set({ ...shown.now, ...changes }); }

export function isSelected(entry) {
  const { selected } = shown.now;
  return Boolean(selected && entry) && selected.branch === entry.branch && selected.seq === entry.seq;
}
