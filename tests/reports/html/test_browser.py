"""The report in a real browser: Debian's Chromium through Playwright. Skipped, saying so, where either is missing."""

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import polars as pl
import pytest

from trace_analyze.analysis.numeric.number_text import number

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
BROWSER = next((p for p in ("/usr/bin/chromium", shutil.which("chromium") or "") if p and Path(p).exists()), None)
# a test tool only; nothing of it is in the report
AXE = (os.environ.get("TRACE_ANALYZE_AXE"), Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian package chromium)")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def file(name):
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(pages(name)[1], encoding="utf-8")
        return path

    return file


@pytest.fixture
def visit(browser, files):
    """Open a page of the examples; at the end no error, no request and no alert may have happened."""
    contexts, wrong = [], []

    def open_page(name, anchor="", expected="", **options):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda m: None if expected and expected in m.text else wrong.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: wrong.append(f"error: {e}"))
        page.on("dialog", lambda d: (wrong.append(f"dialog: {d.message}"), d.dismiss()))
        address = files(name).as_uri()
        page.on("request", lambda r: None if r.url.split("#")[0] == address else wrong.append(f"request: {r.url}"))
        page.goto(address + anchor)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def view(page):
    return page.evaluate("document.getElementById('timeline-view').timeline.view")


def cells(page, table, column):
    return page.locator(f"#{table} tbody td:nth-child({column})").all_inner_texts()


@pytest.mark.parametrize("name", ["serving_run", "no_phases", "unknown_stalls", "could_not_look", "hostile"])
def test_opens_without_error_or_request(visit, name):
    page = visit(name)
    assert page.locator("h1").count() == 1


def test_first_screen_fits_a_laptop(visit):
    page = visit("serving_run")
    assert "held up to 9 requests for 18.3 ms" in page.locator("h1").inner_text()
    bottom = page.locator(".undetermined").evaluate("e => e.getBoundingClientRect().bottom")
    assert bottom <= 900
    values = page.locator(".six .value").all_inner_texts()
    assert values == ["65.2% decode", "1.42 ms", "≥ 48.7%", "55.3%", "18.3 ms", "23.6 ms"]


def test_picture_marks_link_to_their_stall(visit):
    page = visit("serving_run")
    page.locator("a.mark").first.click()
    assert page.url.endswith("#stall-0")
    assert "stall 0: 4.73 ms · 1,016 tokens" in page.locator(".where").inner_text()


def test_fragment_opens_the_stall_in_timeline_and_table(visit):
    page = visit("serving_run", "#stall-3")
    assert page.locator(".where").inner_text().startswith("stall 3: 4.70 ms · 1,015 tokens")
    assert "here" in page.locator("#stall-3").get_attribute("class")
    seen = view(page)
    stall = page.evaluate("document.getElementById('timeline-view').timeline.model.stalls[3]")
    assert seen["from"] < stall["start"] < stall["end"] < seen["to"]
    assert seen["to"] - seen["from"] < 4 * (stall["end"] - stall["start"])


def test_a_stall_of_unknown_length_says_so(visit):
    page = visit("unknown_stalls", "#stall-2")
    assert page.locator(".where").inner_text().startswith("stall 2: ms not known · tokens not known")


def test_fragment_opens_a_step_beyond_the_rows_in_the_page(visit):
    page = visit("serving_run", "#step-40")
    row = page.locator("#step-40")
    assert "mixed" in row.inner_text()
    step = page.evaluate(
        "(() => { const s = document.getElementById('timeline-view').timeline.model.groups[0].steps; return [s.start[40], s.end[40]]; })()"
    )
    seen = view(page)
    assert seen["from"] <= step[0] < step[1] <= seen["to"]


def test_keyboard_moves_zooms_and_walks_the_stalls(visit):
    page = visit("serving_run")
    page.locator("canvas").focus()
    whole = view(page)
    page.keyboard.press("+")
    near = view(page)
    assert near["to"] - near["from"] == pytest.approx(0.6 * (whole["to"] - whole["from"]))
    page.keyboard.press("ArrowRight")
    assert view(page)["from"] > near["from"]
    for key, stall in (("n", 0), ("n", 1), ("p", 0), ("p", 4), ("n", 0)):
        page.keyboard.press(key)
        assert page.locator(".where").inner_text().startswith(f"stall {stall}:")
    assert "8 requests held" in page.locator("#said").inner_text()
    page.keyboard.press("0")
    assert view(page)["to"] - view(page)["from"] == pytest.approx(whole["to"] - whole["from"])


def test_wheel_zooms_at_the_pointer_and_drag_moves(visit):
    page = visit("serving_run")
    canvas = page.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x = 136 + (box["width"] - 136) / 4
    at = f"document.getElementById('timeline-view').timeline.timeAt({x})"
    before, time = view(page), page.evaluate(at)
    page.mouse.move(box["x"] + x, box["y"] + 60)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "w => { const v = document.getElementById('timeline-view').timeline.view; return v.to - v.from < w }",
        arg=before["to"] - before["from"],
    )
    assert page.evaluate(at) == pytest.approx(time, rel=1e-3)
    near = view(page)
    page.mouse.down()
    page.mouse.move(box["x"] + x - 200, box["y"] + 60)
    page.mouse.up()
    assert view(page)["from"] > near["from"]
    assert view(page)["to"] - view(page)["from"] == pytest.approx(near["to"] - near["from"])


