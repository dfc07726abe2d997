"use strict";
// What the pages share. The data of a page is all in its element "data": no network, no library.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Told apart without red against green (Okabe and Ito).
const series = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a63c9", "#8c6d31"];

function time(ns) {
  const a = Math.abs(ns);
  if (a >= 1e9) return (ns / 1e9).toPrecision(4) + " s";
  if (a >= 1e6) return (ns / 1e6).toPrecision(4) + " ms";
  if (a >= 1e3) return (ns / 1e3).toPrecision(4) + " µs";
  return ns.toFixed(0) + " ns";
}
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let u = 0;
  while (Math.abs(bytes) >= 1024 && u < units.length - 1) { bytes /= 1024; ++u; }
  return (u === 0 ? bytes.toFixed(0) : bytes.toPrecision(3)) + " " + units[u];
}
const percent = x => (100 * x).toFixed(1) + " %";
const grouped = x => x >= 1000 ? Math.round(x).toLocaleString("en-US") : Number(x.toPrecision(4)).toString();
function element(name, attributes, text) {
  const e = document.createElementNS(byId("blank").namespaceURI, name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  if (text !== undefined) e.textContent = text;
  return e;
}
function html(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}
function svgIn(box, width, height, label) {
  box.textContent = "";
  const svg = element("svg", {width, height, viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": label || ""});
  box.appendChild(svg);
  return svg;
}
function legend(box, entries) {
  box.textContent = "";
  for (const [name, colour] of entries) {
    const span = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = colour;
    span.append(mark, name);
    box.appendChild(span);
  }
}
// [value, what it is, whether it is bad]
function figures(list) {
  for (const [value, name, bad] of list) {
    const box = html("div", undefined, "figure" + (bad ? " bad" : ""));
    box.append(html("b", value), html("span", name));
    byId("figures").appendChild(box);
  }
}
const tip = byId("tip");
function showTip(x, y, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - box.height - 8)) + "px";
}
const hideTip = () => { tip.style.display = "none"; };
function withTip(e, text) {
  e.addEventListener("pointermove", event => showTip(event.clientX, event.clientY, text));
  e.addEventListener("pointerdown", event => showTip(event.clientX, event.clientY, text));
  e.addEventListener("pointerleave", hideTip);
  e.addEventListener("focus", () => { const box = e.getBoundingClientRect(); showTip(box.right, box.bottom, text); });
  e.addEventListener("blur", hideTip);
  return e;
}
// From pale to full, in both themes; x from 0 to 1.
const heatChannels = x => [222, 232, 243].map((v, i) => Math.round(v + ([16, 64, 130][i] - v) * Math.min(Math.max(x, 0), 1)));
const heat = x => "rgb(" + heatChannels(x).join(",") + ")";
// White or black, whichever contrasts more: 4.58 at least on any colour (WCAG 2.2, relative luminance).
function inkOn(x) {
  const [r, g, b] = heatChannels(x).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 * 0.05 > (luminance + 0.05) ** 2 ? "#ffffff" : "#000000";
}
// Parts of a step, in colours told apart without red against green.
const colours = {
  forward: "#0072b2", backward: "#009e73", recompute: "#7fd0b4", optimizer: "#8a63c9", tensor: "#e69f00", context: "#b59b00", expert: "#a0642c", data: "#d55e00",
  pipeline: "#cc79a7", bubble: "#b9c3cd",
  parameter: "#0072b2", gradient: "#009e73", "optimizer states": "#8a63c9", activation: "#e69f00", communication: "#d55e00", "data buffers": "#7b8794", framework: "#a7b1bb"
};
const partNames = {tensor: "exposed tensor", context: "exposed context", expert: "exposed expert", data: "exposed data", pipeline: "exposed pipeline", bubble: "bubble (waiting)"};
// rows: [part, ns] that add up to the step
function waterfall(box, all, step) {
  const rows = all.filter(r => r[1] > 0);
  const row = 24, width = box.clientWidth, left = 128, right = width > 560 ? 150 : 62, scale = Math.max(width - left - right, 0) / step;
  const words = ns => width > 560 ? time(ns) + " (" + percent(ns / step) + ")" : percent(ns / step);
  const svg = svgIn(box, width, (rows.length + 1) * row + 4, "how the parts add up to the step");
  let at = 0;
  rows.forEach(([p, ns], i) => {
    const x = left + at * scale, w = Math.max(ns * scale, 1);
    svg.appendChild(element("text", {x: left - 10, y: i * row + 16, "text-anchor": "end"}, partNames[p] || p));
    svg.appendChild(element("rect", {x, y: i * row + 3, width: w, height: row - 6, fill: colours[p]}));
    svg.appendChild(element("line", {x1: x + w, x2: x + w, y1: i * row + 3, y2: (i + 2) * row - 3, class: "guide"}));
    svg.appendChild(element("text", {x: x + w + 8, y: i * row + 16}, words(ns)));
    at += ns;
  });
  svg.appendChild(element("text", {x: left - 10, y: rows.length * row + 16, "text-anchor": "end"}, "step"));
  svg.appendChild(element("rect", {x: left, y: rows.length * row + 3, width: step * scale, height: row - 6, class: "whole"}));
  svg.appendChild(element("text", {x: left + step * scale + 8, y: rows.length * row + 16}, time(step)));
}
// rows: {name, value, text, tip, colour}: a name above each bar, so that long ones have room
function bars(box, rows, label) {
  const row = 40, width = box.clientWidth, right = 8 + 7 * Math.max(...rows.map(r => r.text.length)), top = Math.max(...rows.map(r => Math.abs(r.value)), 1e-12), scale = Math.max(width - right, 0) / top;
  const svg = svgIn(box, width, rows.length * row, label);
  rows.forEach((r, i) => {
    const g = element("g", r.tip ? {tabindex: 0, "aria-label": r.name + " " + r.text} : {});
    g.appendChild(element("text", {x: 0, y: i * row + 13, class: "soft"}, fitted(r.name, width)));
    g.appendChild(element("rect", {x: 0, y: i * row + 18, width: Math.max(Math.abs(r.value) * scale, 1), height: 15, fill: r.colour || series[0], opacity: r.value < 0 ? 0.5 : 1}));
    g.appendChild(element("text", {x: Math.abs(r.value) * scale + 6, y: i * row + 30}, r.text));
    svg.appendChild(r.tip ? withTip(g, r.tip) : g);
  });
}
const fitted = (text, width) => text.length * 7 > width ? text.slice(0, Math.max(width / 7 - 1, 1)) + "…" : text;
// columns: [[heading, cell(row), is text], ...]
function tableOf(table, rows, columns) {
  table.textContent = "";
  const head = html("tr");
  for (const [name, , words] of columns) head.appendChild(html("th", name, words ? "words" : ""));
  table.appendChild(head);
  for (const r of rows) {
    const line = html("tr");
    for (const [, cell, words] of columns) line.appendChild(html("td", cell(r), words ? "words" : ""));
    table.appendChild(line);
  }
}
function redraw(draw) {
  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
  addEventListener("resize", soon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
  draw();
}
