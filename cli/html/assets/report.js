// Draws a simulated step. Times are nanoseconds, sizes bytes.
// ---- head ----
const step = data.step_ns;
byId("title").textContent = (data.others ? "Plan for " : "Step of ") + data.model + " on " + data.cluster + ": " + time(step) + " a step";
document.title = "Orrery: " + byId("title").textContent;
byId("facts").textContent = data.facts;
byId("plan").textContent = data.plan;
byId("scenario").textContent = data.scenario;
if (data.scenario) byId("alike").textContent = "with the scenario its GPUs differ, and the one that computes longest is shown";
byId("origin").textContent = ("Predicted by simulation. Prices: " + data.origin + ". " + data.band).replaceAll(" %", "\u00a0%");
byId("fingerprint").textContent = "Fingerprint " + data.fingerprint + ". The picoseconds of every operation: orrery simulate --trace.";
const worst = Math.max(...data.stages.map(s => s.peak));
const fits = worst <= data.limit, fullest = data.stages.findIndex(s => s.peak === worst);
figures([
  [time(step), "step time"], [percent(data.mfu), "MFU"], [grouped(data.tokens_per_s), "tokens / s"], [percent(data.bubble), "bubble, mean over GPUs"],
  [percent(data.exposed), "exposed communication, mean over GPUs"], [size(worst), "peak memory of " + size(data.limit) + ", on pp rank " + fullest + (fits ? "" : ": does not fit"), !fits]]);

// ---- where the step goes ----
const used = data.parts.filter((_, i) => data.stages.some(s => s.parts[i] > 0));
legend(byId("legend-parts"), used.map(p => [partNames[p] || p, colours[p]]));
const bubbleAt = data.parts.indexOf("bubble");
const busiest = data.stages.reduce((best, s, i) => s.parts[bubbleAt] < data.stages[best].parts[bubbleAt] ? i : best, 0);
let chosen = busiest, stored = fullest;  // pipeline ranks of the waterfall, of the chart of memory

// Takes a click, or Enter, to choose rank i for both; `now`: the one that is shown.
function choice(i, now) {
  const g = element("g", {class: i === now ? "choice chosen" : "choice", tabindex: 0, role: "button", "aria-label": "pp rank " + i});
  const choose = () => { chosen = stored = i; draw(); };
  g.addEventListener("click", choose);
  g.addEventListener("keydown", e => { if (e.key === "Enter") choose(); });
  return g;
}
function drawStages() {
  const many = data.stages.length > 24, row = many ? 13 : 22, left = 74, width = byId("stages").clientWidth, scale = (width - left - 10) / step;
  const svg = svgIn(byId("stages"), width, data.stages.length * row + 22, "where the step of each pipeline rank goes");
  data.stages.forEach((s, i) => {
    const g = choice(i, chosen);
    g.appendChild(element("rect", {class: "back", x: 0, y: i * row, width, height: row}));
    if (!many || i % 4 === 0 || i === chosen) g.appendChild(element("text", {x: left - 10, y: i * row + row / 2 + 4, "text-anchor": "end", class: i === chosen ? "" : "soft"}, "pp rank " + i));
    let at = 0;
    data.parts.forEach((p, k) => {
      if (s.parts[k] <= 0) return;
      const bar = element("rect", {x: left + at * scale, y: i * row + 2, width: Math.max(s.parts[k] * scale, 0.5), height: row - 4, fill: colours[p]});
      g.appendChild(withTip(bar, "pp rank " + i + "\n" + (partNames[p] || p) + ": " + time(s.parts[k]) + " (" + percent(s.parts[k] / step) + ")"));
      at += s.parts[k];
    });
    svg.appendChild(g);
  });
  axis(svg, left, data.stages.length * row + 14, width - left - 10, 0, step);
}
// Round times of a window, some 80 pixels apart at least.
const roundTimes = (from, to, width) => roundSteps(from, to, Math.max(width / 110, 2));
function roundSteps(from, to, most) {
  const raw = (to - from) / most, unit = 10 ** Math.floor(Math.log10(raw)), by = [1, 2, 5, 10].find(m => m * unit >= raw) * unit, list = [];
  for (let k = Math.ceil(from / by); k * by <= to; ++k) list.push(k * by);
  return list;
}
// "7.5 s": four digits, none of them a zero at the end.
const round = t => t === 0 ? "0" : time(t).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
function axis(svg, left, y, width, from, to) {
  for (const t of roundTimes(from, to, width)) {
    const x = left + width * (t - from) / (to - from);
    svg.appendChild(element("line", {x1: x, x2: x, y1: y - 18, y2: y - 12, class: "grid"}));
    svg.appendChild(element("text", {x, y, "text-anchor": x < left + 20 ? "start" : x > left + width - 20 ? "end" : "middle", class: "soft"}, round(t)));
  }
}
function drawWaterfall() {
  const s = data.stages[chosen];
  byId("waterfall-title").textContent = "Pipeline rank " + chosen + (chosen === busiest ? ", which waits least" : "") + ": how its parts add up to the step";
  waterfall(byId("waterfall"), data.parts.map((p, k) => [p, s.parts[k]]), step);
}

