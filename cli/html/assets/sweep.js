// Draws a sweep: speed along an axis, the front of speed and device time, a map of two axes, all points.
const names = data.axes.flatMap(a => a.names);
const points = data.points.map((p, i) => Object.assign({index: i, ok: p.status === "ok"}, p));
const good = points.filter(p => p.ok);
const scales = good.some(p => p.efficiency !== undefined);
const forTokens = data.run_tokens ? " for " + data.run_tokens + " tokens" : "";
const metrics = [
  {key: "tokens_per_s", name: "tokens / s", text: p => grouped(p.tokens_per_s)},
  {key: "step_time_ps", name: "step", text: p => time(p.step_time_ps / 1e3)},
  {key: "mfu", name: "MFU", text: p => percent(p.mfu)},
  {key: "model_flops_per_s_device", name: "TFLOP/s a device", text: p => (p.model_flops_per_s_device / 1e12).toFixed(0)},
  {key: "efficiency", name: "efficiency", text: p => percent(p.efficiency)},
  {key: "peak_bytes", name: "memory", text: p => size(p.peak_bytes)},
  {key: "device_hours_per_1e12_tokens", name: "device-hours / 10¹² tokens", text: p => grouped(p.device_hours_per_1e12_tokens)},
  {key: "days", name: "days" + forTokens, text: p => grouped(p.days)},
  {key: "dollars", name: "$" + forTokens, text: p => grouped(p.dollars)},
  {key: "mwh", name: "MWh" + forTokens, text: p => grouped(p.mwh)},
  {key: "joules_per_token", name: "J a token", text: p => grouped(p.joules_per_token)}
].filter(m => good.some(p => p[m.key] !== undefined));
const at = p => names.map(n => n + " " + p.at[n]).join(", ");
const describe = p => at(p) + "\n" + metrics.filter(m => p[m.key] !== undefined).map(m => m.name + ": " + m.text(p)).join("\n") +
  "\nband: " + time(p.step_time_ps / 1e3 * p.band.low) + " to " + time(p.step_time_ps / 1e3 * p.band.high) + "\n" + p.plan;

document.title = "Orrery: " + data.title;
byId("title").textContent = data.title;
byId("given").textContent = data.given;
const best = (key, sign) => good.reduce((b, p) => b === null || sign * p[key] > sign * b[key] ? p : b, null);
const fastest = best("tokens_per_s", 1), thriftiest = best("device_hours_per_1e12_tokens", -1), lacking = points.length - good.length;
figures([[String(points.length), "points"]].concat(
  fastest ? [[grouped(fastest.tokens_per_s) + " tokens/s", "fastest: " + at(fastest)],
    [grouped(thriftiest.device_hours_per_1e12_tokens) + " device-hours", "least for 10¹² tokens: " + at(thriftiest)]] : [],
  lacking ? [[String(lacking), "without a plan", true]] : []));