def test_hover_names_a_kernel_with_its_work(visit, pages):
    analysis, _ = pages("serving_run")
    gemms = analysis.kernels.filter((pl.col("op_class") == "gemm") & (pl.col("device_index") == 0))
    longest = gemms.sort(pl.col("end_ns") - pl.col("start_ns"), "start_ns", descending=[True, False]).head(1)
    kernel = longest.join(analysis.trace.names, on="name_id").row(0, named=True)
    page = visit("serving_run")
    canvas = page.locator("canvas")
    canvas.scroll_into_view_if_needed()
    start, end = (kernel[key] - analysis.window.start_ns for key in ("start_ns", "end_ns"))
    place = page.evaluate(
        """([start, end, stream]) => {
          const t = document.getElementById('timeline-view').timeline;
          const row = t.layout.rows.find((r) => r.kind === 'kernels' && r.lane.device === 0 && r.lane.stream === stream);
          t.show(start - 1e4, end + 1e4);
          return { x: t.painter.left + (t.size.width - t.size.gutter) / 2, y: row.y + 8 };
        }""",
        [start, end, kernel["stream"]],
    )
    box = canvas.bounding_box()
    page.wait_for_timeout(50)
    page.mouse.move(box["x"] + place["x"], box["y"] + place["y"])
    tip = page.locator(".tip").inner_text()
    assert tip.startswith(kernel["short_name"])
    assert f"gemm, {kernel['phase']} (by {kernel['evidence']})" in tip
    assert f"{(end - start) / 1e6:.3f} ms from" in tip
    assert f"grid {kernel['grid_x']} × {kernel['grid_y']} × {kernel['grid_z']}" in tip
    assert f"intensity {number(kernel['flop'] / kernel['bytes'])} FLOP/byte (model)" in tip
    assert f"MFU {number(kernel['mfu_pct'])}%, MBU {number(kernel['mbu_pct'])}%" in tip


def test_measure_says_the_time_between(visit):
    page = visit("serving_run")
    canvas = page.locator("canvas")
    canvas.focus()
    page.keyboard.press("m")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 80)
    page.mouse.up()
    assert re.match(r"measured [\d.]+ ms", page.locator(".where").inner_text())
    page.keyboard.press("Escape")
    assert "measured" not in page.locator(".where").inner_text()


def test_every_stall_is_drawn_at_the_widest_zoom(visit, pages):
    page = visit("big")
    counted = page.evaluate("""(() => {
      const t = document.getElementById('timeline-view').timeline;
      t.painter.paint(t.view, t.size, t.layout, t.state);
      const row = t.layout.rows.find((r) => r.kind === 'steps');
      const bar = t.painter.context.getImageData(0, Math.round((row.y - 2) * t.size.ratio), t.canvas.width, 1).data;
      return t.model.stalls.filter((s) => {
        const x = Math.round((t.painter.x(s.start) + 1) * t.size.ratio);
        return [x - 1, x, x + 1].some((i) => bar[4 * i] < 80);
      }).length;
    })()""")
    assert counted == pages("big")[0].stalls.height == 205


def test_a_million_kernels_open_and_keep_their_counts(visit):
    page = visit("big")
    lead = page.locator("#timeline .lead").inner_text()
    assert re.search(r"[\d,]+ of 1,019,670 kernels are drawn one by one", lead)
    page.locator("canvas").focus()
    page.keyboard.press("n")
    assert page.locator(".where").inner_text().startswith("stall 0:")


