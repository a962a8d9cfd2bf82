"""The page as text: what stands on the first screen, what is said when nothing is known, that names stay names."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest
from msgspec import structs

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.analysis.records.trust import Contradiction
from trace_analyze.reports.html import page_assets as bundle
from trace_analyze.reports.html import render_html, save_html

PAGES = ("serving_run", "no_phases", "unknown_stalls", "could_not_look", "hostile")


class Elements(HTMLParser):
    """Tags with their attributes and the text outside scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.words, self._raw = [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._raw = tag

    def handle_endtag(self, tag):
        if tag == self._raw:
            self._raw = None

    def handle_data(self, data):
        if self._raw is None:
            self.words.append(data)


def parse(page):
    elements = Elements()
    elements.feed(page)
    return elements


def words(page):
    return re.sub(r"\s+", " ", " ".join(parse(page).words))


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_nothing(pages, name):
    _, page = pages(name)
    loading = {"src", "srcset", "action", "poster", "data", "background", "ping", "formaction"}
    for tag, attributes in parse(page).tags:
        assert not loading & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img")
        assert attributes.get("href", "#").startswith("#")
    assert "@import" not in page
    assert "url(" not in bundle.style()
    policies = [a["content"] for t, a in parse(page).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize("name", PAGES)
def test_ids_are_unique_and_links_have_their_target(pages, name):
    _, page = pages(name)
    tags = parse(page).tags
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        target = attributes.get("href", "#")[1:]
        # rows of long tables get their id when the page's script shows them
        assert not target or target in ids or re.match(r"(stall|step)-\d", target), target


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_handled_inline(pages, name):
    _, page = pages(name)
    for tag, attributes in parse(page).tags:
        assert not [a for a in attributes if a.startswith("on")], tag


def test_first_screen_in_the_order_of_a_review(pages):
    analysis, page = pages("serving_run")
    summary, step = analysis.summary, analysis.summary.decode_step_ms
    text = words(page)
    order = [
        summary.headline,
        "2 × NVIDIA A100-SXM4-80GB",
        "named by TARGET_INFO_GPU",
        "bf16 312 TFLOP/s dense, 2,039 GB/s",
        "Engine vllm",
        "Llama-3.2-1B bf16",
        "good",
        "Devices with kernels 2 of 2",
        f"Kernels per step {analysis.trust.kernels_per_step:.0f}",
        "GPU time by phase",
        f"p95 {step.p95:.2f} · p99 {step.p99:.2f} · max {step.max:.2f} ms",
        "Decode MBU, kernel time",
        f"≥ {summary.decode_mbu_kernel_pct:.1f}%",
        f"≥ {summary.decode_mbu_wall_pct:.1f}% over wall time",
        "Prefill MFU, kernel time",
        f"{summary.prefill_mfu_kernel_pct:.1f}%",
        f"{summary.prefill_mfu_wall_pct:.1f}% over wall time",
        "Decode stalled by prefill",
        f"{summary.stall_ms:.1f} ms",
        "5 stalls in 2 episodes",
        f"{summary.stall_pct_of_window:.1f}% of the",
        "Device idle",
        "5.19 ms · 1,016 tokens",
        "Top kernels, decode",
        "Top kernels, mixed",
        "Not determined",
        "--gpu-metrics-devices=all",
        "Timeline",
    ]
    place = -1
    for part in order:
        found = text.find(part, place + 1)
        assert found > place, part
        place = found


def test_sections_in_reading_order(pages):
    _, page = pages("serving_run")
    found = [a["id"] for tag, a in parse(page).tags if tag == "section"]
    assert found == [
        "first", "timeline", "roofline", "kernels", "stalls", "gaps", "steps", "devices", "collectives", "graphs",
        "findings", "host", "what-if", "workload", "traffic", "model", "formulas", "capture", "glossary",
    ]  # fmt: skip


def test_footnotes_have_the_numbers_where_they_give_the_ratio(pages):
    analysis, page = pages("serving_run")
    text = words(page)
    steps = analysis.steps.filter((pl.col("phase") == "decode") & ~pl.col("partial"))
    moved = steps["bytes"].sum() / 1e9
    assert f"= {moved:.0f} GB (bytes decode must move) ÷" in text
    assert re.search(
        r"\(\d+ ms of kernel time in 106 decode steps on 2 devices × 2,039 GB/s \(A100-SXM4-80GB in gpus.toml\)\)",
        text,
    )
    assert re.search(r"Prefill MFU [\d.]+% = [\d.]+ TFLOP \(useful FLOP of prefill\) ÷", text)


def test_footnotes_have_only_words_where_the_numbers_do_not_give_the_ratio(pages):
    analysis, _ = pages("serving_run")
    summary = structs.replace(analysis.summary, decode_mbu_kernel_pct=90.0)
    text = words(render_html(replace(analysis, summary=summary)))
    assert "Decode MBU: bytes decode must move ÷ (time × 2,039 GB/s (A100-SXM4-80GB in gpus.toml))" in text


def test_unknown_numbers_are_said_with_their_reason(pages):
    _, page = pages("no_phases")
    text = words(page)
    assert "Decode MBU, kernel time not known no autoregressive phases found" in text
    assert "the capture does not name its GPU" in text
    assert "Steps No steps were found: no autoregressive phases found." in text
    assert "Stalls Not known: no autoregressive phases found." in text


def test_could_not_look_is_not_nothing_found(pages):
    _, page = pages("could_not_look")
    text = words(page)
    assert "Could not look: graph replays are opaque: recapture with --cuda-graph-trace=node." in text
    assert "--cuda-graph-trace=node --" in text
    assert "Nothing was found" not in text


def test_no_stall_is_said_as_a_finding_of_its_own(pages):
    analysis, _ = pages("serving_run")
    quiet = structs.replace(analysis.summary, stall_count=0, stall_ms=0.0, stall_episode_count=0)
    page = render_html(replace(analysis, stalls=analysis.stalls.clear(), summary=quiet))
    assert "No decoding request waited for a prefill in this window." in page
    assert ">none<" in page


@pytest.mark.parametrize(("verdict", "grey"), [("good", False), ("read with care", False), ("unreliable", True)])
def test_numbers_are_grey_only_where_the_verdict_is_unreliable(pages, verdict, grey):
    analysis, _ = pages("serving_run")
    page = render_html(replace(analysis, trust=structs.replace(analysis.trust, verdict=verdict)))
    assert ('class="answer grey"' in page) is grey


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({}, None),
        ({"devices_with_kernels": 1}, "1 of 2"),
        ({"kernels_per_step": 3.0, "layers": 32}, "3.00"),
        ({"gpu_time_by_evidence": {"marker": 0.5, "none": 0.5}}, "marker 50.0%, no evidence 50.0%"),
        ({"contradictions": ("--gpu says H100, the capture A100",)}, "--gpu says H100, the capture A100"),
        (
            {
                "contradictions": (
                    Contradiction(what="markers and kernels", steps=2, kernels=9, gpu_ms=3.5, examples=()),
                )
            },
            "markers and kernels",
        ),
        ({"lost_events": ("CUPTI buffer overflow",)}, "1"),
    ],
)
def test_trust_strip_is_coloured_only_when_bad(pages, change, bad):
    analysis, _ = pages("serving_run")
    page = render_html(replace(analysis, trust=structs.replace(analysis.trust, **change)))
    marked = re.findall(r'<dd class="bad">([^<]*)', page)
    assert [m.strip() for m in marked] == ([bad] if bad else [])


