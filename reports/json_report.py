"""The Analysis as JSON: stable keys with their unit, null with a reason for what is unknown.

Specified in docs/json.md. Agents, gates and the batch index read this; the HTML and the terminal show the same.
"""

from __future__ import annotations

import orjson
import polars as pl

from ..analysis.records.analysis import SCHEMA_VERSION, Analysis
from ..analysis.records.plain_values import clean
from ..analysis.records.version import __version__

IDLE_ROWS = 100  # the longest; all idle time is in devices[].idle_ns_by_cause


def rows(frame: pl.DataFrame) -> list[dict[str, object]]:
    """The frame as a list of JSON objects; NaN and infinities become null."""
    floats = [pl.col(c).fill_nan(None) for c, t in frame.schema.items() if t in (pl.Float32, pl.Float64)]
    return frame.with_columns(floats).to_dicts() if floats else frame.to_dicts()


def source(analysis: Analysis) -> dict[str, object]:
    """What the capture says of itself, from the fields that ingest lets through."""
    facts = analysis.trace.capture
    serving = facts.serving
    return {
        "name": facts.source_name,
        "format": facts.format,
        "product": facts.product,
        "product_version": facts.product_version,
        "schema_version": facts.schema_version,
        "session_start_utc_ns": facts.session_start_utc_ns,
        "duration_ns": facts.duration_ns,
        "graph_trace_mode": facts.graph_trace_mode,
        "hardware_trace": facts.hardware_trace,
        "rank": facts.rank,
        "world_size": facts.world_size,
        "gpus_present": list(facts.gpus_present),
        "serving": {name: getattr(serving, name) for name in serving.__dataclass_fields__},
        "diagnostics": [{"severity": d.severity, "text": d.text} for d in facts.diagnostics],
        "tables_missing": list(facts.tables_missing),
        "notes": list(facts.notes),
        "gaps_in_evidence": [
            {"what": g.what, "consequence": g.consequence, "recapture": g.recapture}
            for g in analysis.trace.gaps_in_evidence
        ],
    }


def to_dict(analysis: Analysis) -> dict[str, object]:
    """The whole result as plain dictionaries and lists, in the order of docs/json.md."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "status": analysis.status,
        "reasons": list(analysis.reasons),
        "source": source(analysis),
        "devices": [clean(d) for d in analysis.devices],
        "model": clean(analysis.model),
        "window": clean(analysis.window),
        "trust": clean(analysis.trust),
        "summary": clean(analysis.summary),
        "groups": [clean(g) for g in analysis.group_summaries],
        "steps": rows(analysis.steps.drop("step")),
        "stalls": rows(analysis.stalls),
        "inter_token_gaps": rows(analysis.gaps),
        "kernels": rows(analysis.kernel_table),
        "op_classes": rows(analysis.op_classes),
        "idle": rows(analysis.idle.head(IDLE_ROWS)),
        "graphs": rows(analysis.graphs),
        "collectives": rows(analysis.collectives),
        "findings": [clean(finding) for finding in analysis.findings],
        "roofline": clean(analysis.roofline),
        "traffic": clean(analysis.traffic),
        "host": clean(analysis.host),
        "what_if": clean(analysis.what_if),
        "workload": clean(analysis.workload),
        "measured": clean(analysis.measured),
        **({"step_table": rows(analysis.step_table)} if analysis.step_table is not None else {}),
    }


def to_json(analysis: Analysis) -> bytes:
    """The result as UTF-8 JSON, one object, indented by two spaces, ending in a newline."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(to_dict(analysis), option=options)
