"""The HTML report: one self-contained file that opens offline, prints, and stays below 5 MB at any capture size.

``render_html(analysis)`` gives the page as text, ``save_html(analysis, path)`` writes it whole or not at all.
The page is data and one template: everything shown is in the Analysis, nothing is computed here but layout.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from ...analysis.records.analysis import Analysis

if TYPE_CHECKING:
    import jinja2


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trace_analyze.reports.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment


def render_html(analysis: Analysis) -> str:
    """The report of ``analysis`` as one HTML document."""
    from ...analysis.numeric import number_text as fmt
    from ...analysis.records.version import __version__
    from ..first_screen.six_numbers import six_numbers, spread_text
    from ..timeline import timeline_payload
    from . import first_screen, identity
    from . import page_assets as bundle
    from .json_objects import grouped
    from .roofline import roofline
    from .sections import sections
    from .sortable_tables import packed
    from .steps_picture import picture

    below = sections(analysis, drawn=roofline(analysis))
    tables = [table for section in below for table in section.tables]
    gaps, command = first_screen.undetermined(analysis)
    timeline = timeline_payload(analysis)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            version=__version__,
            fmt=fmt,
            grouped=grouped,
            policy=bundle.content_policy(),
            style=bundle.style(),
            script=bundle.script(),
            capture=analysis.trace.capture,
            status=analysis.status,
            sentence=analysis.summary.headline,
            identity=identity.identity(analysis),
            trust=identity.trust(analysis),
            verdict=analysis.trust.verdict,
            verdict_reasons=analysis.trust.verdict_reasons,
            headlines=six_numbers(analysis),
            gap_text=spread_text(analysis.summary.inter_token_gap_ms),
            picture=picture(analysis),
            top=first_screen.top_tables(analysis),
            findings=analysis.findings[:5],
            gaps=gaps,
            command=command,
            sections=below,
            payload=packed(tables),
            timeline=timeline,
            timeless=not analysis.trace.capture.has_timeline,
        )
    )


def save_html(analysis: Analysis, path: Path | str) -> None:
    """Write the report to ``path``, replacing it atomically. Raises UsageError where it cannot be written."""
    from ..whole_files import write_whole

    write_whole(Path(path), render_html(analysis))
