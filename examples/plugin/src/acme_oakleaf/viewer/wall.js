import { fetchJson } from "../api.js";
import { fill, h } from "../dom.js";

export function openPage() {
  const element = h("main.page", { id: "main" });
  const open = async () => {
    const { headings } = await fetchJson("/wall");
    fill(element, h("h1", "Wall"), ...headings.map((heading) => h("p.wall-card", heading)));
  };
  return { element, open };
}
