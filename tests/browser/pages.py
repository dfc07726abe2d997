"""The pages of the command line in a real browser: four widths, light and dark.

    pages.py ORRERY CHROMIUM

Each page is laid out in frames of 360, 768, 1,400 and 2,560 px. Of every frame: no console message, nothing wider than
the frame, no drawing outside its box or of negative size, and text with a contrast of at least 4.5 (WCAG 2.1, 1.4.3).
Exit code 77 (skipped) without a browser, unless CI is set.
"""
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

WIDTHS = [360, 768, 1400, 2560]
THEMES = {"light": 1, "dark": 0}  # Chromium's preferred colour schemes
BEFORE = ["partition", "--model", "gpt2", "--cluster", "dgx-a100", "--micro-batch", "8", "--fix", "mlp in=B,P2x2", "--out",
          "partition.json"]
COMMANDS = {
    "step": ["simulate", "--model", "gpt2", "--cluster", "dgx-a100", "--tp", "2", "--pp", "4", "--zero", "1", "--recompute",
             "full", "--global-batch", "64", "--html", "step.html"],
    "step of many blocks": ["simulate", "--model", "gpt2", "--cluster", "dgx-a100", "--hosts", "4", "--pp", "4", "--global-batch",
                            "1024", "--html", "many.html"],
    "scaling": ["sweep", "--model", "gpt2", "--cluster", "dgx-a100", "--vary", "hosts=1..8", "--vary",
                "ib.bandwidth=0.5x,1x", "--tokens", "1T", "--price-per-gpu-hour", "2$", "--html", "scaling.html"],
    "plan": ["plan", "--model", "gpt2-xl", "--cluster", "dgx-a100", "--global-batch", "64", "--out", "plan.json", "--html", "plan.html"],
    "explanation": ["explain", "--plan", "plan.json", "--html", "explanation.html"],
    "explained partition": ["explain", "--plan", "partition.json", "--html", "partition.html"],
    "choices": ["sweep", "--model", "gpt2", "--vary", "cluster=dgx-1-v100,dgx-h100", "--vary", "memory=1MiB,16GiB", "--html",
                "choices.html"],
}

# Runs in the outer page once all frames have drawn; answers in the document.
CHECK = r"""
const luminance = c => {
  const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const rgba = text => text.match(/[\d.]+/g).map(Number);
function faultsOf(frame) {
  const d = frame.contentDocument, w = frame.contentWindow, faults = [], say = text => { if (faults.length < 12) faults.push(text); };
  const root = d.documentElement;
  if (root.scrollWidth > frame.clientWidth) say("the page is " + root.scrollWidth + " px wide");
  for (const e of d.querySelectorAll("section svg, section canvas, section > *")) {
    const own = e.getBoundingClientRect(), box = e.closest("section").getBoundingClientRect();
    const scrolls = e.closest(".scroll") !== null;
    if (!scrolls && own.width > 0 && (own.right > box.right + 1 || own.left < box.left - 1)) say(e.tagName + " #" + (e.id || e.parentElement.id) + " leaves its section");
  }
  for (const text of d.querySelectorAll("section svg text")) {
    const own = text.getBoundingClientRect(), box = text.ownerSVGElement.getBoundingClientRect();
    if (own.right > box.right + 12 || own.left < box.left - 12) say("'" + text.textContent + "' leaves its drawing");
  }
  for (const e of d.querySelectorAll("svg rect"))
    for (const side of ["width", "height"]) if (!(parseFloat(e.getAttribute(side)) >= 0)) say("a bar of " + side + " " + e.getAttribute(side));
  for (const e of d.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest("script, style, #tip, option") || e.getClientRects().length === 0) continue;
    const style = w.getComputedStyle(e), ink = rgba(e instanceof w.SVGElement ? style.fill : style.color);
    let under = e, paper = [0, 0, 0, 0];
    while (under && !(paper[3] === undefined || paper[3] > 0)) { paper = rgba(w.getComputedStyle(under).backgroundColor); under = under.parentElement; }
    const [a, b] = [luminance(ink.slice(0, 3)), luminance(paper.slice(0, 3))].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) say("'" + e.textContent.trim().slice(0, 30) + "' has contrast " + contrast.toFixed(2));
  }
  const drawn = d.querySelectorAll("svg path, svg rect, svg circle").length;
  if (drawn < 5) say("only " + drawn + " shapes are drawn");
  const dark = luminance(rgba(w.getComputedStyle(d.body).backgroundColor).slice(0, 3)) < 0.5;
  if (dark !== DARK) say("the theme is not followed");
  return faults;
}
addEventListener("load", () => setTimeout(() => {
  const answer = {};
  for (const frame of document.querySelectorAll("iframe")) answer[frame.width] = faultsOf(frame);
  const out = document.createElement("pre");
  out.id = "answer";
  out.textContent = JSON.stringify(answer);
  document.body.appendChild(out);
}, 500));
"""


def harness(page: str, dark: bool) -> str:
    frames = "".join(f'<iframe width="{w}" height="900" srcdoc="{html.escape(page)}"></iframe>' for w in WIDTHS)
    return f"<!DOCTYPE html><html><body>{frames}<script>const DARK = {json.dumps(dark)};{CHECK}</script></body></html>"


def look(chromium: str, file: pathlib.Path, scheme: int) -> tuple[dict[str, list[str]], list[str]]:
    """Faults by width, and what the console said."""
    run = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=2700,1000", f"--user-data-dir={file.parent}/profile",
         f"--blink-settings=preferredColorScheme={scheme}", "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=False)
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    answer = re.search(r'<pre id="answer">(.*?)</pre>', run.stdout, re.DOTALL)
    if not answer:
        return {"all": ["the browser did not answer: " + run.stderr[-500:]]}, console
    return json.loads(html.unescape(answer.group(1))), console


def main() -> int:
    orrery, chromium = sys.argv[1], sys.argv[2]
    if not pathlib.Path(chromium).exists():
        print("no browser: scripts/setup.sh installs one")
        return 1 if os.environ.get("CI") else 77
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        subprocess.run([orrery, *BEFORE], cwd=root, check=True, capture_output=True)
        for name, command in COMMANDS.items():
            subprocess.run([orrery, *command], cwd=root, check=True, capture_output=True)
            page = (root / command[-1]).read_text(encoding="utf-8")
            for theme, scheme in THEMES.items():
                outer = root / "outer.html"
                outer.write_text(harness(page, theme == "dark"), encoding="utf-8")
                faults, console = look(chromium, outer, scheme)
                for width, list_of in faults.items():
                    for fault in list_of:
                        print(f"{name}, {theme}, {width} px: {fault}")
                        bad += 1
                for line in console:
                    print(f"{name}, {theme}: {line}")
                    bad += 1
    print(f"{len(COMMANDS)} pages, {len(WIDTHS)} widths, {len(THEMES)} themes: {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