@pytest.mark.parametrize(("bound", "mark"), [(True, "≥ "), (False, "")])
def test_lower_bound_is_marked(pages, bound, mark):
    analysis, _ = pages("serving_run")
    summary = structs.replace(analysis.summary, decode_mbu_is_lower_bound=bound)
    text = words(render_html(replace(analysis, summary=summary)))
    assert f"kernel time {mark}{summary.decode_mbu_kernel_pct:.1f}%" in re.sub(r" \d ", " ", text)
    assert f" {mark}{summary.decode_mbu_wall_pct:.1f}% over wall time" in text
    assert ("weights only: KV lengths" in text) is bound


def test_names_stay_text(pages, examples):
    _, page = pages("hostile")
    assert examples.HOSTILE not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert not [t for t, _ in parse(page).tags if t in ("img", "b")]
    assert page.count("</script>") == page.count("<script")
    assert "{{7*7}}" in page  # shown as written, not evaluated
    assert "\u2028" not in bundle.script()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_small(pages, name):
    _, page = pages(name)
    assert len(page.encode()) < 1_000_000


def test_many_long_names_stay_in_budget(examples):
    page = render_html(examples.hostile(rows=20_000, length=400))
    assert len(page.encode()) < 5_000_000
    assert re.search(r"[\d,]+ of 20,000 rows are in this file", page)


def test_same_analysis_same_page(pages):
    analysis, page = pages("serving_run")
    assert render_html(analysis) == page


def test_save_replaces_whole(pages, tmp_path):
    analysis, page = pages("serving_run")
    target = tmp_path / "run.html"
    target.write_text(page.replace("<main>", "<main>an earlier report"))
    save_html(analysis, target)
    assert target.read_text(encoding="utf-8") == page
    assert [p.name for p in tmp_path.iterdir()] == ["run.html"]


def test_save_says_where_it_could_not_write(pages, tmp_path):
    analysis, _ = pages("could_not_look")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save_html(analysis, tmp_path / "file" / "run.html")


def test_script_is_one_module_with_unique_names():
    script = bundle.script()
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    names = re.findall(r"^(?:async\s+)?(?:function|class|const|let)\s+(\w+)", script, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    assert "</script" not in script


def test_script_uses_no_markup_from_data():
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", bundle.script()
    )


def test_stalls_of_unknown_length_are_kept_and_said(pages):
    analysis, page = pages("unknown_stalls")
    text = words(page)
    why = analysis.summary.reasons["stall_ms"]
    assert f"Decode stalled by prefill not known {why}" in text
    assert "ms not known · tokens not known" in text
    assert f'title="not known: {analysis.stalls["reason"][0]}"' in page
    assert page.count('class="mark"') == analysis.stalls.height == 7


def test_input_without_times_has_no_timeline_and_no_idle_time(pages):
    analysis, _ = pages("no_phases")
    capture = replace(analysis.trace.capture, format="nsys_stats_summary")
    why = dict.fromkeys(("gpu_idle_ms", "window_ms"), "the input holds durations but no times")
    summary = structs.replace(
        analysis.summary,
        gpu_idle_ms=None,
        window_ms=None,
        nvml_utilization_pct=None,
        reasons={**analysis.summary.reasons, **why},
    )
    text = words(render_html(replace(analysis, summary=summary, trace=replace(analysis.trace, capture=capture))))
    assert "This input holds durations but no times" in text
    assert "Device idle not known the input holds durations but no times" in text
    assert "durations without times" in text


def test_reasons_read_as_words(pages):
    analysis, _ = pages("no_phases")
    text = words(render_html(replace(analysis, reasons=("decode_mbu_kernel_pct: the GPU is not known",))))
    assert "decode MBU kernel: the GPU is not known" in text
