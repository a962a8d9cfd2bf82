"""What a CUDA or HIP API call does, from its name: facts as an ordered list of patterns, matched once per name."""

from __future__ import annotations

import re

KERNEL_LAUNCH = "kernel"
GRAPH_LAUNCH = "graph"

_VERSION_SUFFIX = re.compile(r"(?:_ptsz|_ptds)?(?:_v\d+)?(?:_ptsz|_ptds)?$")
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (GRAPH_LAUNCH, r"^(?:cuda|cu|hip)GraphLaunch"),
        ("other", r"^(?:cuda|cu|hip)LaunchHostFunc"),
        (KERNEL_LAUNCH, r"^(?:cuda|cu|hip)(?:Ext|Hcc|Module)*Launch(?:$|Kernel|Cooperative|Grid)"),
        (KERNEL_LAUNCH, r"^(?:hipExtLaunchMultiKernel|hipLaunchByPtr)"),
        ("sync", r"Synchronize"),  # the host waits; cudaStreamWaitEvent makes only the stream wait
        ("event", r"^(?:cuda|cu|hip)(?:Event|StreamWaitEvent|StreamWaitValue)"),
        ("memset", r"^(?:cuda|cu|hip)Memset"),
        (
            "malloc",
            r"^(?:cuda|cu|hip)(?:Ext)?(?:Mem(?:Alloc|Free|Create|Map|Unmap|Release|Address|Pool)|Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))",
        ),
        ("copy", r"^(?:cuda|cu|hip)Mem(?:cpy|Prefetch)"),
    )
)


def plain_name(call: str) -> str:
    """``call`` without the suffix that tells its ABI version: ``cudaLaunchKernel_v7000`` -> ``cudaLaunchKernel``."""
    return _VERSION_SUFFIX.sub("", call)


def kind_of_call(call: str) -> str:
    """``'kernel'`` or ``'graph'`` for a launch, else one of ``API_KINDS`` (copy, memset, sync, event, malloc, other)."""
    for kind, pattern in _RULES:
        if pattern.search(call):
            return kind
    return "other"
