"""``trace-analyze compare``: two captures, or one against a named baseline of an archive."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ...analysis.compare import Comparison, Profile, compare_profiles, profile_from_json, profile_of
from ...analysis.gates import GateResult, evaluate_all, exit_code, parse_gate
from ...analysis.option_files import files_of_options
from ...analysis.records.errors import CannotAnswerError, UsageError
from ...analysis.records.inputs_read import remember_inputs
from ...analysis.records.options import Options
from ...analysis.road import Capture, analyze_capture
from ..comparison.comparison_json import comparison_dict, comparison_json
from ..outputs import stem_of
from ..progress import Progress
from ..whole_files import check_target, file_name, write_whole


@dataclass(frozen=True)
class CompareRequest:
    """What ``trace-analyze compare`` was asked for."""

    captures: tuple[Path, ...]
    options: Options
    baseline: str | None = None
    min_change_pct: float = 3.0
    out: Path | None = None
    gates: tuple[str, ...] = ()
    cache: Path | None = None


def run_compare(request: CompareRequest, *, quiet: bool = False, color: bool = True) -> int:
    """Compare, write the HTML, JSON and Markdown, print the verdict; returns the exit code (3 beats 1).

    Raises UsageError for a wrong number of captures or an unknown baseline.
    """
    gates = [parse_gate(text) for text in request.gates]
    remember_inputs([*request.captures, *files_of_options(request.options)])
    before, after = _profiles(request, quiet=quiet)
    comparison = compare_profiles(before, after, min_change_pct=request.min_change_pct)
    results = evaluate_all(gates, comparison_dict(comparison)) if gates else []
    written = _write(request, comparison, results)
    if not quiet:
        from ..comparison.comparison_screen import print_comparison

        print_comparison(comparison, results, written, color=color)
    else:
        for result in results:
            if result.passed is not True:
                print(f"gate  {result.sentence}", file=sys.stderr)
    return max(comparison.exit_code, exit_code(results))


def _profiles(request: CompareRequest, *, quiet: bool) -> tuple[Profile, Profile]:
    wanted = 1 if request.baseline is not None else 2
    if len(request.captures) != wanted:
        form = "compare --baseline NAME CAPTURE" if wanted == 1 else "compare BEFORE AFTER"
        raise UsageError(f"{form} takes {wanted} capture{'s' if wanted > 1 else ''}, not {len(request.captures)}.")
    if request.baseline is not None:
        before = baseline_profile(request.baseline, request.out or Path())
        return before, _profile(request.captures[0], request, quiet=quiet)
    return (
        _profile(request.captures[0], request, quiet=quiet),
        _profile(request.captures[1], request, quiet=quiet),
    )


def _profile(path: Path, request: CompareRequest, *, quiet: bool) -> Profile:
    """The profile of a capture; one that cannot answer is a side without an answer, not an error."""
    with Progress(enabled=not quiet) as progress:
        try:
            return profile_of(
                analyze_capture(Capture(path), request.options, cache=request.cache, progress=progress.stage)
            )
        except CannotAnswerError as error:
            return Profile(path.name, None, "could_not_look", {}, {}, {}, (str(error),))


def baseline_profile(name: str, archive: Path) -> Profile:
    """The stored run called ``name`` in the archive's ``runs.parquet``.

    A name is the value of a ``baseline`` label, or a run's file name with or without its suffix. Where several runs
    have it, the one captured last is the baseline. Raises UsageError listing what there is.
    """
    table = archive / "runs.parquet"
    if not table.exists():
        raise UsageError(
            f"--baseline {name}: there is no archive in {archive} (runs.parquet). Make one with "
            "`trace-analyze batch PATH -o DIR` and name it with -o DIR."
        )
    rows = pl.read_parquet(table).filter(pl.col("profile").is_not_null())
    stems = [stem_of(Path(f).name) for f in rows["file"].to_list()]
    named = rows["baseline"].cast(pl.String).to_list() if "baseline" in rows.columns else [None] * len(rows)
    matches = [
        i
        for i, (label, file, stem) in enumerate(zip(named, rows["file"].to_list(), stems, strict=True))
        if name in (label, file, Path(file).name, stem)
    ]
    if not matches:
        known = ", ".join(sorted({str(n) for n in [*named, *stems] if n})[:10]) or "none"
        raise UsageError(f"--baseline {name}: no such run in {table}; it has {known}.")
    newest = max(matches, key=lambda i: (rows["captured_utc_ns"][i] or 0, rows["file"][i]))
    try:
        return profile_from_json(rows["profile"][newest])
    except ValueError as error:
        raise UsageError(f"--baseline {name}: stored by another version ({error}); run the batch again.") from error


def _write(request: CompareRequest, comparison: Comparison, gates: list[GateResult]) -> list[Path]:
    from ..comparison.comparison_markdown import comparison_markdown
    from ..comparison.comparison_page import comparison_html

    folder = request.out or Path()
    stem = f"{stem_of(comparison.before.name)}-to-{stem_of(comparison.after.name)}"
    outputs: dict[str, bytes | str] = {
        "html": comparison_html(comparison, gates),
        "json": comparison_json(comparison),
        "md": comparison_markdown(comparison, gates),
    }
    wanted = outputs if request.out is not None else {"html": outputs["html"]}
    targets = {folder / file_name(stem, f".{suffix}"): content for suffix, content in wanted.items()}
    for path in targets:
        check_target(path)  # all of them before the first is written
    for path, content in targets.items():
        write_whole(path, content)
    return list(targets)
