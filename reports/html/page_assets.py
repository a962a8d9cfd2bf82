"""The page's style and scripts, read from ``assets`` and joined into what one HTML file can hold.

Scripts are plain JavaScript modules, one concern each, that import each other by relative path. In the page they are
one module: the imports between them are dropped and the files are joined in the order of their dependence, so every
top-level name must be unique (a test holds that).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources

_IMPORT = re.compile(r"^import\s+\{[^}]*\}\s+from\s+[\"']\./([\w-]+)\.js[\"'];?\n", re.MULTILINE)
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
_PACKAGES = ("trace_analyze.reports.html", "trace_analyze.reports.timeline")


def asset(name: str) -> str:
    """The text of an asset of the HTML or timeline package. Raises FileNotFoundError for an unknown one."""
    for package in _PACKAGES:
        path = resources.files(package) / "assets" / name
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(name)


@functools.cache
def script(entry: str = "main") -> str:
    """The modules that ``entry`` needs, and itself, as the text of one module."""
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        text = asset(f"{name}.js")
        done[name] = ""  # a cycle of imports ends here
        for needed in _IMPORT.findall(text):
            visit(needed)
        done.pop(name)
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(entry)
    return "\n".join(done.values())


@functools.cache
def style() -> str:
    """The page's style sheet."""
    return asset("report.css") + asset("timeline.css")


@functools.cache
def content_policy() -> str:
    """The Content-Security-Policy: no request at all, and no script but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
