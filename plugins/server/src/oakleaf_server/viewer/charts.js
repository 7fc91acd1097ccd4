// Small SVG charts: columns per day, bars by name. Each has a text alternative with its values.

import { h, svg } from "./dom.js";

const HEIGHT = 140, AXIS_HEIGHT = 18, SCALE_WIDTH = 56; // the scale is drawn beside the columns, not behind them

/** points: [{name, value}] in order; format(value) returns the label of a value. */
export function columnChart(points, label, format) {
  const width = Math.max(280, Math.min(1140, innerWidth - 60)); // drawn at its final size, so that text is not scaled
  const max = Math.max(...points.map((point) => point.value), 1e-12), room = width - SCALE_WIDTH, stepWidth = room / Math.max(points.length, 7);
  const bars = points.map(({ name, value }, at) => {
    if (!value) return null;
    const height = Math.max(2, (value / max) * (HEIGHT - 16));
    return svg("rect", { x: at * stepWidth + stepWidth * 0.12, y: HEIGHT - height, width: Math.min(stepWidth * 0.76, 48), height: height,
      rx: 2 }, titleNode(`${name}: ${format(value)}`));
  });
  const every = Math.ceil(points.length / 8);
  const names = points.map(({ name },
    at) => (at % every ? null : text(at * stepWidth + stepWidth * 0.12, HEIGHT + AXIS_HEIGHT - 4, name.slice(5))));
  const lines = [0.5, 1].map((share) => {
    const y = HEIGHT - share * (HEIGHT - 16);
    return [svg("line", { x1: 0, x2: room, y1: y, y2: y, class: "grid" }), text(width, y + 3, format(max * share), "end")];
  });
  return svg("svg", { viewBox: `0 0 ${width} ${HEIGHT + AXIS_HEIGHT}`, class: "plot", role: "img",
    "aria-label": `${label}: ${points.map((point) => `${point.name} ${format(point.value)}`).join(", ")}` },
    ...lines.flat(), ...bars.filter(Boolean), ...names.filter(Boolean), svg("line",
      { x1: 0, x2: room, y1: HEIGHT, y2: HEIGHT, class: "axis" }));
}

export function barChart(points, label, format) {
  const max = Math.max(...points.map((point) => point.value), 1e-12);
  return h("div.hbars", { role: "list", "aria-label": label }, points.map(({ name, value, text: valueText, note }) => {
    const bar = h("span.hbar");
    bar.style.width = `${(value / max) * 100}%`;
    return h("div.hbar-row", { role: "listitem" }, h("span.hbar-name", { title: name }, name), h("span.hbar-room", bar),
      h("span.hbar-value", valueText ?? format(value)), h("span.muted", note));
  }));
}

function text(x, y, label, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor }, document.createTextNode(label));
}

function titleNode(label) {
  return svg("title", {}, document.createTextNode(label));
}