// ---- timeline ----
// A block: [part, micro-batch, first layer, last layer, operations, start, length, busy, recomputing], starts relative to the block before.
const lanes = [];
data.stages.forEach((s, i) => s.lanes.forEach(lane => {
  let at = 0;
  const blocks = lane.blocks.map(b => { at += b[5]; return {part: data.parts[b[0]], micro: b[1], first: b[2], last: b[3], count: b[4], from: at, to: at + b[6], busy: b[7], again: b[8]}; });
  lanes.push({stage: i, stream: lane.stream, blocks});
}));
const shownLanes = () => lanes.filter(l => l.stream === "compute" || byId("streams").checked);
function legendOfBlocks() {
  const drawn = p => shownLanes().some(l => l.blocks.some(b => b.part === p || (p === "recompute" && b.again > 0)));
  legend(byId("legend-blocks"), ["forward", "backward", "recompute", "optimizer", "tensor", "context", "expert", "data", "pipeline"].filter(drawn).map(p => [p === "recompute" ? "recomputed in a backward" : p, colours[p]]));
}
legendOfBlocks();
const canvas = byId("timeline");
let gutter = 186;
let from = 0, to = step, rows = [];
// What is narrower than a pixel shares its column: [pixel] time by part.
function columnsOf(lane, scale) {
  const columns = new Map();
  for (const b of lane.blocks) {
    if (b.to < from || b.from > to || (b.to - b.from) * scale >= 1) continue;
    const x = Math.floor((b.from - from) * scale), own = columns.get(x) || {};
    own[b.part] = (own[b.part] || 0) + (b.to - b.from) * scale;
    columns.set(x, own);
  }
  return columns;
}
// The height of a part in a column is its share of the column's time.
function drawColumns(c, columns, y, height) {
  for (const [x, own] of columns) {
    const total = Math.max(Object.values(own).reduce((a, b) => a + b, 0), 1);
    let at = y;
    for (const part in own) {
      c.fillStyle = colours[part];
      c.fillRect(gutter + x, at, 1, height * own[part] / total);
      at += height * own[part] / total;
    }
  }
}
function drawTimeline() {
  rows = shownLanes();
  gutter = byId("streams").checked ? 186 : 76;
  const width = byId("timeline-box").clientWidth - 16, row = rows.length > 40 && !byId("streams").checked ? 12 : 20, height = rows.length * row + 24, ratio = devicePixelRatio || 1;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.dataset.row = row;
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  c.fillStyle = style("--paper");
  c.fillRect(0, 0, width, height);
  c.font = "12px system-ui, sans-serif";
  const scale = (width - gutter) / (to - from);
  c.save();
  c.beginPath();
  c.rect(gutter, 0, width - gutter, height);
  c.clip();
  rows.forEach((lane, i) => {
    const y = i * row + 1;
    c.fillStyle = style(lane.stage % 2 ? "--ground" : "--band");
    c.fillRect(gutter, y - 1, width, row);
    drawColumns(c, columnsOf(lane, scale), y, row - 3);
    for (const b of lane.blocks) {
      if (b.to < from || b.from > to) continue;
      const x = gutter + (b.from - from) * scale, end = gutter + (b.to - from) * scale;
      if (end - x < 1) continue;  // in a column
      const w = Math.max(end - x - (end - x > 4 ? 0.7 : 0), 0.6);
      c.fillStyle = colours[b.part];
      c.globalAlpha = lane.stream === "compute" ? 1 : 0.25 + 0.75 * Math.min(b.busy / Math.max(b.to - b.from, 1), 1);
      c.fillRect(x, y, w, row - 3);
      c.globalAlpha = 1;
      if (b.again > 0) {
        c.fillStyle = colours.recompute;
        c.fillRect(x, y + (row - 3) * 0.66, w * b.again / Math.max(b.busy, 1), (row - 3) * 0.34);
      }
      if (w > 16 && row > 14) {
        c.fillStyle = "#fff";
        const text = b.part === "optimizer" ? (w > 60 ? "optimizer" : "") : b.micro < 0 ? "" : String(b.micro);
        if (text && c.measureText(text).width < w - 4) c.fillText(text, x + 3, y + 12);
      }
    }
  });
  c.restore();
  c.fillStyle = style("--ink");
  let before = -1;
  rows.forEach((lane, i) => {
    const name = lane.stage !== before ? "pp rank " + lane.stage : "";
    if (name && (row > 14 || lane.stage % 4 === 0)) c.fillText(name, 6, i * row + Math.min(row - 2, 14));
    if (byId("streams").checked) { c.fillStyle = style("--soft"); c.fillText(lane.stream, 78, i * row + 14); c.fillStyle = style("--ink"); }
    before = lane.stage;
  });
  c.fillStyle = style("--soft");
  for (const t of roundTimes(from, to, width - gutter)) {
    const x = gutter + (width - gutter) * (t - from) / (to - from);
    c.textAlign = x < gutter + 20 ? "left" : x > width - 20 ? "right" : "center";
    c.fillText(round(t), x, height - 8);
  }
  c.textAlign = "left";
  byId("window").textContent = to - from < step ? "shows " + time(from) + " to " + time(to) + ", " + percent((to - from) / step) + " of the step" : "";
}
function zoom(centre, factor) {
  const span = Math.min(Math.max((to - from) * factor, step / 1e5), step);
  const share = (centre - from) / (to - from);
  from = Math.min(Math.max(centre - share * span, 0), step - span);
  to = from + span;
  drawTimeline();
}
const timeAt = x => from + (x - gutter) / (canvas.clientWidth - gutter) * (to - from);
canvas.addEventListener("wheel", e => { e.preventDefault(); zoom(timeAt(e.offsetX), e.deltaY > 0 ? 1.25 : 0.8); }, {passive: false});
canvas.addEventListener("dblclick", () => { from = 0; to = step; drawTimeline(); });
canvas.addEventListener("keydown", e => {
  const span = to - from, move = {ArrowLeft: -0.2, ArrowRight: 0.2}[e.key];
  if (e.key === "+" || e.key === "-") zoom((from + to) / 2, e.key === "+" ? 0.8 : 1.25);
  if (move === undefined) return;
  from = Math.min(Math.max(from + move * span, 0), step - span);
  to = from + span;
  drawTimeline();
});
// One pointer drags, two pinch.
let grip = null;
const fingers = new Map();
const spread = () => { const [a, b] = [...fingers.values()]; return Math.max(Math.abs(a - b), 8); };
canvas.addEventListener("pointerdown", e => {
  fingers.set(e.pointerId, e.offsetX);
  canvas.setPointerCapture(e.pointerId);
  grip = {x: e.clientX, from, to, spread: fingers.size === 2 ? spread() : 0};
});
const release = e => { fingers.delete(e.pointerId); grip = null; };
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", hideTip);
canvas.addEventListener("pointermove", e => {
  if (fingers.has(e.pointerId)) fingers.set(e.pointerId, e.offsetX);
  if (grip && fingers.size === 2) {
    const [a, b] = [...fingers.values()], wide = spread();
    zoom(timeAt((a + b) / 2), grip.spread > 0 ? grip.spread / wide : 1);
    grip.spread = wide;
    return hideTip();
  }
  if (grip) {
    const moved = (e.clientX - grip.x) / (canvas.clientWidth - gutter) * (grip.to - grip.from), span = grip.to - grip.from;
    from = Math.min(Math.max(grip.from - moved, 0), step - span);
    to = from + span;
    drawTimeline();
    return hideTip();
  }
  const lane = rows[Math.floor(e.offsetY / canvas.dataset.row)], at = timeAt(e.offsetX), near = (to - from) / (canvas.clientWidth - gutter) * 2;
  const b = lane && e.offsetX >= gutter ? lane.blocks.find(k => k.from - near <= at && at <= k.to + near) : undefined;
  if (!b) return hideTip();
  const layers = b.part === "optimizer" ? "" : (b.micro < 0 ? "\nseveral micro-batches" : "\nmicro-batch " + b.micro) + ", layers " + b.first + (b.last > b.first ? " to " + b.last : "");
  showTip(e.clientX, e.clientY, "pp rank " + lane.stage + ", " + lane.stream + " stream: " + b.part + layers + "\n" + time(b.from) + " to " + time(b.to) + " (" + time(b.to - b.from) + ")\n" +
    b.count + " operations, busy " + time(b.busy) + (b.again > 0 ? ", of it recomputing " + time(b.again) : ""));
});
byId("streams").addEventListener("change", () => { legendOfBlocks(); drawTimeline(); });
if (data.streams_left_out) {
  byId("streams").disabled = true;
  byId("streams").parentElement.title = "too many blocks for a page: see orrery simulate --trace";
}
byId("whole").addEventListener("click", () => { from = 0; to = step; drawTimeline(); });

