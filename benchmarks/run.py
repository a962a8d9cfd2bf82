"""Time the road from file to report, beside a plain scan and the peers; ``--write`` puts the table in docs/performance.md.

    python benchmarks/run.py [--write] [--repeat 5] [--kernels N ...] [--kind K ...] [--no-peers] [--batch 100]

Every measurement is a process of its own on a fresh copy of the capture. Within one repetition all contenders run one
after the other, in an order that turns with each repetition; a ratio is between two runs of the same repetition, and its
spread is over repetitions. So a busy machine hurts all alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import make
import measure
import peers
from measure import Run, median, spread
from stages import STAGES

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CLI = (sys.executable, "-m", "trace_analyze.cli")
WHOLE, SCAN, AGAIN = "whole command line", "plain scan", "whole, second look with --cache"
PEERS_UP_TO = 1_000_000
PEER_TURNS = 1  # they are slow: not in every repetition
LARGE = 10_000_000  # captures this large are measured once, and only of one kind unless asked for


@dataclass
class Results:
    """Runs by (kind, kernels) and contender, one for each repetition; None ran out of time or failed."""

    runs: dict[tuple[str, int], dict[str, list[Run | None]]] = field(default_factory=dict)

    def add(self, capture: tuple[str, int], contender: str, run: Run | None) -> None:
        self.runs.setdefault(capture, {}).setdefault(contender, []).append(run)

    def good(self, capture: tuple[str, int], contender: str) -> list[Run]:
        return [run for run in self.runs[capture].get(contender, []) if run is not None and run.code == 0]

    def ratios(self, capture: tuple[str, int], above: str, below: str) -> list[float]:
        pairs = zip(self.runs[capture].get(above, []), self.runs[capture].get(below, []), strict=False)
        return [a.wall / b.wall for a, b in pairs if a and b and a.code == 0 and b.code == 0]


def whole(path: Path, out: Path, *extra: str) -> list[str]:
    return [*CLI, str(path), "--format", "html,json", "-o", str(out), "--quiet", *extra]


def contenders(path: Path, out: Path, found: Sequence[tuple[peers.Peer, Path]], cache: Path) -> Iterator[tuple]:
    """Name, command and environment of all that is timed on one capture."""
    yield SCAN, [sys.executable, str(HERE / "scan.py"), str(path)], {}
    yield WHOLE, whole(path, out), {}
    yield AGAIN, whole(path, out, "--cache", str(cache)), {}
    for stage in STAGES:
        yield stage, [sys.executable, str(HERE / "stages.py"), stage, str(path)], {}
    for peer, programs in found:
        words = [word.replace("{}", str(path)) for word in peer.words]
        yield peer.name, [str(programs / words[0]), *words[1:]], peers.home(make.default_folder())


def measure_capture(
    results: Results, folder: Path, key: tuple[str, int], repeat: int, found: Sequence[tuple[peers.Peer, Path]]
) -> None:
    """All contenders on one capture, ``repeat`` times."""
    capture = make.capture_path(folder, *key)
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        measure.run(whole(capture, Path(scratch) / "first", "--cache", str(cache)))
        for turn in range(repeat):
            names = list(
                contenders(capture, Path(scratch), found if key[1] <= PEERS_UP_TO and turn < PEER_TURNS else (), cache)
            )
            names = names[turn % len(names) :] + names[: turn % len(names)]
            for name, command, environment in names:
                fresh = Path(scratch) / f"{capture.stem}.sqlite"
                shutil.copyfile(capture, fresh)  # also leaves it in the page cache, for all alike
                words = [word.replace(str(capture), str(fresh)) for word in command]
                run = measure.run(words, environment=environment)
                if run is not None and run.code != 0:
                    print(f"{key} {name}: exit code {run.code}: {run.error[-300:]}", file=sys.stderr)
                if run is not None and name in STAGES and run.code == 0:
                    inner = json.loads(run.output)
                    run = Run(inner["wall"], inner["cpu"], inner["peak_mib"], 0, "", "")
                if name == WHOLE and run is not None:
                    results.add(key, "html bytes", Run(_size(Path(scratch), "html"), 0, 0, 0, "", ""))
                    results.add(key, "json bytes", Run(_size(Path(scratch), "json"), 0, 0, 0, "", ""))
                results.add(key, name, run)
                print(f"{key} {name}: {'too long' if run is None else f'{run.wall:.2f} s'}", file=sys.stderr)
                for side in Path(scratch).glob("*.nsys-cache*"):
                    shutil.rmtree(side, ignore_errors=True)


def _size(folder: Path, suffix: str) -> float:
    return max((path.stat().st_size for path in folder.glob(f"*.{suffix}")), default=0) / 1e6


def table(results: Results) -> Iterator[str]:
    """One row for each capture and contender."""
    yield "| capture | contender | wall s | CPU s | peak MiB | wall / plain scan | CPU / plain scan |"
    yield "|---|---|---|---|---|---|---|"
    for key, runs in results.runs.items():
        for name in runs:
            if name.endswith("bytes"):
                continue
            good = results.good(key, name)
            label = f"| {key[0]}, {_words(key[1])} | {name} |"
            if not good:
                yield f"{label} did not finish | | | | |"
                continue
            ratios = results.ratios(key, name, SCAN)
            compared = name not in (*STAGES, SCAN) and bool(ratios)
            cpu = median([run.cpu for run in good])
            of_scan = [run.cpu for run in results.good(key, SCAN)]
            yield (
                f"{label} {spread([run.wall for run in good])} | {cpu:.2f} | {max(run.peak_mib for run in good):.0f} "
                f"| {spread(ratios) if compared else ''} | {f'{cpu / median(of_scan):.2f}' if compared else ''} |"
            )


def sizes(results: Results) -> Iterator[str]:
    yield "| capture | HTML MB | JSON MB |"
    yield "|---|---|---|"
    for key in results.runs:
        html, text = (median([r.wall for r in results.good(key, f"{kind} bytes")]) for kind in ("html", "json"))
        yield f"| {key[0]}, {_words(key[1])} | {html:.2f} | {text:.2f} |"


def growth(results: Results) -> Iterator[str]:
    """Exponents b of the fit ``a * kernels ** b`` between each two sizes; n log n is 1.08 to 1.06 here."""
    yield "| kind | what | sizes | CPU time grows with n to the | peak memory with n to the |"
    yield "|---|---|---|---|---|"
    for kind in dict.fromkeys(key[0] for key in results.runs):
        of_kind = sorted(key for key in results.runs if key[0] == kind)
        for name in (*STAGES, WHOLE):
            for small, large in itertools.pairwise(of_kind):
                few, many = results.good(small, name), results.good(large, name)
                if few and many:
                    steps = math.log(large[1] / small[1])
                    cpu = math.log(median([r.cpu for r in many]) / median([r.cpu for r in few])) / steps
                    peak = math.log(max(r.peak_mib for r in many) / max(r.peak_mib for r in few)) / steps
                    yield f"| {kind} | {name} | {_words(small[1])} to {_words(large[1])} | {cpu:.2f} | {peak:.2f} |"


def _words(kernels: int) -> str:
    return f"{kernels // 1_000_000} M" if kernels >= 1_000_000 else f"{kernels // 1000} k"


def start_up(repeat: int) -> str:
    runs = [measure.run([*CLI, "--help"]) for _ in range(repeat + 1)][1:]  # the first may compile
    return f"`trace-analyze --help`: {spread([run.wall for run in runs if run])} s"


def batch(folder: Path, count: int) -> Iterator[str]:
    """``count`` captures of 100 thousand kernels: wall time, cores kept busy, peak of the largest process."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "archive"
        archive.mkdir()
        for number in range(count):
            seed = 7 + number % 4
            shutil.copyfile(make.capture_path(folder, "graphs", 100_000, seed), archive / f"run-{number:03}.sqlite")
            _mark(archive / f"run-{number:03}.sqlite", number)
        run = measure.run_tree([*CLI, "batch", str(archive), "-o", str(Path(scratch) / "out"), "--quiet"])
        reports = len(list((Path(scratch) / "out").rglob("run-*.html")))
    if run.code != 0:
        raise SystemExit(f"batch failed: {run.error[-500:]}")
    yield (
        f"`trace-analyze batch` over {count} captures of 100 k kernels: {reports} reports in {run.wall:.1f} s "
        f"({run.wall / count:.2f} s each), {run.cpu:.1f} s CPU ({run.cpu / count:.2f} s each), "
        f"{run.cpu / run.wall:.2f} cores busy on average; largest process {run.largest_mib:.0f} MiB, "
        f"all together {run.together_mib:.0f} MiB."
    )


