"""Reading pages and asking SQLite give the same columns; odd rows are asked for, odd tables are read through SQLite."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_analyze.ingest.nsys.sqlite_pages import columns as module
from trace_analyze.ingest.nsys.sqlite_pages import pages
from trace_analyze.ingest.nsys.sqlite_pages.columns import MISSING, Wanted, read_columns
from trace_analyze.ingest.nsys.sqlite_pages.database import Database

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
def fast(monkeypatch: pytest.MonkeyPatch):
    """Makes small tables be read from their pages, a few at a time; ``fell_back()`` tells whether SQLite was used."""
    monkeypatch.setattr(module, "FAST_FROM_ROWS", 1)
    monkeypatch.setattr(pages, "LEAVES_AT_ONCE", 2)
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


cells = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([2**k for k in range(63)])
small_cells = st.integers(-(2**31), 2**31 - 1)
texts = st.sampled_from(["", "x", "é", "step 1", "'", "a" * 57, "b" * 58, "c" * 200, "d" * 9000])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.none() | cells, st.none() | small_cells, st.none() | texts), min_size=3, max_size=60),
    page=st.sampled_from([512, 1024, 4096, 65536]),
    reserved=st.booleans(),
)
def test_both_roads_give_what_was_written(tmp_path: Path, fast, monkeypatch: pytest.MonkeyPatch, rows, page, reserved):
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    columns = "t TEXT, a INTEGER, b INTEGER" if reserved else "a INTEGER, b INTEGER, t TEXT"
    connection.execute(f"CREATE TABLE events ({columns})")
    connection.executemany("INSERT INTO events (a, b, t) VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    assert read(path) == reference(rows)
    assert not fast()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_fast", lambda *_: None)
        assert read(path) == reference(rows)
    assert fast()


ODD_CELLS = [
    ((1.5, 2, "x"), (1, 2, "x")),
    (("text", 2, "x"), (MISSING, 2, "x")),
    ((b"\x00\x01", 2, "x"), (MISSING, 2, "x")),
    ((1e300, 2, "x"), (MISSING, 2, "x")),
    ((1, "7", "x"), (1, 7, "x")),
    ((1, 2, 5), (1, 2, "5")),
    ((1, 2, b"\xff\xfe"), (1, 2, "\N{REPLACEMENT CHARACTER}" * 2)),
    ((1, 2, 2.5), (1, 2, "2.5")),
]


@pytest.mark.parametrize(("cell", "expected"), ODD_CELLS)
@pytest.mark.parametrize("declaration", ["a INTEGER, b INTEGER, t TEXT", "a, b, t"])
def test_an_odd_row_is_asked_of_sqlite(tmp_path: Path, fast, cell: tuple, expected: tuple, declaration: str):
    rows = [(number, number, f"t{number % 3}") for number in range(200)]
    path = table_of(tmp_path / "t.sqlite", [*rows[:31], cell, *rows[32:]], declaration)
    assert read(path) == reference([*rows[:31], expected, *rows[32:]])
    assert not fast()


def test_many_odd_rows_are_read_through_sqlite(tmp_path: Path, fast):
    rows = [(number + 0.5, number, "x") for number in range(2000)]
    path = table_of(tmp_path / "t.sqlite", rows)
    assert read(path) == reference([(number, number, "x") for number in range(2000)])
    assert fast()


def test_text_that_is_not_utf8(tmp_path: Path, fast):
    path = table_of(tmp_path / "t.sqlite", [(number, number, "plain") for number in range(50)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET t = CAST(x'fffe' AS TEXT) WHERE a = 31")
    connection.commit()
    connection.close()
    got = read(path)
    assert not fast()
    assert got["t"][31] == "\N{REPLACEMENT CHARACTER}" * 2 and got["t"][30] == "plain"


@pytest.mark.parametrize(
    ("declaration", "tail", "safe"),
    [
        ("a BIGINT, b NUMERIC, t VARCHAR(10)", "", False),
        ("a, b, t", "", False),
        ("a INTEGER PRIMARY KEY, b INTEGER NOT NULL, t TEXT", "", False),
        ("a INTEGER PRIMARY KEY, b INTEGER, t TEXT", "WITHOUT ROWID", True),
        ("a INTEGER, b INTEGER, t TEXT, rowid TEXT", "", True),
        ("a INTEGER, b INTEGER, t TEXT, g INTEGER AS (a + 1) VIRTUAL", "", True),
        ("a INTEGER, b INTEGER, t TEXT, g INTEGER AS (a + 1) STORED", "", True),
    ],
)
def test_declarations_of_other_writers(tmp_path: Path, fast, declaration: str, tail: str, safe: bool):
    rows = [(number, 2 * number, "x") for number in range(40)]
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE events ({declaration}) {tail}")
    connection.executemany("INSERT INTO events (a, b, t) VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    assert read(path) == reference(rows)
    assert fast() == safe


def test_utf16(tmp_path: Path, fast):
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA encoding = 'UTF-16le'")
    connection.execute("CREATE TABLE events (a INTEGER, b INTEGER, t TEXT)")
    rows = [(number, number, f"é{number}") for number in range(40)]
    connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    assert read(path) == reference(rows)
    assert fast()


@pytest.mark.parametrize("default", ["", "DEFAULT 7"])
def test_a_column_added_to_rows_that_are_already_there(tmp_path: Path, fast, default: str):
    rows = [(number, number, "x") for number in range(40)]
    path = table_of(tmp_path / "t.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute(f"ALTER TABLE events ADD COLUMN absent INTEGER {default}")
    connection.execute("INSERT INTO events VALUES (40, 40, 'x', 9)")
    connection.commit()
    connection.close()
    expected = reference([*rows, (40, 40, "x")])
    expected["z"] = [7 if default else -1] * 40 + [9]
    assert read(path) == expected


def test_a_null_beside_rows_that_lack_its_column(tmp_path: Path, fast):
    """Behind the header of a row that lacks the column stands its first value: eight bytes that read as a type below 0."""
    value = int.from_bytes(b"\xc0" * 8, "big", signed=True)
    rows = [(value, number, "x") for number in range(40)]
    path = table_of(tmp_path / "t.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE events ADD COLUMN absent INTEGER")
    connection.execute("INSERT INTO events VALUES (40, 40, 'x', NULL)")
    connection.commit()
    connection.close()
    assert read(path) == reference([*rows, (40, 40, "x")])
    assert not fast()


def test_a_system_without_preadv(tmp_path: Path, fast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "preadv")
    rows = [(number, number, f"t{number % 3}") for number in range(2000)]
    assert read(table_of(tmp_path / "t.sqlite", rows)) == reference(rows)
    assert not fast()


def test_a_deep_tree(tmp_path: Path, fast):
    rows = [(number, number % 7, f"step {number % 50}") for number in range(30_000)]
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("CREATE TABLE events (a INTEGER, b INTEGER, t TEXT)")
    connection.execute("CREATE TABLE other (x)")
    for begin in range(0, len(rows), 500):  # pages of two tables in turn
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows[begin : begin + 500])
        connection.executemany("INSERT INTO other VALUES (?)", [("y" * 300,)] * 10)
    connection.commit()
    connection.close()
    assert read(path) == reference(rows)
    assert not fast()


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
    rows[3] = (3, str(2**41), "x")  # in an odd row too
    expected = [*rows[:3], (3, 2**41, "x"), *rows[4:]]
    assert read(table_of(tmp_path / "t.sqlite", rows, "a, b, t")) == reference(expected)


@pytest.mark.parametrize(
    ("condition", "safe"), [("a IN (3,30)", False), ("b IN (-1,3,30)", False), ("a < 4 AND a > 2", True)]
)
def test_a_condition(tmp_path: Path, fast, condition: str, safe: bool):
    rows = [(number, number, "x") for number in range(500)]
    expected = [rows[3]] if safe else [rows[3], rows[30]]
    assert read(table_of(tmp_path / "t.sqlite", rows), where=condition) == reference(expected)
    assert fast() == safe


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


def test_a_column_found_too_wide_keeps_minus_one_for_null(tmp_path: Path, fast):
    rows = [(number, None if number % 3 else 2**40 + number, "x") for number in range(50)]
    assert read(table_of(tmp_path / "t.sqlite", rows)) == reference(rows)
    assert not fast()


def test_an_integer_key_in_descending_order_is_no_row_number(tmp_path: Path, fast):
    rows = [(None if number == 7 else 5 * number, number, "x") for number in range(50)]
    path = table_of(tmp_path / "t.sqlite", rows, "a INTEGER PRIMARY KEY DESC, b INTEGER, t TEXT")
    assert read(path) == reference(rows)
    assert not fast()


@pytest.mark.parametrize("safe", [False, True])
def test_a_condition_on_an_indexed_column_keeps_the_order_of_rows(tmp_path: Path, fast, monkeypatch, safe: bool):
    rows = [(number, 9 - number % 10, "x") for number in range(200)]
    path = table_of(tmp_path / "t.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("CREATE INDEX by_b ON events (b)")
    connection.commit()
    connection.close()
    if safe:
        monkeypatch.setattr(module, "_fast", lambda *_: None)
    assert read(path, where="b IN (3,4,8)") == reference([row for row in rows if row[1] in (3, 4, 8)])
    assert fast() == safe


def test_a_condition_on_the_row_number(tmp_path: Path, fast):
    rows = [(number + 5, number, "x") for number in range(50)]
    path = table_of(tmp_path / "t.sqlite", rows, "a INTEGER PRIMARY KEY, b INTEGER, t TEXT")
    assert read(path, where="a IN (6,20)") == reference([rows[1], rows[15]])
    assert not fast()
