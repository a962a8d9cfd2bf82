"""Pictures of a report: light, dark, on a phone, the timeline at its longest stall, and the first printed page.

    python docs/screenshots.py                        # the README's two, from a shipped capture, into docs/images
    python docs/screenshots.py REPORT.html FOLDER     # all of them, of any report

Needs Playwright and Chromium; the printed page also needs pdftoppm (Debian package poppler-utils).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

REPOSITORY = Path(__file__).resolve().parents[1]
CAPTURE = REPOSITORY / "fixtures" / "captures" / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"
IN_README = ("light", "timeline")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
VIEWS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


def take(report: Path, folder: Path) -> None:
    """Take the pictures that ``VIEWS`` lists, the timeline at its longest stall, and the first page of the PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name, options in VIEWS.items():
            page = browser.new_context(**options).new_page()
            page.goto(report.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            page.screenshot(path=folder / f"{name}.png")
            if name == "light" and page.locator("canvas").is_visible():
                page.locator("canvas").focus()
                page.keyboard.press("n")
                page.wait_for_timeout(200)
                page.locator("#timeline").screenshot(path=folder / "timeline.png")
                page.pdf(path=folder / "report.pdf", prefer_css_page_size=True)
        browser.close()
    if shutil.which("pdftoppm") and (folder / "report.pdf").exists():
        command = ["pdftoppm", "-r", "90", "-png", "-l", "1", "-singlefile", folder / "report.pdf", folder / "print"]
        subprocess.run(command, check=True)


def take_for_readme() -> None:
    """Remake docs/images: the pictures of the shipped capture's report, with a palette so that they stay small."""
    images = REPOSITORY / "docs" / "images"
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "trace_analyze.cli", str(CAPTURE), "--quiet", "-o", name]
        subprocess.run(command, cwd=folder, check=True)
        take(folder / f"{CAPTURE.stem}.html", folder)
        for picture in IN_README:
            with Image.open(folder / f"{picture}.png") as image:
                small = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
                small.save(images / f"{picture}.png", optimize=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        take(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        take_for_readme()