def _mark(path: Path, number: int) -> None:
    """Make copies differ in content."""
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.name}")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kernels", type=int, action="append", help="repeatable; default 100 k, 1 M and 10 M")
    parser.add_argument("--kind", choices=make.KINDS, action="append", help="repeatable; default all")
    parser.add_argument("--folder", type=Path, default=make.default_folder(), help="where captures and peers are kept")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--batch", type=int, default=200, help="captures in the batch; 0 for none")
    options = parser.parse_args()
    found = [] if options.no_peers else [(p, b) for p in peers.PEERS if (b := peers.installed(options.folder, p))]
    results = Results()
    for kernels in options.kernels or make.SIZES:
        for kind in options.kind or make.KINDS:
            if kernels >= LARGE and kind != "graphs" and not options.kernels:
                continue
            repeat = 1 if kernels >= LARGE else options.repeat
            measure_capture(results, options.folder, (kind, kernels), repeat, found)
    lines = [f"{measure.machine()}.", "", f"{start_up(options.repeat)}.", "", *table(results), "", *sizes(results), ""]
    lines += [*growth(results), ""]
    if options.batch:
        lines += [*batch(options.folder, options.batch), ""]
    lines += [f"{p.name}: {p.packages[0]} {peers.version(b, p)}, {p.gives}." for p, b in found]
    missing = [p.packages[0] for p in peers.PEERS if p not in [peer for peer, _ in found]]
    if missing and not options.no_peers:
        lines.append(f"Could not be installed: {', '.join(missing)}.")
    text = "\n".join(lines)
    print(text)
    if options.write:
        before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
