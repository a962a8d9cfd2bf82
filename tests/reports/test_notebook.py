"""What a notebook shows of a result: a fragment of plain HTML in which names are text."""

from html.parser import HTMLParser

import pytest

from trace_analyze.reports.python_api import Analysis

PAGES = ("serving_run", "no_phases", "unknown_stalls", "could_not_look", "hostile")


class Balanced(HTMLParser):
    """Tags that are open, all tags seen, and the text."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def shown(analysis):
    page = Balanced()
    page.feed(Analysis.of(analysis)._repr_html_())
    assert not page.open
    return page


@pytest.mark.parametrize("name", PAGES)
def test_fragment_is_whole_and_plain(pages, name):
    page = shown(pages(name)[0])
    assert page.seen <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert "None" not in page.text


def test_it_says_the_sentence_and_the_numbers(pages):
    analysis, _ = pages("serving_run")
    text = shown(analysis).text
    assert analysis.summary.headline in text
    at = text.index("Decode MBU")
    assert text[at + 1].startswith(f"≥ {analysis.summary.decode_mbu_kernel_pct:.1f}% of peak (kernel time)")
    assert text[text.index("decode step, p50") + 1] == f"{analysis.summary.decode_step_ms.p50:.2f} ms"


def test_what_is_not_known_has_its_reason(pages):
    analysis, _ = pages("no_phases")
    text = shown(analysis).text
    assert text[text.index("Decode MBU") + 1].startswith("not known: ")


def test_hostile_names_are_text(pages):
    page = shown(pages("hostile")[0])
    assert not {"script", "img", "b"} & page.seen
    assert any("<" in text for text in page.text)
