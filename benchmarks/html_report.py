"""The HTML report of a long run: time to make it, its size, time to open it, time of a frame while panning.

    python benchmarks/html_report.py [KERNELS]

Analyses a simulated run of about that many kernels (one million without an argument) and, where Playwright and Chromium
are there, opens the page in it. Nothing is asserted: figures depend on the machine.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from trace_analyze import analyze
from trace_analyze.fixtures.matrix import large
from trace_analyze.fixtures.simulator.serving import simulate
from trace_analyze.reports.html import render_html

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
PAN = """(width) => new Promise((done) => {
  const t = document.getElementById('timeline-view').timeline;
  document.getElementById('timeline').scrollIntoView();
  t.show(t.model.span * 0.3, t.model.span * (0.3 + width));
  const frames = [];
  let last = performance.now();
  const step = () => {
    const now = performance.now();
    frames.push(now - last);
    last = now;
    t.move(0.01);
    if (frames.length < 240) requestAnimationFrame(step);
    else done(frames.slice(5).sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
})"""


def analysis_of(kernels: int):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.sqlite"
        simulate(large(kernels)).write(path)
        return analyze(path)


def main() -> None:
    kernels = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    analysis = analysis_of(kernels)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        page = render_html(analysis)
        times.append(time.perf_counter() - start)
    print(
        f"{analysis.kernels.height:,} kernels: made in {min(times):.2f} s (best of 3), {len(page.encode()) / 1e6:.2f} MB"
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("Playwright is not installed: the page was not opened")
        return
    chromium = shutil.which("chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.html"
        path.write_text(page, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        tab = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]")
        print(f"opened in {time.perf_counter() - start:.2f} s")
        for width in (0.5, 0.05, 0.005, 0.0005):
            frames = tab.evaluate(PAN, width)
            middle, worst = frames[len(frames) // 2], frames[-1]
            print(f"panning {100 * width:g}% of the window: frame {middle:.1f} ms median, {worst:.1f} ms longest")
        browser.close()


if __name__ == "__main__":
    main()
