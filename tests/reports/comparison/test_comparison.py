"""Compare on simulated runs: other seeds are no change, slower decode attention is found and named."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from trace_analyze import cli
from trace_analyze.fixtures import cases
from trace_analyze.fixtures.matrix import MATRIX
from trace_analyze.fixtures.simulator.scheduler import Request
from trace_analyze.fixtures.simulator.serving import simulate

# long contexts: attention takes a share of the step that a person would notice
BASE = replace(
    MATRIX["vllm-llama-8b-h100"],
    requests=tuple(Request(0, 9000 + 371 * i, 60 + 3 * i, prefilled=True) for i in range(16)),
    max_steps=70,
)


def write(config, folder, name):
    return simulate(config).write(folder / f"{name}.sqlite")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "before": write(BASE, folder, "before"),
        "again": write(replace(BASE, seed=7), folder, "again"),
        "slower": write(replace(BASE, seed=8, slower=MappingProxyType({"attention": 1.12})), folder, "slower"),
        "h200": write(replace(BASE, gpu="h200"), folder, "h200"),
        "empty": cases.no_kernels().write(folder / "empty.sqlite"),
    }


@pytest.fixture
def compare(runs, tmp_path, capsys):
    def compare(before, after, *words):
        code = cli.main(["compare", str(runs[before]), str(runs[after]), "-o", str(tmp_path), *words])
        out, err = capsys.readouterr()
        data = json.loads((tmp_path / f"{before}-to-{after}.json").read_text())
        return code, out + err, data

    return compare


def test_other_seed_is_no_change(compare):
    code, out, data = compare("before", "again")
    assert (code, data["verdict"]) == (0, "no change"), out
    assert not any(c["counts"] for c in data["changes"])


def test_twelve_percent_slower_decode_attention_is_found_and_named(compare, tmp_path):
    code, out, data = compare("before", "slower")
    assert (code, data["verdict"]) == (1, "regression"), out
    attention = next(
        c for c in data["changes"] if (c["kind"], c["name"], c["phase"]) == ("op_class", "attention", "decode")
    )
    assert attention["counts"]
    assert attention["change_pct"] == pytest.approx(12, abs=1)
    assert any("attention" in reason for reason in data["reasons"])
    assert not any(c["counts"] for c in data["changes"] if c["name"] in ("gemm", "norm", "activation"))
    for suffix in ("html", "md"):
        assert "attention" in (tmp_path / f"before-to-slower.{suffix}").read_text()


def test_swapped_it_is_an_improvement(compare):
    code, _, data = compare("slower", "before")
    assert (code, data["verdict"]) == (0, "improvement")


def test_other_gpu_is_not_comparable(compare):
    code, out, data = compare("before", "h200")
    assert (code, data["verdict"]) == (3, "not comparable")
    assert "GPU" in out


def test_empty_capture_is_inconclusive_never_faster(compare):
    code, out, data = compare("before", "empty")
    assert (code, data["verdict"]) == (3, "inconclusive")
    assert "empty.sqlite" in out


def test_gates_on_the_change(compare):
    assert compare("before", "again", "--gate", "delta.decode_step_ms.p50 < 3%")[0] == 0
    assert compare("before", "slower", "--min-change", "50", "--gate", "delta.decode_step_ms.p50 < 0.5%")[0] == 1


def test_wrong_number_of_captures(runs, capsys):
    assert cli.main(["compare", str(runs["before"])]) == 2
    assert "takes 2 captures" in capsys.readouterr().err


def test_the_page_has_a_table_of_changes_only_where_runs_were_compared(compare, tmp_path):
    compare("before", "h200")
    compare("before", "again")
    assert 'id="changes"' not in (tmp_path / "before-to-h200.html").read_text()
    assert 'id="changes"' in (tmp_path / "before-to-again.html").read_text()
