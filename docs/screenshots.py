"""Pictures of a report for the README: light, dark, on a phone, and the first printed page.

    python docs/screenshots.py REPORT.html FOLDER

Needs Playwright and Chromium; the printed page also needs pdftoppm (Debian package poppler-utils).
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
VIEWS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


def main() -> None:
    """Take the pictures that ``VIEWS`` lists, the timeline at its longest stall, and the first page of the PDF."""
    report, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name, options in VIEWS.items():
            page = browser.new_context(**options).new_page()
            page.goto(report.as_uri())
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


if __name__ == "__main__":
    main()
