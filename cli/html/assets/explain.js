// Draws an explanation. Times are picoseconds in the data.
const ns = ps => ps / 1e3;
const step = data.step_time_ps;
const parts = Object.keys(colours).filter(p => data.parts_ps[p] !== undefined);
const signed = ps => (ps < 0 ? "−" : "+") + time(ns(Math.abs(ps)));
const share = x => (x < 0 ? "−" : "+") + Math.abs(100 * x).toFixed(1) + " %";
const differences = d => Object.entries(d).filter(([, ps]) => Math.abs(ps) > step / 1e5).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).map(([p, ps]) => signed(ps) + " " + (partNames[p] || p)).join("\n");

document.title = "Orrery: " + data.title;
byId("title").textContent = data.title;
byId("facts").textContent = data.facts;
byId("plan").textContent = data.words;
byId("summary").textContent = data.summary;
byId("summary").style.whiteSpace = "pre-line";
if (data.partition) {
  byId("partition").hidden = false;
  byId("partition-words").textContent = data.partition.words;
  byId("partition-words").style.whiteSpace = "pre-line";
  byId("partition-picture").src = "data:image/svg+xml," + encodeURIComponent(data.partition.svg);
}
byId("origin").textContent = "Prices: " + data.prices + ".";
const memory = data.limits.memory;
figures([[time(ns(step)), "step time"], [size(memory.peak_bytes), "peak memory of " + size(memory.limit_bytes) + (memory.fits ? "" : ": does not fit"), !memory.fits],
  [String(data.simulated_plans), "plans simulated"], [time(ns(step * data.origin.band.low)) + " to " + time(ns(step * data.origin.band.high)), "80 % band"]]);

const decided = data.decisions.filter(d => d.step_time_ps !== undefined).sort((a, b) => b.step_time_ps - a.step_time_ps), lacking = data.decisions.filter(d => d.step_time_ps === undefined);
byId("undecided").textContent = lacking.map(d => d.made + " → " + d.otherwise + ": " + (d.shortfall_bytes > 0 ? "does not fit, needs " + size(d.shortfall_bytes) + " more" : "no such plan")).join("; ");
const others = data.others.slice().sort((a, b) => a.step_time_ps - b.step_time_ps);
byId("others-text").textContent = others.length ? "The fastest that decides each of these otherwise, and others that were simulated, whatever framework can run them. Fastest first; a bar is the step by its parts, the line this plan's step." : "None was compared.";
legend(byId("legend-parts"), parts.filter(p => [data].concat(others).some(o => o.parts_ps[p] > 0)).map(p => [partNames[p] || p, colours[p]]));
function drawOthers() {
  const rows = [data].concat(others), box = byId("others"), row = 22, width = box.clientWidth, left = 74, right = 70, scale = Math.max(width - left - right, 0) / Math.max(...rows.map(r => r.step_time_ps));
  const svg = svgIn(box, width, rows.length * row + 4, "steps of this plan and others by their parts");
  rows.forEach((r, i) => {
    svg.appendChild(element("text", {x: left - 10, y: i * row + 15, "text-anchor": "end", class: i ? "soft" : ""}, i ? r.letter : "this plan"));
    let at = 0;
    for (const p of parts) {
      if (!(r.parts_ps[p] > 0)) continue;
      svg.appendChild(withTip(element("rect", {x: left + at * scale, y: i * row + 3, width: Math.max(r.parts_ps[p] * scale, 0.5), height: row - 6, fill: colours[p]}), (i ? r.letter + ", " : "") + (partNames[p] || p) + ": " + time(ns(r.parts_ps[p]))));
      at += r.parts_ps[p];
    }
    svg.appendChild(element("text", {x: left + Math.max(at, step) * scale + 6, y: i * row + 15}, i ? share(r.step_time_ps / step - 1) : time(ns(step))));
  });
  svg.appendChild(element("line", {x1: left + step * scale, x2: left + step * scale, y1: 0, y2: rows.length * row, class: "guide"}));
}
tableOf(byId("others-table"), others, [["", r => r.letter], ["step", r => time(ns(r.step_time_ps))], ["more", r => signed(r.step_time_ps - step)], ["memory", r => size(r.peak_memory_bytes)],
  ["mainly", r => differences(r.difference_ps).split("\n").slice(0, 2).join(", "), true], ["plan", r => r.line, true]]);

// Where another plan is the best, by how much and which.
function verdict(c) {
  const best = c.name ? "; best: " + c.name : "";
  if (!(c.step_time_ps > 0)) return "this plan does not fit" + best;
  const behind = c.best ? c.step_time_ps / c.best.step_time_ps - 1 : 0;
  if (behind <= 0) return "this plan is the fastest";
  return (behind < 0.0005 ? "less than 0.1 %" : percent(behind)) + " behind" + best;
}
byId("sure").textContent = data.sure.trim().replace(/\n +/g, "\n");
byId("sure").style.whiteSpace = "pre-line";
tableOf(byId("changes"), data.sensitivity.changes, [["machine", c => c.what + " " + share(c.change), true], ["this plan", c => c.step_time_ps > 0 ? time(ns(c.step_time_ps)) : "too big"],
  ["best plan there", c => c.best ? time(ns(c.best.step_time_ps)) : "none fits"], ["", verdict, true]]);

redraw(() => {
  waterfall(byId("waterfall"), parts.map(p => [p, ns(data.parts_ps[p])]), ns(step));
  bars(byId("decisions"), decided.map(d => ({name: d.made + " → " + d.otherwise + (d.letter ? " (" + d.letter + ")" : ""), value: d.step_time_ps - step, text: share(d.step_time_ps / step - 1), tip: signed(d.step_time_ps - step) + " a step with\n" + d.best + "\n" + differences(d.difference_ps)})), "what each decision saves");
  drawOthers();
  bars(byId("improvements"), data.improvements.map(i => ({name: i.what, value: i.best_gain || 0, text: share(i.best_gain || 0) + (i.kept_gain === undefined || i.kept_gain === null ? "" : " (" + share(i.kept_gain) + ")"), colour: series[2], tip: i.what + "\nbest plan there: " + i.best})), "what would make it faster");
});