def test_tables_sort_both_ways_with_the_unknown_last(visit):
    page = visit("serving_run")
    heads = page.locator("#kernels-table th")
    names = [h.split(" ")[0] for h in heads.all_inner_texts()]
    mbu = names.index("MBU") + 1
    heads.nth(mbu - 1).locator("button").click()
    falling = cells(page, "kernels-table", mbu)
    numbers = [float(x) for x in falling if x != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert heads.nth(mbu - 1).get_attribute("aria-sort") == "descending"
    heads.nth(mbu - 1).locator("button").click()
    rising = [float(x) for x in cells(page, "kernels-table", mbu) if x != "–"]
    assert rising == sorted(rising)
    assert cells(page, "kernels-table", mbu)[0] != "–"


def test_tables_filter_show_more_and_copy_all(visit):
    page = visit("serving_run", permissions=["clipboard-read", "clipboard-write"])
    table = page.locator("#steps-table")
    assert table.locator(".count").inner_text() == "25 of 120 rows"
    table.locator("[data-more]").click()
    assert table.locator("tbody tr").count() == 120
    table.locator("input").fill("mixed")
    page.wait_for_function("() => document.querySelectorAll('#steps-table tbody tr').length === 12")
    assert table.locator(".count").inner_text() == "12 of 12 rows"
    table.locator("[data-copy]").click()
    page.wait_for_function("() => document.getElementById('said').textContent !== ''")
    copied = page.evaluate("navigator.clipboard.readText()").rstrip("\n").split("\n")
    assert len(copied) == 13
    assert copied[0].split("\t")[0] == "Step"
    assert copied[1].split("\t")[0] == "1"


def test_recapture_command_copies(visit):
    page = visit("serving_run", permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-copy-from]").click()
    page.wait_for_function("() => document.getElementById('said').textContent === 'Command copied'")
    assert page.evaluate("navigator.clipboard.readText()").startswith("nsys profile --trace=cuda,nvtx")


def test_hostile_names_stay_text(visit, examples):
    page = visit("hostile")
    table = page.locator("#kernels-table")
    assert examples.HOSTILE in table.locator("tbody td").first.get_attribute("title")
    table.locator("[data-more]").click()
    table.locator("th button").first.click()
    assert page.locator("img").count() == 0
    assert page.locator("main b").count() == 0
    page.locator("canvas").focus()
    page.keyboard.press("n")
    assert examples.HOSTILE in page.locator("h1").inner_text()


def test_script_that_gets_into_the_page_does_not_run(visit):
    page = visit("serving_run", expected="Content Security Policy")
    ran = page.evaluate("""() => new Promise((done) => {
      window.ran = false;
      addEventListener('securitypolicyviolation', () => done(window.ran));
      const script = document.createElement('script');
      script.textContent = 'window.ran = true';
      document.body.append(script);
      setTimeout(() => done(window.ran), 300);
    })""")
    assert ran is False


def test_dark_follows_the_system_and_the_button(visit):
    paper = "getComputedStyle(document.body).backgroundColor"
    page = visit("serving_run", color_scheme="dark")
    assert page.evaluate(paper) == "rgb(19, 20, 21)"
    page.locator("#theme").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert page.locator("#theme").inner_text() == "Dark"


def test_phases_have_their_colours(visit):
    page = visit("serving_run")
    colour = "p => getComputedStyle(document.querySelector(`.lane path.${p}`)).fill"
    assert [page.evaluate(colour, p) for p in ("decode", "prefill", "mixed")] == [
        "rgb(0, 114, 178)",
        "rgb(213, 94, 0)",
        "rgb(204, 121, 167)",
    ]


def test_phone_does_not_scroll_sideways(visit):
    page = visit("serving_run", viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".six > div").nth(1).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["serving_run", "no_phases", "could_not_look"])
def test_axe_finds_nothing(visit, name, scheme):
    script = next((p for p in AXE if p and Path(p).exists()), None)
    if script is None:
        pytest.skip("no axe-core here: npm install --no-save axe-core, or set TRACE_ANALYZE_AXE to its axe.min.js")
    page = visit(name, color_scheme=scheme)
    page.evaluate(Path(script).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found] == []


def test_without_script_the_first_screen_and_tables_stand(browser, files):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(files("serving_run").as_uri())
    assert page.locator("#kernels-table tbody tr").count() == 25
    assert page.locator(".picture svg").first.is_visible()
    assert page.locator("noscript").count() == 1
    context.close()


def test_prints_the_answer_on_one_page_and_every_section(visit, tmp_path):
    page = visit("serving_run")
    target = tmp_path / "report.pdf"
    page.pdf(path=target, prefer_css_page_size=True)
    assert target.read_bytes().startswith(b"%PDF")
    if not shutil.which("pdftotext"):
        pytest.skip("no pdftotext on this machine (Debian package poppler-utils)")
    text = subprocess.run(["pdftotext", "-layout", target, "-"], capture_output=True, text=True, check=True).stdout
    first, second = (" ".join(part.split()) for part in text.split("\f")[:2])
    for part in (
        "5 mixed steps held up to 9",
        "Decode MBU",
        "Top kernels, mixed",
    ):
        assert part in first
    for part in ("Not determined", "(bytes decode must move) ÷"):
        assert part in second
    for heading in (
        "Roofline",
        "Kernels",
        "Stalls",
        "Inter-token gaps",
        "Steps",
        "Devices and idle time",
        "Findings",
        "What would help",
        "Formulas",
        "Words",
    ):
        assert re.search(rf"^\s*{heading}", text, re.MULTILINE), heading
    for control in ("Copy as TSV", "Show more", "Whole window", "Next stall"):
        assert control not in text
    assert "ridge batch" in text  # folded evidence is open on paper


def test_zoomed_in_kernels_are_drawn_with_their_phase_colour(visit):
    page = visit("serving_run")
    colour = page.evaluate("""(() => {
      const t = document.getElementById('timeline-view').timeline;
      const row = t.layout.rows.find((r) => r.kind === 'kernels');
      const { start, end } = row.lane.items;
      t.view = { from: start[8], to: end[8] };
      t.painter.paint(t.view, t.size, t.layout, t.state);
      return [...t.painter.context.getImageData(t.canvas.width - 40, (row.y + 4) * t.size.ratio, 1, 1).data];
    })()""")
    assert struct.pack("4B", *colour) == struct.pack("4B", 0, 114, 178, 255)
