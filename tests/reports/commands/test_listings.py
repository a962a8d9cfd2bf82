"""The tables of ``gpus``, ``models`` and ``markers``: whole lines into a pipe, within the width on a terminal."""

import io
import sys

import pytest

from trace_analyze.analysis.gpus.gpu_table import list_gpus
from trace_analyze.analysis.markers.grammar import list_markers
from trace_analyze.analysis.models.find_model import list_models
from trace_analyze.reports.commands.listings import print_gpus, print_markers, print_models

LISTINGS = [(print_gpus, list_gpus), (print_models, list_models), (print_markers, list_markers)]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("show", "rows"), LISTINGS)
def test_every_row_is_one_line_into_a_pipe(capsys, show, rows):
    show()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(rows())) + 2  # the title and the heads
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(("show", "rows"), LISTINGS)
@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_keeps_its_width(monkeypatch, show, rows, width):
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen)
    show()
    lines = screen.getvalue().splitlines()
    assert len(lines) >= len(list(rows()))
    assert max(map(len, lines)) <= width


def test_figures_stand_under_their_heads(capsys):
    print_gpus()
    lines = capsys.readouterr().out.splitlines()
    head = lines[1]
    a100 = next(line for line in lines if "a100-sxm4-80gb" in line.lower() or "A100-SXM4-80GB" in line)
    for title, value in (("bf16", "312"), ("GB/s", "2,039"), ("SMs", "108"), ("ridge", "153")):
        end = head.index(f" {title}") + len(title) + 1
        assert a100[:end].endswith(f" {value}"), title


def test_a_model_has_its_counts(capsys):
    print_models()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Llama-3.1-8B "))
    # 8.03 billion parameters, 32 layers, 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB a token, ridge of the A100
    assert line.split()[1:6] == ["8.03", "8.03", "32", "128", "153"]
