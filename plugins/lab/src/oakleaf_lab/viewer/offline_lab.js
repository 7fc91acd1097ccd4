// Entry point of a lab report that is one file: everything is in it, and it can load nothing.

import { fill, h } from "../dom.js";
import { LabReport } from "./lab_report.js";

function readReport() {
  const pieces = [...document.querySelectorAll("script.data")].map((element) =>
    Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0)));
  const decoder = new TextDecoder();
  return JSON.parse(pieces.map((piece) => decoder.decode(piece, { stream: true })).join("") + decoder.decode());
}

document.addEventListener("DOMContentLoaded", () => {
  const { run, sessions } = readReport();
  document.title = `Lab ${run.run_id} · Oakleaf`;
  const report = new LabReport(run, sessions, { turns: async (row) => row.turn_reports, links: null });
  fill(document.body, h("main.page", { id: "main", tabindex: -1, "aria-label": "Lab" }, report.element,
    h("p.muted", `${run.run_id} · a copy made by oakleaf lab show --output`)));
});
