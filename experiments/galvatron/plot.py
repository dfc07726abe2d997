"""A figure in SVG: samples per second against memory, one panel for each model and number of GPUs."""
WIDTH, HEIGHT, LEFT, TOP = 150, 110, 46, 26  # of the drawn area of a panel, px, and the space beside it
PITCH_X, PITCH_Y, COLUMNS = WIDTH + LEFT + 14, HEIGHT + TOP + 30, 5
TOOL, OURS, BASELINE = "#d95f02", "#1b6ca8", "#999999"


def number(value):
    return f"{value:.1f}"


def panel(title, x0, y0, limits, series):
    """series: [(color, dashed, {limit: samples per second})]."""
    top = max(rate for _, _, points in series for rate in points.values()) * 1.08
    place = {limit: x0 + WIDTH * (i + 0.5) / len(limits) for i, limit in enumerate(limits)}
    height = lambda rate: y0 + HEIGHT * (1 - rate / top)
    out = [f'<text x="{number(x0)}" y="{number(y0 - 8)}" font-weight="bold">{title}</text>',
           f'<rect x="{number(x0)}" y="{number(y0)}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbbbbb"/>']
    for share in (0.0, 0.5, 1.0):
        out.append(f'<text x="{number(x0 - 4)}" y="{number(height(share * top / 1.08) + 4)}" text-anchor="end">{share * top / 1.08:.3g}</text>')
    for limit in limits:
        out.append(f'<text x="{number(place[limit])}" y="{number(y0 + HEIGHT + 13)}" text-anchor="middle">{limit}</text>')
    for color, dashed, points in series:
        spots = [(place[limit], height(points[limit])) for limit in limits if limit in points]
        path = " ".join(f"{number(x)},{number(y)}" for x, y in spots)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"{dash}/>')
        out += [f'<circle cx="{number(x)}" cy="{number(y)}" r="2.4" fill="{color}"/>' for x, y in spots]
    return out


def figure(panels):
    """panels: [(title, limits in GiB, best baseline, tool, ours)], the last three {limit: samples per second}."""
    rows = -(-len(panels) // COLUMNS)
    size = (COLUMNS * PITCH_X + 10, rows * PITCH_Y + 34)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" font-family="sans-serif" font-size="10">',
           f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>']
    for i, (color, text) in enumerate(((OURS, "ours"), (TOOL, "paper-era tool, full space"), (BASELINE, "its best baseline"))):
        out.append(f'<rect x="{46 + 190 * i}" y="8" width="12" height="4" fill="{color}"/><text x="{64 + 190 * i}" y="14">{text}</text>')
    out.append(f'<text x="{46 + 190 * 3}" y="14">samples/s against memory per GPU, GiB</text>')
    for i, (title, limits, baseline, tool, ours) in enumerate(panels):
        x0, y0 = LEFT + i % COLUMNS * PITCH_X, 24 + TOP + i // COLUMNS * PITCH_Y
        out += panel(title, x0, y0, limits, [(BASELINE, True, baseline), (TOOL, True, tool), (OURS, False, ours)])
    return "\n".join(out + ["</svg>", ""])
