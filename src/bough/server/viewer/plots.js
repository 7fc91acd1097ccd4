// Small plots as SVG: columns over days, bars by name. Numbers come in, nodes go out; each says its values in words too.

import { h, svg } from "./dom.js";

const HIGH = 140, FOOT = 18, SCALE = 56; // the scale stands beside the columns, not behind them

/** points: [{name, value}] in order; say(value) puts a value into words. */
export function columns(points, label, say) {
  const wide = Math.max(280, Math.min(1140, innerWidth - 60)); // drawn at its size, so that text keeps its own
  const most = Math.max(...points.map((point) => point.value), 1e-12), room = wide - SCALE, step = room / Math.max(points.length, 7);
  const bars = points.map(({ name, value }, at) => {
    if (!value) return null;
    const tall = Math.max(2, (value / most) * (HIGH - 16));
    return svg("rect", { x: at * step + step * 0.12, y: HIGH - tall, width: Math.min(step * 0.76, 48), height: tall,
      rx: 2 }, titled(`${name}: ${say(value)}`));
  });
  const every = Math.ceil(points.length / 8);
  const names = points.map(({ name },
    at) => (at % every ? null : text(at * step + step * 0.12, HIGH + FOOT - 4, name.slice(5))));
  const lines = [0.5, 1].map((share) => {
    const y = HIGH - share * (HIGH - 16);
    return [svg("line", { x1: 0, x2: room, y1: y, y2: y, class: "grid" }), text(wide, y + 3, say(most * share), "end")];
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${HIGH + FOOT}`, class: "plot", role: "img",
    "aria-label": `${label}: ${points.map((point) => `${point.name} ${say(point.value)}`).join(", ")}` },
    ...lines.flat(), ...bars.filter(Boolean), ...names.filter(Boolean), svg("line",
      { x1: 0, x2: room, y1: HIGH, y2: HIGH, class: "axis" }));
}

export function bars(points, label, say) {
  const most = Math.max(...points.map((point) => point.value), 1e-12);
  return h("div.hbars", { role: "list", "aria-label": label }, points.map(({ name, value, note }) => {
    const drawn = h("span.hbar");
    drawn.style.width = `${(value / most) * 100}%`;
    return h("div.hbar-row", { role: "listitem" }, h("span.hbar-name", { title: name }, name), h("span.hbar-room", drawn),
      h("span.hbar-value", say(value)), h("span.muted", note));
  }));
}

function text(x, y, words, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor }, document.createTextNode(words));
}

function titled(words) {
  return svg("title", {}, document.createTextNode(words));
}
