"""Damaged bytes anywhere: the answer is a Trace or a message, never anything else, and the file stays as it was."""

import random
import sqlite3
from pathlib import Path

import pytest

from trace_analyze.analysis.records.errors import TraceAnalyzeError
from trace_analyze.analysis.records.trace import FRAMES
from trace_analyze.fixtures.writers.nsys_writer import Capture
from trace_analyze.ingest import open_trace
from trace_analyze.ingest.nsys.sqlite_pages import columns

ROUNDS = 40


def rich_capture(path: Path, generation: str) -> Path:
    capture = Capture(generation, command=("vllm", "serve", "m"))
    for gpu_id in (0, 1):
        capture.gpu("h100", gpu_id=gpu_id, cuda_device=1 - gpu_id)
    for number in range(300):
        begin = 10_000 + 2_000 * number
        capture.kernel(
            f"void gemm<(int){number % 9}>(float *)",
            begin,
            begin + 1_900,
            device=number % 2,
            launched_at=begin - 5_000,
            grid=(number, 1, 1),
        )
        capture.nvtx(f"step {number}", begin - 6_000, begin - 100, registered=number % 2 == 0)
    capture.copy("h2d", 1_000, 2_000, 512, called_at=500)
    capture.graph_launch(3, 700_000, 800_000, launched_at=650_000)
    capture.gpu_metrics([1_000, 101_000], {"SMs Active [Throughput %]": [10, 20]})
    return capture.write(path)


@pytest.fixture(scope="module", params=["2020", "2023.4", "2026.4"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return rich_capture(tmp_path_factory.mktemp("sound") / "run.sqlite", request.param).read_bytes()


def attempt(path: Path, content: bytes, what: str) -> str:
    """Open damaged content; a sound Trace or a refusal is right, anything else fails the test."""
    path.write_bytes(content)
    try:
        trace = open_trace(path)
    except TraceAnalyzeError as error:
        assert "does not understand" not in str(error), what
        assert "\n" not in str(error), what
        return "refused"
    finally:
        assert path.read_bytes() == content, what
        assert [entry.name for entry in path.parent.iterdir()] == [path.name], what
    for name, schema in FRAMES.items():
        assert getattr(trace, name).schema == schema, (what, name)
    assert trace.kernels.height + trace.graph_launches.height > 0
    if trace.kernels.height:
        assert trace.kernels["name_id"].max() < trace.names.height
        assert 0 <= trace.kernels["device_index"].min() <= trace.kernels["device_index"].max() < trace.devices.height
        assert (trace.kernels["end_ns"] > trace.kernels["start_ns"]).all()
    return "read"


@pytest.mark.parametrize("fast", [True, False])
def test_flipped_bytes(tmp_path: Path, sound: bytes, fast: bool, monkeypatch: pytest.MonkeyPatch, capfd):
    if fast:
        monkeypatch.setattr(columns, "FAST_FROM_ROWS", 50)
    dice = random.Random(len(sound) + fast)
    outcomes = set()
    for number in range(ROUNDS):
        content = bytearray(sound)
        flips = dice.choice([1, 3, 30, 300])
        for _ in range(flips):
            content[dice.randrange(len(content))] = dice.randrange(256)
        outcomes.add(attempt(tmp_path / "run.sqlite", bytes(content), f"round {number}, {flips} flips"))
    assert outcomes == {"read", "refused"}
    assert capfd.readouterr().err == ""


def test_truncations(tmp_path: Path, sound: bytes):
    dice = random.Random(len(sound))
    for number in range(ROUNDS):
        length = dice.randrange(1, len(sound))
        assert attempt(tmp_path / "run.sqlite", sound[:length], f"round {number}, {length} bytes") == "refused"


def test_blocks_of_rubbish(tmp_path: Path, sound: bytes):
    dice = random.Random(len(sound))
    for number in range(ROUNDS // 2):
        content = bytearray(sound)
        place = dice.randrange(100, len(content) - 600)
        filler = dice.choice([bytes(512), b"\xff" * 512, dice.randbytes(512)])
        content[place : place + 512] = filler
        attempt(tmp_path / "run.sqlite", bytes(content), f"round {number}, rubbish at {place}")


def test_cells_of_any_type_in_any_table(tmp_path: Path):
    """A sound database whose cells are not what their columns say."""
    source = rich_capture(tmp_path / "source.sqlite", "2026.4")
    folder = tmp_path / "odd"
    folder.mkdir()
    dice = random.Random(7)
    odd_values = [None, 0, -1, 2**63 - 1, -(2**63), 1e300, float("inf"), "", "text", b"\x00\xff", "9" * 400]
    for _ in range(40):
        (folder / "run.sqlite").write_bytes(source.read_bytes())
        connection = sqlite3.connect(folder / "run.sqlite")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        changes = []
        for _ in range(dice.choice([1, 4, 20])):
            table = dice.choice(tables)
            column = dice.choice([row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')])
            some = dice.choice(["1", "rowid % 3 = 0", "rowid = 1"])
            try:
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (dice.choice(odd_values),))
                changes.append((table, column, some))
            except sqlite3.IntegrityError:
                continue
        connection.commit()
        connection.close()
        attempt(folder / "run.sqlite", (folder / "run.sqlite").read_bytes(), str(changes))
