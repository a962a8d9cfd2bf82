"""What a capture says of itself, by allow-list: nothing else of its metadata leaves this module.

META_DATA_CAPTURE, TARGET_INFO_SYSTEM_ENV and ProcessStreams hold environment variables, host and user names and
program output. Read from them here: versions, graph mode, the recorded command line (as serving options only, see
``serving_options``) and the messages of DIAGNOSTIC_EVENT that match a known pattern, of which only the matched words
are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ...analysis.records.trace import Diagnostic, ServingFacts
from .serving_options import serving_facts
from .sqlite_pages.database import Database, as_int, as_text
from .vocabulary import vocabulary

SEVERITIES = {1: "info", 2: "warning", 3: "error"}
VERSION = re.compile(r"^\d+(\.\d+)*")
COMMAND_WORD = re.compile(r"PROCESS_(\d+):(?:COMMAND|ARGUMENT_(\d+))")
GRAPH_MODE_KEY = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
EXPORT_KEYS = frozenset(
    [
        "EXPORT_PRODUCT_VERSION",
        "EXPORT_SCHEMA_VERSION",
        "EXPORT_PARAM_TIME_NORMALIZE",
        "EXPORT_PARAM_TIME_SHIFT",
        "EXPORT_PARAM_TABLES_TO_EXPORT",
        "EXPORT_PARAM_TIMES_TO_EXPORT",
    ]
)
PARTIAL_EXPORT = {"EXPORT_PARAM_TABLES_TO_EXPORT": "tables", "EXPORT_PARAM_TIMES_TO_EXPORT": "times"}


@dataclass(frozen=True)
class SelfDescription:
    """The allow-listed facts of one file; every one of them may be absent."""

    export: Mapping[str, str]
    product_version: str | None
    schema_version: str | None
    graph_mode: str | None
    hardware_trace: bool | None
    serving: ServingFacts
    diagnostics: tuple[Diagnostic, ...]
    partial_export: tuple[str, ...]


def read_facts(database: Database) -> SelfDescription:
    """The allow-listed facts of one file."""
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
        partial_export=tuple(label for key, label in PARTIAL_EXPORT.items() if export.get(key)),
    )


def _export_keys(database: Database) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in database.rows(database.find("META_DATA_EXPORT", "EXPORT_META_DATA"), ["name", "value"]):
        name, value = as_text(row["name"]), as_text(row["value"])
        if name in EXPORT_KEYS and value is not None:
            found.setdefault(name, value)
    return found


def _version(text: str | None) -> str | None:
    match = VERSION.match(text or "")
    return match[0] if match else None


def _graph_mode(capture: list[dict[str, object]]) -> str | None:
    for row in capture:
        if str(row["name"]).endswith(GRAPH_MODE_KEY):
            mode = (as_text(row["value"]) or "").lower()
            if mode in {"graph", "node"}:
                return mode
    return None


def _hardware_trace(diagnostics: tuple[Diagnostic, ...]) -> bool | None:
    patterns = vocabulary()["diagnostics"]
    said = " ".join(message.text for message in diagnostics)
    if re.search(patterns["software_trace"], said, re.IGNORECASE):
        return False
    return True if re.search(patterns["hardware_trace"], said, re.IGNORECASE) else None


def _command_lines(capture: list[dict[str, object]]) -> list[list[str]]:
    """The recorded command line of each process: its COMMAND, then its ARGUMENTs in order."""
    words: dict[int, dict[int, str]] = {}
    for row in capture:
        match = COMMAND_WORD.fullmatch(str(row["name"]))
        text = as_text(row["value"])
        if match and text is not None:
            words.setdefault(int(match[1]), {})[-1 if match[2] is None else int(match[2])] = text
    return [[arguments[place] for place in sorted(arguments)] for _, arguments in sorted(words.items())]


@cache
def _messages() -> re.Pattern[str]:
    return re.compile("|".join(vocabulary()["diagnostics"]["loss_and_state"]), re.IGNORECASE)


def _diagnostics(database: Database) -> tuple[Diagnostic, ...]:
    found: dict[tuple[str, str], None] = {}
    for row in database.rows(database.find("DIAGNOSTIC_EVENT"), ["severity", "text"]):
        match = _messages().search(as_text(row["text"]) or "")
        if match:
            severity = SEVERITIES.get(as_int(row["severity"]) or 0, "info")
            found[severity, " ".join(match[0].split())] = None
    return tuple(Diagnostic(severity, text) for severity, text in found)
