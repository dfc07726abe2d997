#!/usr/bin/env python3
"""Draws a simulated step as an SVG: the page of `orrery simulate --html` as one still picture.

    orrery simulate --plan plan.json --html step.html
    scripts/picture.py step.html step.svg [--memory-stage N]

Reads the data that the page carries (sim/report/picture.h); needs no browser and no library.
"""
import argparse
import json
import re
import sys
from xml.sax.saxutils import escape

WIDTH, MARGIN, GUTTER = 1000, 24, 66
COLOURS = {
    "forward": "#3b7dd8", "backward": "#2a9d6f", "recompute": "#8fd3b6", "optimizer": "#8a63c9",
    "tensor": "#e08a1e", "context": "#c9a227", "expert": "#b86b3d", "data": "#d1495b",
    "pipeline": "#d17ab0", "bubble": "#d7dde4",
}
MEMORY_COLOURS = {
    "framework": "#b7c0ca", "parameter": "#3b7dd8", "gradient": "#2a9d6f", "optimizer": "#8a63c9",
    "activation": "#e08a1e", "communication": "#d1495b", "data": "#7b8794",
}
EXPOSED = ("tensor", "context", "expert", "data", "pipeline")
INK, SOFT, LINE, GROUND = "#1d2733", "#5d6b7a", "#d9e0e7", "#f4f6f8"
GIB = 2**30


def seconds(ns):
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.0f} ns"


def number(x):
    """At most one decimal: a tenth of a pixel."""
    return f"{x:.1f}".rstrip("0").rstrip(".")


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, size=12, fill=INK, anchor="start", bold=False):
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>')

    def path(self, d, **look):
        shown = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in look.items())
        self.parts.append(f'<path {shown} d="{d}"/>')

    def rects(self, fill, boxes):
        """Boxes (x, y, width, height) of one colour as one path."""
        if boxes:
            self.path("".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h-{number(w)}z"
                              for x, y, w, h in boxes), fill=fill)

    def legend(self, x, y, entries):
        for name, colour in entries:
            self.rects(colour, [(x, y - 9, 10, 10)])
            self.text(x + 14, y, name, 11, SOFT)
            x += 14 + 6.3 * len(name) + 16

    def axis(self, left, y, width, step):
        for k in range(5):
            anchor = "start" if k == 0 else "end" if k == 4 else "middle"
            words = "0" if k == 0 else seconds(step * k / 4)
            self.text(left + width * k / 4, y, words, 11, SOFT, anchor)

    def document(self, height):
        size = f'width="{WIDTH}" height="{number(height)}"'
        fonts = "system-ui,'Segoe UI','DejaVu Sans',Arial,sans-serif"
        return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}" '
                f'viewBox="0 0 {WIDTH} {number(height)}">\n'
                f'<rect {size} rx="10" fill="#fff" stroke="{LINE}"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def head(drawing, data, y):
    drawing.text(MARGIN, y, f"{data['model']} on {data['cluster']}", 17, bold=True)
    layout = data["plan"].splitlines()
    if len(layout) > 1:
        drawing.text(MARGIN, y + 19, layout[1].strip(), 12, SOFT)
    peak = max(stage["peak"] for stage in data["stages"])
    figures = [
        (seconds(data["step_ns"]), "a step"), (f"{100 * data['mfu']:.1f} %", "MFU"),
        (f"{data['tokens_per_s']:,.0f}", "tokens / s"), (f"{100 * data['bubble']:.1f} %", "bubble"),
        (f"{100 * data['exposed']:.1f} %", "exposed"),
        (f"{peak / GIB:.1f} GiB", f"of {data['limit'] / GIB:.0f} GiB"),
    ]
    x = WIDTH - MARGIN
    for value, name in reversed(figures):
        drawing.text(x, y, value, 14, anchor="end", bold=True)
        drawing.text(x, y + 16, name, 11, SOFT, "end")
        x -= 86
    return y + 50


def blocks_of(stage, parts):
    """(stream, part, micro-batch, from, to, share recomputed); starts are relative in the page."""
    for lane in stage["lanes"]:
        at = 0
        for part, micro, _, _, _, start, length, busy, again in lane["blocks"]:
            at += start
            yield lane["stream"], parts[part], micro, at, at + length, again / max(busy, 1)


def timeline(drawing, data, y):
    """A row for each pipeline rank: its passes, and under them what communicates, by kind."""
    left, width, step = MARGIN + GUTTER, WIDTH - 2 * MARGIN - GUTTER, data["step_ns"]
    drawing.text(MARGIN, y, "One step: passes by micro-batch, communication below", 13, bold=True)
    y += 12
    boxes, labels = {}, []
    for i, stage in enumerate(data["stages"]):
        drawing.rects(GROUND, [(left, y, width, 34)])
        drawing.text(left - 8, y + 17, f"rank {i}", 12, SOFT, "end")
        for stream, part, micro, begin, end, again in blocks_of(stage, data["parts"]):
            x, w = left + begin * width / step, max((end - begin) * width / step, 0.4)
            if stream != "compute":
                row = {"tensor": 25, "data": 28}.get(part, 31)
                boxes.setdefault(part, []).append((x, y + row, w, 2.4))
                continue
            w -= 0.6 if w > 3 else 0
            boxes.setdefault(part, []).append((x, y + 2, w, 22))
            if again > 0:
                boxes.setdefault("recompute", []).append((x, y + 17, w * again, 7))
            if micro >= 0 and part != "optimizer" and w > 5.5 * len(str(micro)) + 2:
                labels.append((x + w / 2, y + 14, str(micro)))
        y += 38
    for part in COLOURS:  # what was recomputed lies over its backward pass
        drawing.rects(COLOURS[part], boxes.get(part))
    for x, base, words in labels:
        drawing.text(x, base, words, 8.5, "#fff", "middle")
    drawing.axis(left, y + 12, width, step)
    names = {"tensor": "tensor parallelism", "data": "data parallelism",
             "pipeline": "between stages", "recompute": "recomputed in a backward"}
    drawing.legend(left, y + 34, [(names.get(p, p), COLOURS[p]) for p in COLOURS if p in boxes])
    return y + 66


