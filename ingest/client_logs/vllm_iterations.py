"""vLLM's iteration lines (``--enable-logging-iteration-details``): each step's number and counts, no usable time.

``Iteration(42): 1 context requests, 2048 context tokens, 2 generation requests, 2 generation tokens, iteration elapsed
time: 250.3 ms``. The counts are those of the NVTX text ``execute_context_a(b)_generation_c(d)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .records import ClientLog
from .trtllm import iteration_log

_LINE = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: ([\d.]+) ms(?! \(dummy\))"
)


def read_lines(lines: Sequence[str], file_name: str) -> ClientLog | None:
    """The steps of the log; None where it holds no such line."""
    found = [m for m in (_LINE.search(line) for line in lines) if m]
    rows = [(int(m[1]), int(m[2]), int(m[3]), int(m[4]), float(m[5])) for m in found]
    return iteration_log(rows, "vllm-iterations", file_name) if rows else None
