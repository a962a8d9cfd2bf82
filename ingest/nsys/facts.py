"""What a capture says of itself, by allow-list: nothing else of its metadata leaves this module.

META_DATA_CAPTURE, TARGET_INFO_SYSTEM_ENV and ProcessStreams hold environment variables, host and user names and
program output. Read from them here: versions, graph mode, the recorded command line (as serving options only, see
``serving_options``) and the messages of DIAGNOSTIC_EVENT that match a known pattern, of which only the matched words
are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..trace import Diagnostic, ServingFacts
from .database import Database, as_int, as_text
from .serving_options import serving_facts

SEVERITIES = {1: "info", 2: "warning", 3: "error"}
VERSION = re.compile(r"^\d+(\.\d+)*")

EXPORT_KEYS = frozenset(
    [
        "EXPORT_PRODUCT_NAME",
        "EXPORT_PRODUCT_VERSION",
        "EXPORT_SCHEMA_VERSION",
        "EXPORT_PARAM_TIME_NORMALIZE",
        "EXPORT_PARAM_TIME_SHIFT",
        "EXPORT_PARAM_TABLES_TO_EXPORT",
        "EXPORT_PARAM_TIMES_TO_EXPORT",
    ]
)

# Messages about loss and state. Only the text the pattern matches is kept: messages also hold paths and names.
DIAGNOSTICS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"Not all [\w /-]{1,40} events might have been collected",
        r"No (CUDA|NVTX|GPU metrics?) events collected",
        r"CUDA profiling might have not been started correctly",
        r"Installed CUDA driver version \([\d.]+\) is not supported by this build",
        r"Couldn't allocate CUPTI bufer",
        r"Couldn't allocate CUPTI buffer",
        r"Reached the size limit on recording trace events",
        r"CUDA hardware tracing is not supported on this system",
        r"A legacy \(software instrumented\) trace was collected instead",
        r"CUDA legacy/software instrumented trace was collected",
        r"CUDA hardware (event )?trac\w+ (was|is) (collected|enabled|used)",
        r"Number of (CUDA|NVTX|GPU metrics?|CUPTI) events (collected|produced):\s*\d+",
        r"\d+ (CUDA|NVTX|CUPTI|GPU metrics?)?\s*(events|records|samples) (were|was|have been) (lost|dropped|discarded)",
        r"(Some|Dropped|Lost) [\w ]{0,30}(events|records|samples)( (were|was|have been) (lost|dropped|discarded))?",
        r"(CUDA|CUPTI|NVTX|GPU metrics?) [\w ]{0,40}(failed|not available|permission|insufficient)[\w ]{0,30}",
        r"Insufficient privilege[\w ,]{0,60}",
        r"ERR_NVGPUCTRPERM",
        r"GPU metrics?[\w ]{0,40}(missing data|buffer overflow|overflow)",
        r"Buffer (overflow|overrun)[\w ]{0,30}",
        r"(Target|Profiled) (application|process) (terminated|crashed|was killed)[\w ]{0,30}",
    )
)
SOFTWARE_TRACE = re.compile(r"software instrumented", re.IGNORECASE)
HARDWARE_TRACE = re.compile(r"CUDA hardware (event )?trac\w+ (was|is) (collected|enabled|used)", re.IGNORECASE)


@dataclass(frozen=True)
class SelfDescription:
    """The allow-listed facts of one file."""

    export: Mapping[str, str]
    product_version: str | None
    schema_version: str | None
    graph_mode: str | None
    hardware_trace: bool | None
    serving: ServingFacts
    diagnostics: tuple[Diagnostic, ...]
    partial_export: tuple[str, ...] = ()
    command_seen: bool = field(default=False)


def read_facts(database: Database) -> SelfDescription:
    """The allow-listed facts of one file; every one of them may be absent."""
    export = _export_keys(database)
    capture = database.rows(database.find("META_DATA_CAPTURE"), ["name", "value"])
    diagnostics = _diagnostics(database)
    return SelfDescription(
        export=export,
        product_version=_version(export.get("EXPORT_PRODUCT_VERSION")),
        schema_version=_version(export.get("EXPORT_SCHEMA_VERSION")),
        graph_mode=_graph_mode(capture),
        hardware_trace=_hardware_trace(diagnostics),
        serving=serving_facts(_command_lines(capture)),
        diagnostics=diagnostics,
        partial_export=tuple(
            label
            for key, label in (
                ("EXPORT_PARAM_TABLES_TO_EXPORT", "tables"),
                ("EXPORT_PARAM_TIMES_TO_EXPORT", "times"),
            )
            if export.get(key)
        ),
    )


def _export_keys(database: Database) -> dict[str, str]:
    table = database.find("META_DATA_EXPORT", "EXPORT_META_DATA")
    found: dict[str, str] = {}
    for row in database.rows(table, ["name", "value"]):
        name, value = as_text(row["name"]), as_text(row["value"])
        if name in EXPORT_KEYS and value is not None:
            found.setdefault(name, value)
    return found


def _version(text: str | None) -> str | None:
    match = VERSION.match(text or "")
    return match[0] if match else None


def _graph_mode(capture: list[dict[str, object]]) -> str | None:
    for row in capture:
        if str(row["name"]).endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE"):
            mode = (as_text(row["value"]) or "").lower()
            if mode in {"graph", "node"}:
                return mode
    return None


def _hardware_trace(diagnostics: tuple[Diagnostic, ...]) -> bool | None:
    if any(SOFTWARE_TRACE.search(message.text) for message in diagnostics):
        return False
    return True if any(HARDWARE_TRACE.search(message.text) for message in diagnostics) else None


def _command_lines(capture: list[dict[str, object]]) -> list[list[str]]:
    """The recorded command line of each process: PROCESS_n:COMMAND and its PROCESS_n:ARGUMENT_m in order."""
    words: dict[int, dict[int, str]] = {}
    for row in capture:
        match = re.fullmatch(r"PROCESS_(\d+):(?:COMMAND|ARGUMENT_(\d+))", str(row["name"]))
        text = as_text(row["value"])
        if match and text is not None:
            words.setdefault(int(match[1]), {})[-1 if match[2] is None else int(match[2])] = text
    return [[arguments[place] for place in sorted(arguments)] for _, arguments in sorted(words.items())]


def _diagnostics(database: Database) -> tuple[Diagnostic, ...]:
    found: dict[tuple[str, str], None] = {}
    for row in database.rows(database.find("DIAGNOSTIC_EVENT"), ["severity", "text"]):
        text = as_text(row["text"]) or ""
        for pattern in DIAGNOSTICS:
            match = pattern.search(text)
            if match:
                severity = SEVERITIES.get(as_int(row["severity"]) or 0, "info")
                found[severity, " ".join(match[0].split())] = None
                break
    return tuple(Diagnostic(severity, text) for severity, text in found)