// ---- charts ----
// A value of an axis as a number, where all of its values are: "2x" is 2, hosts count devices.
function position(axis, p) {
  if (axis.names.includes("hosts")) return p.devices;
  const number = parseFloat(p.at[axis.names[0]]);
  return axis.values.every(v => /^[0-9.]+x?$/.test(v[0])) ? number : NaN;
}
const labelOf = (axis, p) => axis.names.map(n => p.at[n]).join(" : ");
function ticks(low, high, log) {
  const list = [];
  if (log) {
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
      for (const m of high / low > 300 ? [1] : [1, 2, 5]) if (m * 10 ** e >= low * 0.999 && m * 10 ** e <= high * 1.001) list.push(m * 10 ** e);
    return list;
  }
  const raw = (high - low) / 5 || 1, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find(m => m * unit >= raw) * unit;
  for (let v = Math.ceil(low / step) * step; v <= high * 1.0001; v += step) list.push(v);
  return list;
}
// lines: [{colour, name, points: [{x, y, low, high, of}]}]; c: {xs: labels or none, logX, logY, xName, yText, join, guide}
function chart(box, lines, c) {
  const width = box.clientWidth, height = Math.min(340, Math.max(220, width * 0.62)), left = 74, right = 14, top = 8, bottom = 44;
  const svg = svgIn(box, width, height, c.xName);
  const all = lines.flatMap(l => l.points), values = all.flatMap(p => [p.y, p.low, p.high]).filter(v => v !== undefined);
  if (!all.length) return svg.appendChild(element("text", {x: 10, y: 24, class: "soft"}, "no point has a plan"));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (!c.logY) { low = c.fromZero ? 0 : low - (high - low) * 0.05; high += (high - low) * 0.05 || 1; }
  const f = c.logY ? Math.log : v => v, g = c.logX ? Math.log : v => v;
  const xs = all.map(p => p.x), lowX = Math.min(...xs), highX = Math.max(...xs), wide = width - left - right, tall = height - top - bottom;
  const x = v => lowX === highX ? left + wide / 2 : left + 12 + (wide - 24) * (g(v) - g(lowX)) / (g(highX) - g(lowX));
  const y = v => f(low) === f(high) ? top + tall / 2 : top + tall * (1 - (f(v) - f(low)) / (f(high) - f(low)));
  for (const v of ticks(low, high, c.logY)) {
    svg.appendChild(element("line", {x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid"}));
    svg.appendChild(element("text", {x: left - 8, y: y(v) + 4, "text-anchor": "end", class: "soft"}, c.yText(v)));
  }
  const marks = c.xs ? c.xs : [...new Set(xs)].sort((a, b) => a - b).map(v => [v, grouped(v)]);
  let taken = -Infinity;
  for (const [v, text] of c.marks || marks) {
    const half = text.length * 3.4;
    if (x(v) - half < taken) continue;
    svg.appendChild(element("text", {x: Math.min(x(v), width - right - half + 8), y: height - bottom + 18, "text-anchor": "middle", class: "soft"}, text));
    taken = x(v) + half + 8;
  }
  svg.appendChild(element("text", {x: left + wide / 2, y: height - 6, "text-anchor": "middle"}, c.xName));
  for (const line of lines) {
    const path = list => list.map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y(p[1]).toFixed(1)).join("");
    if (c.guide && line.points.length > 1) {
      const a = line.points[0], b = line.points[line.points.length - 1], end = c.guide(a, b);
      if (end <= high * 1.0001) svg.appendChild(element("path", {d: path([[a.x, a.y], [b.x, end]]), class: "guide"}));
    }
    const banded = line.points.filter(p => p.low !== undefined);
    if (c.join && banded.length > 1)
      svg.appendChild(element("path", {d: path(banded.map(p => [p.x, p.low]).concat(banded.map(p => [p.x, p.high]).reverse())) + "Z", fill: line.colour, opacity: 0.16}));
    else for (const p of banded) svg.appendChild(element("line", {x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high), stroke: line.colour, "stroke-width": 2, opacity: 0.5}));
    if (c.join) svg.appendChild(element("path", {d: path(line.points.map(p => [p.x, p.y])), fill: "none", stroke: line.colour, "stroke-width": 1.8}));
  }
  for (const line of lines)
    for (const p of line.points)
      svg.appendChild(withTip(element("circle", {cx: x(p.x), cy: y(p.y), r: p.of.front ? 5 : 3.6, fill: line.colour, tabindex: 0, "aria-label": at(p.of)}), describe(p.of)));
  return {svg, x, y};
}

// ---- speed ----
const long = data.axes.filter(a => a.values.length > 1);
const alongs = long.length ? long : data.axes;
const option = (select, list) => list.forEach((text, i) => { const o = html("option", text); o.value = i; select.appendChild(o); });
option(byId("along"), alongs.map(a => a.names.join(" : ")));
const hostsAt = alongs.findIndex(a => a.names.includes("hosts"));
if (hostsAt > 0) byId("along").value = hostsAt;
function linesAlong(axis, value) {
  const numeric = good.every(p => !isNaN(position(axis, p))), lines = new Map();
  for (const p of good) {
    const name = names.filter(n => !axis.names.includes(n)).map(n => n + " " + p.at[n]).join(", ");
    if (!lines.has(name)) lines.set(name, {name, colour: series[lines.size % series.length], points: []});
    const x = numeric ? position(axis, p) : axis.values.findIndex(v => axis.names.every((n, k) => p.at[n] === v[k]));
    lines.get(name).points.push(Object.assign({x, of: p}, value(p)));
  }
  for (const line of lines.values()) line.points.sort((a, b) => a.x - b.x);
  return {numeric, lines: [...lines.values()]};
}
function drawSpeed() {
  const axis = alongs[byId("along").value], hosts = axis.names.includes("hosts"), name = hosts ? "devices" : axis.names.join(" : ");
  const speed = linesAlong(axis, p => ({y: p.tokens_per_s, low: p.tokens_per_s / p.band.high, high: p.tokens_per_s / p.band.low}));
  const xs = speed.numeric ? undefined : axis.values.map((v, i) => [i, v.join(" : ")]).filter(([i]) => speed.lines.some(l => l.points.some(p => p.x === i)));
  const values = speed.lines.flatMap(l => l.points.map(p => p.x)), logX = speed.numeric && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 4;
  byId("speed-text").textContent = "Shaded: the 80 % band. A larger point: none is both faster and cheaper in device time." + (hosts ? " Dashed: as many times faster as there are more devices." : "");
  const box = byId("legend-speed");
  box.textContent = "";
  if (speed.lines.length > 1) legend(box, speed.lines.map(l => [l.name, l.colour]));
  chart(byId("speed"), speed.lines, {xs, logX, logY: hosts && logX, fromZero: !hosts, xName: name, yText: grouped, join: speed.numeric, guide: hosts ? (a, b) => a.y * b.x / a.x : undefined});
  const second = hosts && scales ? metrics.find(m => m.key === "efficiency") : metrics.find(m => m.key === "mfu");
  byId("second-title").textContent = second.key === "mfu" ? "Model FLOPs utilisation" : "Efficiency: tokens a device, over those of the smallest cluster of the same line";
  chart(byId("second"), linesAlong(axis, p => ({y: p[second.key]})).lines, {xs, logX, fromZero: second.key === "mfu", xName: name, yText: percent, join: speed.numeric});
}

// ---- front ----
function drawFront() {
  const axis = data.axes.find(a => !a.names.includes("hosts") && a.values.length > 1) || data.axes[0], lines = new Map();
  for (const p of good) {
    const name = labelOf(axis, p);
    if (!lines.has(name)) lines.set(name, {name, colour: series[lines.size % series.length], points: []});
    lines.get(name).points.push({x: p.tokens_per_s, y: p.device_hours_per_1e12_tokens, of: p});
  }
  const list = [...lines.values()], box = byId("legend-front"), xs = good.map(p => p.tokens_per_s);
  box.textContent = "";
  if (list.length > 1 && list.length <= 12) legend(box, list.map(l => [axis.names.join(" : ") + " " + l.name, l.colour]));
  const logX = Math.max(...xs) / Math.min(...xs) > 4;
  const marks = ticks(Math.min(...xs), Math.max(...xs), logX).map(v => [v, grouped(v)]);
  const made = chart(byId("front"), list, {logX, marks, xName: "tokens / s", yText: grouped, join: false});
  if (!made.svg) return;
  const front = good.filter(p => p.front).sort((a, b) => a.tokens_per_s - b.tokens_per_s);
  made.svg.appendChild(element("path", {class: "guide", d: front.map((p, i) => (i ? "L" : "M") + made.x(p.tokens_per_s).toFixed(1) + " " + made.y(p.device_hours_per_1e12_tokens).toFixed(1)).join("")}));
}

// ---- map ----
option(byId("metric"), metrics.map(m => m.name));
for (const id of ["down", "across"]) option(byId(id), alongs.map(a => a.names.join(" : ")));
if (alongs.length < 2) byId("map-section").hidden = true;
byId("across").value = Math.min(1, alongs.length - 1);
function drawMap() {
  const metric = metrics[byId("metric").value], down = alongs[byId("down").value], across = alongs[byId("across").value];
  const box = byId("map"), table = html("table", undefined, "heat wide"), others = data.axes.filter(a => a !== down && a !== across && a.values.length > 1);
  byId("map-text").textContent = others.length ? "Of points that differ in " + others.map(a => a.names.join(" : ")).join(", ") + ", the fastest." : "";
  box.textContent = "";
  const values = good.map(p => p[metric.key]).filter(v => v !== undefined), low = Math.min(...values), high = Math.max(...values);
  const head = html("tr");
  head.appendChild(html("th", down.names.join(" : ") + " \\ " + across.names.join(" : ")));
  across.values.forEach(v => head.appendChild(html("th", v.join(" : "))));
  table.appendChild(head);
  for (const v of down.values) {
    const row = html("tr");
    row.appendChild(html("th", v.join(" : ")));
    for (const w of across.values) {
      const here = points.filter(p => down.names.every((n, k) => p.at[n] === v[k]) && across.names.every((n, k) => p.at[n] === w[k]));
      const p = here.filter(q => q.ok).sort((a, b) => b.tokens_per_s - a.tokens_per_s)[0], cell = html("td", p && p[metric.key] !== undefined ? metric.text(p) : here.length ? "none" : "");
      if (p && p[metric.key] !== undefined) {
        const share = high > low ? (p[metric.key] - low) / (high - low) : 0.5;
        cell.style.background = heat(share);
        cell.style.color = inkOn(share);
        withTip(cell, describe(p));
      } else if (here.length) withTip(cell, at(here[0]) + "\n" + here[0].message);
      row.appendChild(cell);
    }
    table.appendChild(row);
  }
  box.appendChild(table);
}

// ---- all points ----
let order = {key: "index", down: false};
function drawPoints() {
  const table = byId("points"), columns = names.map(n => ({name: n, of: p => parseFloat(p.at[n]) || p.at[n], text: p => p.at[n]})).concat(metrics.map(m => ({name: m.name, of: p => p[m.key], text: p => p.ok && p[m.key] !== undefined ? m.text(p) : ""})));
  table.textContent = "";
  const head = html("tr");
  columns.forEach((c, k) => {
    const th = html("th"), button = html("button", c.name + (order.key === k ? (order.down ? " ▼" : " ▲") : ""));
    button.type = "button";
    button.addEventListener("click", () => { order = {key: k, down: order.key === k ? !order.down : false}; drawPoints(); });
    th.appendChild(button);
    head.appendChild(th);
  });
  head.appendChild(html("th", "plan, or what is missing", "words"));
  table.appendChild(head);
  const sorted = points.slice();
  if (order.key !== "index") {
    const of = columns[order.key].of, sign = order.down ? -1 : 1;
    sorted.sort((a, b) => a.ok !== b.ok ? (a.ok ? -1 : 1) : sign * (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : 0));
  }
  for (const p of sorted) {
    const row = html("tr", undefined, p.front ? "front" : "");
    for (const c of columns) row.appendChild(html("td", c.text(p)));
    row.appendChild(html("td", p.ok ? p.plan : p.message, "words"));
    table.appendChild(row);
  }
}

byId("along").addEventListener("change", drawSpeed);
for (const id of ["metric", "down", "across"]) byId(id).addEventListener("change", drawMap);
drawMap();
drawPoints();
redraw(() => { drawSpeed(); drawFront(); });
