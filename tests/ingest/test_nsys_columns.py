"""The fast road and the safe road give the same columns; the fast one steps aside for what it cannot read."""

import logging
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_analyze.ingest.nsys import columns as module
from trace_analyze.ingest.nsys.columns import MISSING, Wanted, read_columns
from trace_analyze.ingest.nsys.database import Database

WANTED = {"a": Wanted("a", "i64"), "b": Wanted("B", "i32"), "t": Wanted("t", "text"), "z": Wanted("absent", "i32")}


def table_of(path: Path, rows: list[tuple], declaration: str = "a INTEGER, b INTEGER, t TEXT", tail: str = "") -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE events ({declaration}) {tail}")
    connection.executemany(f"INSERT INTO events VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return path


def read(path: Path, wanted=WANTED, **options) -> dict[str, list]:
    with Database(path) as database:
        table = read_columns(database, "events", wanted, **options)
    texts = {
        name: [None if code < 0 else coded.texts[code] for code in coded.codes.tolist()]
        for name, coded in table.texts.items()
    }
    return {name: column.tolist() for name, column in table.integers.items()} | texts


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Makes small tables take the fast road, in small ranges; ``fell_back()`` tells whether it stepped aside."""
    monkeypatch.setattr(module, "FAST_FROM_ROWS", 1)
    monkeypatch.setattr(module, "RANGE_ROWS", 7)
    caplog.set_level(logging.DEBUG, module.__name__)
    slow_calls: list[str] = []
    slow = module._slow
    monkeypatch.setattr(module, "_slow", lambda *arguments: slow_calls.append("slow") or slow(*arguments))

    def fell_back() -> bool:
        took_the_safe_road = bool(slow_calls)
        slow_calls.clear()
        return took_the_safe_road

    return fell_back


def reference(rows: list[tuple]) -> dict[str, list]:
    return {
        "a": [MISSING if row[0] is None else row[0] for row in rows],
        "b": [-1 if row[1] is None else row[1] for row in rows],
        "t": [row[2] for row in rows],
        "z": [-1] * len(rows),
    }


cells = st.integers(-(2**63) + 1, 2**63 - 1)
small_cells = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.none() | cells, st.none() | small_cells, st.none() | st.sampled_from(["", "x", "é", "step 1", "'"])
        ),
        min_size=3,
        max_size=60,
    )
)
def test_both_roads_give_what_was_written(tmp_path: Path, fast, monkeypatch: pytest.MonkeyPatch, rows: list[tuple]):
    path = table_of(tmp_path / "t.sqlite", rows)
    assert read(path) == reference(rows)
    assert not fast()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_fast", lambda *_: None)
        assert read(path) == reference(rows)
    assert fast()


@pytest.mark.parametrize(
    "odd",
    [
        (1.5, 2, "x"),
        ("text", 2, "x"),
        (b"\x00\x01", 2, "x"),
        (1, "7", "x"),
        (1, 2, 5),
        (1, 2, b"\xff\xfe"),
    ],
)
def test_cells_of_other_types_take_the_safe_road(tmp_path: Path, fast, capfd, odd: tuple):
    rows = [(number, number, f"t{number % 3}") for number in range(50)]
    rows[31] = odd
    got = read(table_of(tmp_path / "t.sqlite", rows))
    assert got["a"][:31] == list(range(31)) and len(got["a"]) == 50
    assert got["a"][31] in {MISSING, 1} and got["b"][31] in {2, 7}
    assert capfd.readouterr().err == ""  # connectorx complains on stderr unless told not to


def test_text_that_is_not_utf8(tmp_path: Path, fast):
    path = table_of(tmp_path / "t.sqlite", [(number, number, "plain") for number in range(50)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET t = CAST(x'fffe' AS TEXT) WHERE a = 31")
    connection.commit()
    connection.close()
    got = read(path)
    assert fast()
    assert got["t"][31] == "\N{REPLACEMENT CHARACTER}" * 2 and got["t"][30] == "plain"


@pytest.mark.parametrize(
    ("declaration", "tail"),
    [
        ("a BIGINT, b NUMERIC, t VARCHAR(10)", ""),
        ("a, b, t", ""),
        ("a INTEGER PRIMARY KEY, b INTEGER, t TEXT", "WITHOUT ROWID"),
        ("a INTEGER, b INTEGER, t TEXT, rowid TEXT", ""),
        ("a INTEGER PRIMARY KEY, b INTEGER NOT NULL, t TEXT", ""),
    ],
)
def test_declarations_of_other_writers(tmp_path: Path, fast, declaration: str, tail: str):
    rows = [(number, 2 * number, "x") for number in range(40)]
    given_rows = [(*row, "r") for row in rows] if "rowid" in declaration else rows
    assert read(table_of(tmp_path / "t.sqlite", given_rows, declaration, tail)) == reference(rows)


def test_row_numbers_with_gaps(tmp_path: Path, fast):
    rows = [(number, number, f"t{number % 3}") for number in range(400)]
    path = table_of(tmp_path / "t.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE a % 3 = 0 OR a BETWEEN 50 AND 99")
    connection.commit()
    connection.close()
    kept = [row for row in rows if row[0] % 3 and not 50 <= row[0] <= 99]
    assert read(path) == reference(kept)
    assert not fast()


def test_row_numbers_too_far_apart_take_the_safe_road(tmp_path: Path, fast):
    rows = [(number * 10**12, number, "x") for number in range(40)]
    assert read(table_of(tmp_path / "t.sqlite", rows, "a INTEGER PRIMARY KEY, b INTEGER, t TEXT")) == reference(rows)
    assert fast()


def test_values_too_wide_for_32_bits_stay_whole(tmp_path: Path, fast):
    rows = [(number, number, "x") for number in range(50)]
    rows[40] = (40, 2**40, "x")
    assert read(table_of(tmp_path / "t.sqlite", rows)) == reference(rows)
    assert not fast()


def test_a_condition(tmp_path: Path, fast):
    rows = [(number, number, "x") for number in range(50)]
    assert read(table_of(tmp_path / "t.sqlite", rows), where="a IN (3, 30)") == reference([rows[3], rows[30]])


def test_a_view(tmp_path: Path, fast):
    path = table_of(tmp_path / "t.sqlite", [(number, number, "x") for number in range(50)])
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE events RENAME TO base")
    connection.execute("CREATE VIEW events AS SELECT * FROM base WHERE a < 20")
    connection.commit()
    connection.close()
    assert read(path) == reference([(number, number, "x") for number in range(20)])


def test_columns_that_are_all_absent(tmp_path: Path, fast):
    path = table_of(tmp_path / "t.sqlite", [(1, 2, "x")] * 5)
    got = read(path, {"x": Wanted("nope", "i64"), "y": Wanted("neither", "text")})
    assert got == {"x": [MISSING] * 5, "y": [None] * 5}


def test_column_types(tmp_path: Path, fast):
    with Database(table_of(tmp_path / "t.sqlite", [(number, number, "x") for number in range(50)])) as database:
        table = read_columns(database, "events", WANTED)
    assert table.rows == 50
    assert {name: column.dtype for name, column in table.integers.items()} == {
        "a": np.int64,
        "b": np.int32,
        "z": np.int32,
    }