// ---- memory ----
const memoryNames = data.categories.map(c => c === "optimizer" ? "optimizer states" : c === "data" ? "data buffers" : c);
const seen = bytes => bytes > worst / 500;  // a pixel of 500
legend(byId("legend-memory"), memoryNames.filter((c, k) => data.stages.some(s => seen(s.at_peak[k]) || s.memory.some(m => seen(m[k + 1])))).map(c => [c, colours[c]]).concat(seen(data.framework) ? [["framework", colours.framework]] : []));
byId("memory-text").textContent = "Bytes alive on a GPU of a pipeline rank: on the left over the step, on the right at the highest point in the order in which operations are issued, which is what must fit. " +
  "The dashed line is the limit, " + size(data.limit) + ".";
function drawMemory() {
  const s = data.stages[stored], left = 74, top = 8, width = byId("memory").clientWidth, height = 260, bottom = 26;
  byId("memory-title").textContent = "Pipeline rank " + stored + (stored === fullest ? ", the fullest," : "") + " over the step";
  const svg = svgIn(byId("memory"), width, height, "memory of the chosen pipeline rank over the step");
  const totals = s.memory.map(m => m.slice(1).reduce((a, b) => a + b, data.framework));
  const high = Math.max(...totals), top_of = Math.max(high * 1.08, high > 0.5 * data.limit ? data.limit * 1.05 : 0);
  const x = ns => left + (width - left - 8) * ns / step, y = bytes => top + (height - top - bottom) * (1 - bytes / top_of);
  const points = s.memory.concat([[step].concat(s.memory[s.memory.length - 1].slice(1))]);
  let floor = points.map(() => 0);
  const layers = (data.framework > 0 ? [["framework", () => data.framework]] : []).concat(memoryNames.map((c, k) => [c, m => m[k + 1]]));
  for (const [name, of] of layers) {
    const ceiling = points.map((m, i) => floor[i] + of(m));
    let path = "";
    ceiling.forEach((v, i) => { path += (i ? "L" + x(points[i][0]).toFixed(1) + " " + y(ceiling[i - 1]).toFixed(1) + "L" : "M") + x(points[i][0]).toFixed(1) + " " + y(v).toFixed(1); });
    for (let i = floor.length - 1; i >= 0; --i) path += "L" + x(points[i][0]).toFixed(1) + " " + y(floor[i]).toFixed(1) + (i ? "L" + x(points[i][0]).toFixed(1) + " " + y(floor[i - 1]).toFixed(1) : "");
    svg.appendChild(withTip(element("path", {d: path + "Z", fill: colours[name]}), name + ", at most " + size(Math.max(...points.map(of)))));
    floor = ceiling;
  }
  if (data.limit <= top_of) svg.appendChild(element("line", {x1: left, x2: width - 8, y1: y(data.limit), y2: y(data.limit), class: "limit"}));
  const unit = 1024 ** Math.floor(Math.log2(top_of) / 10);
  for (const k of roundSteps(0, top_of / unit, 5)) svg.appendChild(element("text", {x: left - 8, y: y(k * unit) + 4, "text-anchor": "end", class: "soft"}, size(k * unit)));
  axis(svg, left, height - 8, width - left - 8, 0, step);
}
function drawPeaks() {
  const box = byId("peaks"), width = box.clientWidth, many = data.stages.length > 24, row = many ? 13 : 22, left = 74, right = 74, top_of = Math.max(worst, data.limit);
  const svg = svgIn(box, width, data.stages.length * row + 4, "peak memory by pipeline rank"), scale = Math.max(width - left - right, 0) / top_of;
  data.stages.forEach((s, i) => {
    const g = choice(i, stored);
    g.appendChild(element("rect", {class: "back", x: 0, y: i * row, width, height: row}));
    if (!many || i % 4 === 0 || i === stored) {
      g.appendChild(element("text", {x: left - 10, y: i * row + row / 2 + 4, "text-anchor": "end", class: i === stored ? "" : "soft"}, "pp rank " + i));
      g.appendChild(element("text", {x: left + top_of * scale + 8, y: i * row + row / 2 + 4, class: s.peak > data.limit ? "" : "soft"}, size(s.peak)));
    }
    let at = 0;
    [["framework", data.framework]].concat(memoryNames.map((c, k) => [c, s.at_peak[k]])).forEach(([name, bytes]) => {
      if (bytes <= 0) return;
      g.appendChild(withTip(element("rect", {x: left + at * scale, y: i * row + 2, width: Math.max(bytes * scale, 0.5), height: row - 4, fill: colours[name]}), "pp rank " + i + ", " + name + ": " + size(bytes)));
      at += bytes;
    });
    svg.appendChild(g);
  });
  svg.appendChild(element("line", {x1: left + data.limit * scale, x2: left + data.limit * scale, y1: 0, y2: data.stages.length * row, class: "limit"}));
}

