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
function heat(x) {
  const pale = [222, 232, 243], full = [16, 64, 130];
  return "rgb(" + pale.map((v, i) => Math.round(v + (full[i] - v) * Math.min(Math.max(x, 0), 1))).join(",") + ")";
}
const inkOn = x => x > 0.45 ? "#ffffff" : "#16202b";
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
