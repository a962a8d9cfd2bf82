"""What keeps the tool fast, held without measuring time: what is imported when, and that the benchmarks work."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trace_analyze.fixtures.build import CAPTURES

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CAPTURE = CAPTURES / "tp2-collectives.sqlite"
# slow to import, and of no use on the road from a SQLite file to HTML and JSON
HEAVY = ("pandas", "matplotlib", "pyarrow", "connectorx", "dask", "distributed")
ANALYSE = """
import json, sys
from trace_analyze.cli import main
code = main(sys.argv[2:])
print(json.dumps({"code": code, "imported": [name for name in json.loads(sys.argv[1]) if name in sys.modules]}))
"""


def test_report_needs_no_slow_import(tmp_path):
    words = [str(CAPTURE), "--format", "html,json", "-o", str(tmp_path), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", ANALYSE, json.dumps(HEAVY), *words], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"code": 0, "imported": []}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture
def benchmark_module(monkeypatch):
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks/ is not part of an installed package")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_plain_scan_reads_every_kernel(benchmark_module):
    from trace_analyze.ingest import open_trace

    integers, texts = benchmark_module("scan").scan(CAPTURE)
    trace = open_trace(CAPTURE)
    assert len(integers["CUPTI_ACTIVITY_KIND_KERNEL"]) == trace.kernels.height
    assert len(integers["CUPTI_ACTIVITY_KIND_RUNTIME"]) == trace.launches.height + trace.api_calls.height
    assert {name for (name,) in trace.names.select("name").iter_rows()} <= {text for _, text in texts["StringIds"]}


def test_stage_is_timed_in_a_process_of_its_own(benchmark_module):
    measure = benchmark_module("measure")
    run = measure.run([sys.executable, BENCHMARKS / "stages.py", "open", CAPTURE])
    inner = json.loads(run.output)
    assert (run.code, inner["peak_mib"] > 20) == (0, True)
    assert 0 < inner["wall"] < run.wall


def test_tables_pair_runs_of_one_repetition(benchmark_module):
    """Scan 1 s and 2 s, whole 3 s and 4 s: ratios 3 and 2, median 2.5. CPU 10 times at 10 times the kernels: slope 1."""
    run, measure = benchmark_module("run"), benchmark_module("measure")
    results = run.Results()
    for kernels, scale in ((100_000, 1.0), (1_000_000, 10.0)):
        for scan, whole in ((1.0, 3.0), (2.0, 4.0)):
            results.add(("graphs", kernels), run.SCAN, measure.Run(scan * scale, scan * scale, 100, 0, "", ""))
            results.add(
                ("graphs", kernels), run.WHOLE, measure.Run(whole * scale, whole * scale, 200 * scale, 0, "", "")
            )
        results.add(("graphs", kernels), "a peer", None)
    rows = list(run.table(results))
    assert (
        "| graphs, 100 k | whole command line | 3.50 (3.00 to 4.00) | 3.50 | 200 | 2.50 (2.00 to 3.00) | 2.33 |" in rows
    )
    assert "| graphs, 1 M | a peer | did not finish | | | | |" in rows
    assert list(run.growth(results))[2:] == ["| graphs | whole command line | 100 k to 1 M | 1.00 | 1.00 |"]


def test_every_odd_capture_is_analysed(benchmark_module, tmp_path):
    """Small ones here, against mistakes; whether any grows faster than it should is for ``benchmarks/odd.py`` to say."""
    from trace_analyze.reports.outputs import render
    from trace_analyze.reports.python_api import analyze

    for name, case in benchmark_module("odd_captures").CASES.items():
        result = analyze(case.make(max(2, case.size // 2_500)).write(tmp_path / f"{name}.sqlite"))
        for device in result.devices:
            assert device["busy_ns"] + device["copy_only_ns"] + device["idle_ns"] == device["window_ns"], name
        assert sum(row["count"] for row in result.to_dict()["kernels"]) == result.summary["kernel_count"], name
        assert len(render(result, "html")) < 5_000_000, name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_leaving_quickly_still_tells_a_full_disk():
    command = [sys.executable, "-m", "trace_analyze.cli", str(CAPTURE), "--format", "json", "-o", "-"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write the output" in done.stderr
