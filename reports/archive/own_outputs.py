"""Which files of an archive this tool wrote itself, so that a second look at a folder takes no report for a capture.

What begins or ends with our mark says so; a CSV table carries none and is known by its columns.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from ..whole_files import has_our_mark

# Our tables, and columns that together only they have; an archive's ``runs.csv`` may have further ones from --label.
_COLUMNS_OF_TABLE: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"file", "state", "fingerprint", "duplicate_of", "report"}),
    "steps": frozenset({"step", "phase", "evidence", "kernel_count"}),
    "stalls": frozenset({"stall", "stall_ms", "episode"}),
    "inter_token_gaps": frozenset({"gap_ms", "decode_ms", "counted"}),
    "kernels": frozenset({"short_name", "op_class", "phase", "total_ms"}),
    "op_classes": frozenset({"op_class", "phase", "total_ms"}),
    "idle": frozenset({"device", "start_ns", "end_ns", "cause"}),
    "graphs": frozenset({"graph_id", "replays", "padding_ms"}),
    "collectives": frozenset({"transfer_ms", "wait_ms", "late_device"}),
    "devices": frozenset({"device", "gpu_source", "peak_tflops"}),
    "findings": frozenset({"id", "sentence", "recoverable_ms"}),
    "step_table": frozenset({"short_name", "op_class"}),
}


def is_own_output(path: Path) -> bool:
    """Whether a regular file is a report or a table of this tool; False where it cannot be read."""
    if not path.is_file():
        return False
    return _is_own_table(path) if path.suffix.lower() == ".csv" else has_our_mark(path)


def _is_own_table(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(1 << 16)
            columns = set(next(csv.reader([first]), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    if first == "\n":  # a table without rows may be without columns
        return path.stem in _COLUMNS_OF_TABLE
    return any(expected <= columns for expected in _COLUMNS_OF_TABLE.values())