// ---- links ----
// Rows: links of a host, or between switches. Columns: hosts, neighbours joined where there are many, or those links in turn; a cell shows the busiest.
function drawLinks() {
  const l = data.links, box = byId("links");
  byId("links-text").textContent = l.rows.length === 0 ? "Nothing crossed a link in this step." :
    "Share of a link's capacity that the step used: bytes carried / (bandwidth × step time). A row is a link, one direction, with its highest share behind it; a column " +
    (l.hosts_per_column > 1 ? l.hosts_per_column + " hosts, of which the busiest shows" : "a host") + "; of links between switches they are those links in turn. The busiest link of all carries " + percent(l.highest) + (l.left_out > 0 ? "; " + l.left_out + " rows with less than those shown are left out" : "") + ".";
  box.textContent = "";
  if (l.rows.length > 0) {
    const key = document.createElement("div");
    key.className = "legend";
    legend(key, [0, 0.25, 0.5, 0.75, 1].map(x => [percent(x * l.highest), heat(x)]));
    box.appendChild(key);
  }
  const table = document.createElement("table");
  table.className = "heat";
  const top = Math.max(l.highest, 1e-9);
  for (const r of l.rows) {
    const tr = document.createElement("tr"), th = document.createElement("th");
    th.textContent = r.name + (r.alike > 1 ? ", " + r.alike + " alike" : "");
    tr.appendChild(th);
    r.cells.forEach((v, i) => {
      const td = document.createElement("td");
      td.style.background = heat(v / top);
      const first = i * l.hosts_per_column, last = first + l.hosts_per_column - 1;
      tr.appendChild(withTip(td, r.name + (r.fabric ? "" : ", host " + first + (last > first ? " to " + last : "")) + ": " + percent(v)));
    });
    const highest = document.createElement("td");
    highest.className = "soft";
    highest.textContent = percent(Math.max(...r.cells));
    tr.appendChild(highest);
    table.appendChild(tr);
  }
  box.appendChild(table);
}

function draw() {
  drawStages();
  drawWaterfall();
  drawTimeline();
  drawMemory();
  drawPeaks();
}
if (data.others) {
  byId("others-section").hidden = false;
  byId("proof").textContent = data.proof;
  tableOf(byId("others"), data.others, [["step", r => time(r.step_ns)], ["more", r => (100 * (r.step_ns / step - 1)).toFixed(1) + " %"], ["how known", r => r.known, true], ["plan", r => r.plan, true]]);
}
drawLinks();
redraw(draw);
