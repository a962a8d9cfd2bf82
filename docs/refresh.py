"""Remakes what is generated in the documents: the README's screen, the table of grammars, the JSON's keys and schema.

python docs/refresh.py            # rewrites the files
python docs/refresh.py --check    # names what is out of date, exit 1
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import json_schema
import record_pages

REPOSITORY = Path(__file__).resolve().parents[1]
CAPTURE = REPOSITORY / "fixtures" / "captures" / "vllm-llama-3.1-8b-a100-chunked-prefill.sqlite"
COLUMNS = "100"


def screen() -> str:
    """What the README's first command prints on a terminal of 100 columns."""
    environment = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "trace_analyze.cli", str(CAPTURE)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def grammars() -> str:
    """The grammars of markers.toml as a table."""
    from trace_analyze.analysis.markers.grammar import list_markers

    rows = ["| engine | role | gives | about | example |", "|---|---|---|---|---|"]
    for row in list_markers():
        cells = [row["engine"], row["role"], row["gives"], row["versions"], f"`{row['example']}`"]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def json_keys() -> str:
    """docs/json.md with the sections that come from the records."""
    page = REPOSITORY / "docs" / "json.md"
    text = page.read_text("utf-8")
    for path in record_pages.RECORDS:
        text = with_block(page, path.removesuffix("[]"), record_pages.block(path), text)
    return text


def with_block(page: Path, name: str, content: str, text: str | None = None) -> str:
    """The page's text with the block ``name`` replaced."""
    text = page.read_text("utf-8") if text is None else text
    pattern = rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- /{name} -->)"
    found, count = re.subn(pattern, lambda m: m[1] + "\n" + content + "\n" + m[3], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page.name}: block {name} occurs {count} times")
    return found


def contents() -> dict[Path, str]:
    """Every file with generated parts, as it should be."""
    docs = REPOSITORY / "docs"
    keys = json_keys()
    return {
        REPOSITORY / "README.md": with_block(REPOSITORY / "README.md", "screen", screen()),
        docs / "markers.md": with_block(docs / "markers.md", "grammars", grammars()),
        docs / "json.md": keys,
        docs / "json.schema.json": json_schema.text(keys),
    }


def main() -> int:
    """Rewrite the files, or with ``--check`` name those that are out of date."""
    stale = [path for path, text in contents().items() if path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"out of date: {path.relative_to(REPOSITORY)}; run python docs/refresh.py")
        return 1 if stale else 0
    for path, text in contents().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
