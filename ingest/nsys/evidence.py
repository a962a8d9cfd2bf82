"""What a capture does not hold: which question that closes, and how to record it next time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis.records.errors import CannotAnswerError
from ...analysis.records.trace import Diagnostic, EvidenceGap

PROFILE = "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --trace-fork-before-exec=true -o run"
NO_NVTX = EvidenceGap(
    "no NVTX ranges",
    "Steps and phases are found from kernels and launches; token counts are inferred, not read.",
    f"{PROFILE} COMMAND   # and switch on the engine's own ranges",
)
OPAQUE_GRAPHS = EvidenceGap(
    "graph replays are opaque",
    "Each CUDA graph is one row: its kernels, and with them decode by kernel and idle time, are not recorded.",
    f"{PROFILE} COMMAND",
)
NO_GPU_TABLE = EvidenceGap(
    "no GPU table",
    "The capture does not say which GPU it ran on: ratios to its peaks need the name.",
    "trace-analyze CAPTURE --gpu NAME",
)
NO_LAUNCHES = EvidenceGap(
    "no launch calls",
    "Kernels cannot be tied to the host: no NVTX by launch, no launch gaps.",
    f"{PROFILE} COMMAND   # export all tables: nsys export --type sqlite run.nsys-rep",
)
NO_GPU_METRICS = EvidenceGap(
    "no GPU metrics",
    "Clocks, tensor and DRAM activity were not sampled: work is modelled, peaks are at the datasheet's clock.",
    f"{PROFILE} --gpu-metrics-devices=all COMMAND   # needs counter permission",
)
LIKELY_CAUSES = (
    "Likely causes: workers forked before tracing began (vLLM: export VLLM_WORKER_MULTIPROC_METHOD=spawn; "
    "nsys: --trace-fork-before-exec=true); everything ran inside CUDA graphs traced as a whole "
    "(nsys: --cuda-graph-trace=node); another CUPTI client such as torch.profiler was active; "
    "or the captured range held no GPU work."
)


def nothing_on_gpu(
    name: str,
    *,
    calls: int,
    nvtx: bool,
    rejected: Mapping[str, int],
    diagnostics: Sequence[Diagnostic],
    partial: Sequence[str],
    tables: int,
) -> CannotAnswerError:
    """The error for a capture without kernels and without whole-graph launches."""
    if rejected:
        reasons = "; ".join(f"{rows:,} {reason}" for reason, rows in rejected.items())
        first = f"{name}: none of its {sum(rejected.values()):,} GPU rows has a usable time ({reasons})."
    else:
        first = f"{name} is an Nsight Systems export without kernels: no GPU work was recorded."
    seen = [f"{calls:,} CUDA calls" if calls else "", "NVTX ranges" if nvtx else ""]
    held = " and ".join(part for part in seen if part)
    sentences = [first, f"It does hold {held}." if held else f"It holds no CUDA calls either ({tables} tables)."]
    warnings = [message.text for message in diagnostics if message.severity != "info"]
    if warnings:
        sentences.append("The profiler said: " + "; ".join(f"{text!r}" for text in warnings[:4]) + ".")
    if partial:
        sentences.append(f"The export was limited to some {' and '.join(partial)}: export without --{partial[0]}.")
    return CannotAnswerError(" ".join([*sentences, LIKELY_CAUSES]))


def gaps_in_evidence(
    *, nvtx: bool, launches: int, opaque_graphs: int, gpu_known: bool, gpu_metrics: bool, partial: Sequence[str]
) -> tuple[EvidenceGap, ...]:
    """What this capture does not hold, the gravest first."""
    gaps = []
    if opaque_graphs:
        gaps.append(OPAQUE_GRAPHS)
    if not launches:
        gaps.append(NO_LAUNCHES)
    if not nvtx:
        gaps.append(NO_NVTX)
    if not gpu_known:
        gaps.append(NO_GPU_TABLE)
    if not gpu_metrics:
        gaps.append(NO_GPU_METRICS)
    if partial:
        what = " and ".join(partial)
        gaps.append(
            EvidenceGap(
                f"partial export (some {what} only)",
                "What was left out of the export cannot be seen.",
                "nsys export --type sqlite -o run.sqlite run.nsys-rep",
            )
        )
    return tuple(gaps)
