"""The index of an archive as a page: columns wide enough, charts only where something varies, names as text."""

import re
from html.parser import HTMLParser

import pytest

from trace_analyze.reports.archive.archive_row import ArchiveRow, runs_frame
from trace_analyze.reports.archive.index_page import find_outliers, render_index

HOSTILE = "</script><img src=x onerror=alert(1)>.sqlite"
SECOND = 1_000_000_000


def row(file, **values):
    usual = {
        "state": "analysed", "report": f"reports/{file}.html", "gpu_name": "A100", "model": "m", "verdict": "good",
        "captured_utc_ns": 1_700_000_000 * SECOND, "decode_step_p50_ms": 10.0, "window_ms": 100.0, "step_count": 9,
        "decode_mbu_is_lower_bound": False,
    }  # fmt: skip
    return ArchiveRow(file=file, fingerprint=file, **(usual | values))


def page_of(*rows, **labels):
    return render_index(runs_frame(rows, labels), list(labels))


class Cells(HTMLParser):
    """Rows of text of the table of all runs, the charts' titles, and every tag."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self.headings, self.classes = [], set(), [], []
        self._in, self._table = None, False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.add(tag)
        self._table = given.get("id") == "runs" if tag == "table" else self._table
        if tag == "tr" and self._table:
            self.rows.append([])
        if tag in ("td", "th", "h2", "figcaption"):
            self._in = tag
            if tag in ("td", "th") and self._table:
                self.rows[-1].append("")
                self.classes.append(given.get("class") or "")

    def handle_endtag(self, tag):
        self._in = None if tag == self._in else self._in

    def handle_data(self, data):
        if self._in in ("td", "th") and self._table:
            self.rows[-1][-1] += data.strip()
        elif self._in in ("h2", "figcaption"):
            self.headings.append(data.strip())


def test_one_row_a_file_whatever_its_state():
    refused = ArchiveRow(file="b.sqlite", fingerprint="b", state="unreadable", reason="it is a DLProf database")
    page = page_of(row("a.sqlite"), refused)
    cells = Cells(page)
    assert [r[0] for r in cells.rows[1:]] == ["a.sqlite", "b.sqlite"]
    assert "Not analysed" in cells.headings
    assert "it is a DLProf database" in page


def test_a_lower_bound_says_so():
    rows = (row("a", decode_mbu_kernel_pct=75.1, decode_mbu_is_lower_bound=True), row("b", decode_mbu_kernel_pct=80.0))
    cells = Cells(page_of(*rows))
    at = cells.rows[0].index("decode MBU over kernel time, %")
    assert [r[at] for r in cells.rows[1:]] == ["≥ 75.1", "80.0"]


def test_no_chart_where_every_run_stands_at_the_same_time():
    together = page_of(row("a"), row("b", captured_utc_ns=1_700_000_000 * SECOND + 5))
    assert "Over time of capture" not in Cells(together).headings
    apart = page_of(row("a"), row("b", captured_utc_ns=1_700_086_400 * SECOND))
    assert "Over time of capture" in Cells(apart).headings


def test_charts_by_a_label_that_is_a_number():
    page = page_of(row("a"), row("b", decode_step_p50_ms=20.0), chunk=["512", "2048"])
    assert "By chunk" in Cells(page).headings
    # from 512 at the left edge to 2,048 at the right; 20 ms is the top of an axis from 0, 10 ms its middle
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="3"><title>(\w)', page)
    assert ("50.0", "54.0", "a") in dots
    assert ("266.0", "18.0", "b") in dots


def test_short_words_do_not_break_and_files_keep_their_width():
    page = page_of(row("a-file-of-a-usual-length.sqlite"))
    assert '<span class="file">' in page
    assert re.search(r'<td class="text short">\s*A100', page)
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    assert re.search(r"\.file \{[^}]*min-width", style)
    assert not re.search(r"td\.text[^{]*\{[^}]*overflow-wrap: anywhere", style)


def test_hostile_names_stay_text():
    rows = [row(HOSTILE, model="<b>x</b>", captured_utc_ns=i * 86_400 * SECOND, reason=HOSTILE) for i in range(2)]
    refused = ArchiveRow(file=HOSTILE, fingerprint="b", state="unreadable", reason=HOSTILE)
    cells = Cells(page_of(*rows, refused))
    assert not {"img", "b", "iframe"} & cells.tags
    assert cells.rows[1][0] == HOSTILE


@pytest.mark.parametrize(("value", "found"), [(10.05, []), (13.0, ["far"])])
def test_outliers_by_median_and_deviation(value, found):
    """Five runs of 10 to 10.2 ms: 13 ms is far beyond 3.5 deviations, 10.05 ms is one of them."""
    near = [row(name, decode_step_p50_ms=ms) for name, ms in zip("abcde", (10.0, 10.1, 10.2, 10.0, 10.1), strict=True)]
    frame = runs_frame([*near, row("far", decode_step_p50_ms=value)], {})
    assert [o["file"] for o in find_outliers(frame)] == found


def test_runs_of_other_models_are_not_outliers():
    near = [row(name) for name in "abcde"]
    frame = runs_frame([*near, row("other", model="n", decode_step_p50_ms=99.0)], {})
    assert find_outliers(frame) == []
