"""Whether a change leaves every output as it was, to the byte.

    python benchmarks/same_bytes.py --against COMMIT [--only TEXT] [--shared DIR] [--folder DIR]

Analyses a list of captures with this working tree and with ``COMMIT`` (checked out beside it for the time being), and
compares what both print and write, in every format that is not a picture of pixels. The list: the shipped captures, the
simulated matrix (made once, by this working tree, in ``--folder``), and the captures of others in ``--shared`` where that
folder is. Ends with 1 where a byte differs and says where; what was written stays in ``--folder`` to look at.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FORMATS = "html,json,md,csv,perfetto,svg"
# what files of others lack: a GPU, a model, a side file
OPTIONS: dict[str, tuple[str, ...]] = {
    "vllm-decode-full-graph-bs32": ("--gpu", "mi300x", "--model", "gpt-oss-20b"),
    "sglang-qwen3-8b-decode-bs32-mi300x": ("--model", "qwen3-8b"),
    "2026.2.1-h100x2-dit-nccl": ("--gpu", "h100"),
}
TOO_LARGE = "kern_sum_6.5M_launches.csv"  # expanded into launches, its Perfetto file alone takes 24 GB


def captures(folder: Path, shared: Path) -> list[Path]:
    """Every capture of the list; simulated ones are made where they are missing."""
    from trace_analyze.fixtures.build import CAPTURES
    from trace_analyze.fixtures.matrix import MATRIX
    from trace_analyze.fixtures.simulator.serving import simulate

    found = sorted(CAPTURES.glob("*.sqlite"))
    made = folder / "matrix"
    made.mkdir(parents=True, exist_ok=True)
    for name, config in MATRIX.items():
        target = made / f"{name}.sqlite"
        if not target.exists():
            unfinished = made / "unfinished.sqlite"
            unfinished.unlink(missing_ok=True)
            simulate(config).write(unfinished)
            unfinished.rename(target)
        found.append(target)
    found += sorted(p for p in (shared / "traces").glob("*/*") if p.is_file())
    return found + sorted(p for p in (shared / "cases").glob("*") if p.suffix != ".md" and p.name != TOO_LARGE)


def analyse_all(listed: Path, out: Path) -> None:
    """In a process of its own: run the command line on every capture of the file ``listed``, a folder each."""
    from trace_analyze.cli import main

    for number, path in enumerate(map(Path, json.loads(listed.read_text()))):
        folder = out / f"{number:03d}-{path.name}"
        folder.mkdir(parents=True)
        screen, errors = io.StringIO(), io.StringIO()
        stem = path.name.split(".json")[0].removesuffix(".sqlite")
        sys.argv = ["trace-analyze", str(path), "--format", FORMATS, "-o", ".", *OPTIONS.get(stem, ())]
        os.chdir(folder)
        code: object = 0
        with redirect_stdout(screen), redirect_stderr(errors):
            try:
                code = main()
            except SystemExit as end:
                code = end.code
        Path("exit-code").write_text(str(code))
        Path("screen").write_text(screen.getvalue())
        Path("errors").write_text(errors.getvalue())


def run_tree(tree: Path, listed: Path, out: Path) -> None:
    """``analyse_all`` with the product in ``tree``."""
    with tempfile.TemporaryDirectory() as road:
        (Path(road) / "trace_analyze").symlink_to(tree)
        environment = {**os.environ, "PYTHONPATH": road, "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--analyse", str(listed), "--out", str(out)]
        subprocess.run(command, check=True, env=environment)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A working tree of ``commit`` for the time being."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def digests(out: Path) -> dict[str, str]:
    """The content of every file below ``out``, as its digest by relative path."""
    files = (p for p in sorted(out.rglob("*")) if p.is_file())
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def compare(folder: Path, commit: str, shared: Path, only: str) -> int:
    """Number of files that differ, each printed."""
    chosen = [p for p in captures(folder, shared) if only in str(p)]
    listed = folder / "captures.json"
    listed.write_text(json.dumps([str(p) for p in chosen]))
    roads: dict[str, Path] = {}
    for name in ("before", "after"):
        roads[name] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    with checked_out(commit) as tree:
        run_tree(tree, listed, roads["before"])
    run_tree(REPOSITORY, listed, roads["after"])
    before, after = (digests(roads[name]) for name in ("before", "after"))
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    for key in changed:
        state = "differs" if key in before and key in after else ("is gone" if key in before else "is new")
        print(f"{state}: {key}")
    print(
        f"{len(chosen)} captures, {len(before)} files, {len(changed)} not the same ({roads['before']}, {roads['after']})"
    )
    return len(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--only", default="", help="captures whose path contains this text")
    parser.add_argument("--shared", type=Path, default=REPOSITORY.parent / "shared")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "same_bytes")
    parser.add_argument("--analyse", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.analyse is not None:
        with suppress(BrokenPipeError):
            analyse_all(asked.analyse, asked.out)
        return 0
    if asked.against is None:
        parser.error("--against COMMIT is needed")
    asked.folder.mkdir(parents=True, exist_ok=True)
    return 1 if compare(asked.folder.resolve(), asked.against, asked.shared.resolve(), asked.only) else 0


if __name__ == "__main__":
    sys.exit(main())
