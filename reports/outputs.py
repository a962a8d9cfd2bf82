"""Which file each ``--format`` writes, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..analysis.records.analysis import Analysis
from ..analysis.records.errors import UsageError
from ..analysis.records.formats import suffix_parts
from .whole_files import check_target, file_name, write_whole

STDOUT_FORMATS = ("json", "md")
_SUFFIX_OF = {"perfetto": ".perfetto.json"}  # where it is not the name of the format


def stem_of(source_name: str) -> str:
    """The name of a capture without the suffixes of its format (``a.pt.trace.json.gz`` -> ``a``)."""
    name = source_name
    while True:
        cut = next((name[: -len(s)] for s in suffix_parts() if name.lower().endswith(s) and len(name) > len(s)), None)
        if cut is None:
            return name
        name = cut


def render(analysis: Analysis, output_format: str) -> bytes:
    """One of the single-file text formats as bytes (html, json, md)."""
    if output_format == "html":
        from .html import render_html

        return render_html(analysis).encode("utf-8")
    if output_format == "json":
        from .json_report import to_json

        return to_json(analysis)
    from .markdown import to_markdown

    return to_markdown(analysis).encode("utf-8")


def check_outputs(formats: Sequence[str], folder: Path, stem: str) -> None:
    """Raise UsageError before the work begins where an output of ``write_output`` would meet an input."""
    for output_format in formats:
        if output_format in ("csv", "parquet"):
            check_target(folder / file_name(stem) / f"steps.{output_format}", ours=lambda _: True)
        elif output_format in ("svg", "png"):
            check_target(folder / file_name(stem, f"-roofline.{output_format}"))
        else:
            check_target(folder / file_name(stem, _SUFFIX_OF.get(output_format, f".{output_format}")))


def write_output(analysis: Analysis, output_format: str, folder: Path, stem: str) -> list[Path]:
    """Write one format into ``folder`` and return the files written.

    CSV and Parquet write one table each into ``folder/stem/``; the others ``folder/stem.<suffix>``.
    """
    if output_format in ("csv", "parquet"):
        from .table_files import write_tables

        return write_tables(analysis, folder / file_name(stem), output_format)
    if output_format in ("svg", "png"):
        from .plots import write_plots

        return write_plots(analysis, folder, stem, output_format)
    if output_format == "perfetto":
        from .perfetto import to_perfetto

        content = to_perfetto(analysis)
    else:
        content = render(analysis, output_format)
    path = folder / file_name(stem, _SUFFIX_OF.get(output_format, f".{output_format}"))
    write_whole(path, content)
    return [path]


def stdout_format(formats: Sequence[str]) -> str:
    """The one format that ``-o -`` prints. Raises UsageError unless it is JSON or Markdown alone."""
    if len(formats) != 1 or formats[0] not in STDOUT_FORMATS:
        raise UsageError("-o - prints one format alone: use --format json -o - or --format md -o -.")
    return formats[0]