def shares(drawing, data, x0, y, width):
    """What the step went into, by pipeline rank and in the mean. Returns where it ends."""
    drawing.text(x0, y, "Where the step goes", 13, bold=True)
    left, step, plot = x0 + GUTTER, data["step_ns"], width - GUTTER
    y += 12
    for i, stage in enumerate(data["stages"]):
        drawing.text(left - 8, y + 15, f"rank {i}", 12, SOFT, "end")
        at = 0
        for part, ns in zip(data["parts"], stage["parts"]):
            x, w = left + at * plot / step, ns * plot / step
            drawing.rects(COLOURS[part], [(x, y + 2, w, 19)] if ns > 0 else [])
            at += ns
        y += 25
    total = step * len(data["stages"])
    mean = [sum(stage["parts"][k] for stage in data["stages"]) / total
            for k in range(len(data["parts"]))]
    rows = sorted(((m, part) for m, part in zip(mean, data["parts"]) if m >= 0.001), reverse=True)
    for i, (share, part) in enumerate(rows):
        x, row = left + i % 2 * plot / 2, y + 18 + 17 * (i // 2)
        name = f"exposed, {part}" if part in EXPOSED else "waiting" if part == "bubble" else part
        drawing.rects(COLOURS[part], [(x, row - 9, 10, 10)])
        drawing.text(x + 15, row, f"{name} {100 * share:.1f} %", 11, SOFT)
    return y + 18 + 17 * ((len(rows) + 1) // 2)


def memory(drawing, data, index, x0, y, width, height):
    """Bytes alive on one rank over the step, by category, under the limit of its device."""
    stage, step, limit = data["stages"][index], data["step_ns"], data["limit"]
    drawing.text(x0, y, f"Memory of rank {index} over the step", 13, bold=True)
    left, plot, top = x0 + GUTTER, width - GUTTER, y + 14
    names = ["framework"] + data["categories"]
    points = [(p[0], [data["framework"]] + p[1:]) for p in stage["memory"]]
    points.append((step, points[-1][1]))
    highest = 1.05 * max(limit, max(sum(sizes) for _, sizes in points))

    def place(at, size):
        return left + plot * at / step, top + height * (1 - size / highest)

    for k in range(5):
        words = f"{limit * k / 4 / GIB:.0f} GiB"
        drawing.text(left - 8, place(0, limit * k / 4)[1] + 4, words, 11, SOFT, "end")
    floor = [0] * len(points)
    most = [max(sizes[k] for _, sizes in points) for k in range(len(names))]
    for k, name in enumerate(names):
        ceiling = [low + sizes[k] for low, (_, sizes) in zip(floor, points)]
        outline = [place(at, size) for (at, _), size in zip(points, ceiling)]
        outline += [place(at, size) for (at, _), size in zip(points, floor)][::-1]
        if most[k] > 0:
            shape = "L".join(f"{number(a)} {number(b)}" for a, b in outline)
            drawing.path(f"M{shape}z", fill=MEMORY_COLOURS[name])
        floor = ceiling
    line = f"M{number(left)} {number(place(0, limit)[1])}h{number(plot)}"
    drawing.path(line, stroke="#b3261e", stroke_dasharray="5 4", fill="none")
    drawing.axis(left, top + height + 16, plot, step)
    shown = [(n, MEMORY_COLOURS[n]) for k, n in enumerate(names) if most[k] >= 0.01 * highest]
    drawing.legend(left, top + height + 38, shown)
    return top + height + 40


def picture(data, memory_stage):
    drawing = Drawing()
    y = timeline(drawing, data, head(drawing, data, 36))
    half = (WIDTH - 2 * MARGIN - 28) / 2
    end = shares(drawing, data, MARGIN, y, half)
    height = max(end - y - 54, 100)
    bottom = memory(drawing, data, memory_stage, MARGIN + half + 28, y, half, height)
    return drawing.document(max(end, bottom) + 18)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", help="what `orrery simulate --html` wrote")
    parser.add_argument("picture", help="the SVG to write")
    parser.add_argument("--memory-stage", type=int, default=0, help="pipeline rank, default 0")
    given = parser.parse_args()
    with open(given.page, encoding="utf-8") as page:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read(),
                          re.S)
    if not found:
        sys.exit(f"{given.page} carries no data of a step")
    with open(given.picture, "w", encoding="utf-8") as out:
        out.write(picture(json.loads(found[1]), given.memory_stage))


if __name__ == "__main__":
    main()
