"""The page reader gives what SQLite gives, or leaves the table to it, whatever the schema, the rows and the file."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_analyze.ingest.nsys.sqlite_pages import columns as module
from trace_analyze.ingest.nsys.sqlite_pages import pages
from trace_analyze.ingest.nsys.sqlite_pages.columns import MISSING, Wanted, read_columns
from trace_analyze.ingest.nsys.sqlite_pages.database import Database

TYPES = ["", "INTEGER", '"INTEGER"', "integer", "INT", "BIGINT", "TEXT", "REAL", "NUMERIC", "BLOB", "VARCHAR(10)"]
KEYS = [
    *[""] * 4, "{x} {type} PRIMARY KEY", "{x} {type} PRIMARY KEY DESC", "{x} {type} PRIMARY KEY AUTOINCREMENT",
    "{x} {type}, PRIMARY KEY ({x})", "{x} {type}, PRIMARY KEY ({x} DESC)", "{x} {type}, PRIMARY KEY ({x}, other)",
]  # fmt: skip
GENERATED = [*[""] * 8, "g INTEGER AS (other + 1) VIRTUAL", "g INTEGER AS (other + 1) STORED"]
ADDED = [
    "",
    "",
    "extra INTEGER",
    "extra INTEGER DEFAULT 7",
    "extra TEXT DEFAULT 'none'",
    "extra REAL NOT NULL DEFAULT 1",
]

numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([2**31, 2**47, 2**53 + 1])
texts = st.sampled_from(["", "x", "7", " 8 ", "é\U0001f600", "a\0b", "0x10", "1e3", "y" * 57, "z" * 700, "w" * 9000])
cells = (
    st.none() | numbers | texts | st.floats(allow_nan=False) | st.sampled_from([b"", b"5", b"\xff\xfe", b"q" * 5000])
)
plain_cells = st.none() | st.integers(-(2**40), 2**40)


@st.composite
def databases(draw: st.DrawFn) -> tuple[list[str], list[tuple], str | None]:
    """PRAGMAs and the statement that makes a table, rows for its columns c and other, a column that is added later."""
    settings_of_file = [
        f"PRAGMA page_size = {draw(st.sampled_from([512, 1024, 4096, 65536]))}",
        f"PRAGMA auto_vacuum = {draw(st.sampled_from([0, 1, 2]))}",
        f"PRAGMA encoding = '{draw(st.sampled_from(['UTF-8'] * 6 + ['UTF-16le', 'UTF-16be']))}'",
    ]
    kind, key = draw(st.sampled_from(TYPES)), draw(st.sampled_from(KEYS))
    keyed = key.format(x="c", type=kind)
    parts = [keyed.split(", PRIMARY")[0] or f"c {kind}", f"other {draw(st.sampled_from(TYPES))}"]
    parts += [part for part in [draw(st.sampled_from(GENERATED))] if part]
    parts += ["PRIMARY" + keyed.split(", PRIMARY")[1]] if ", PRIMARY" in keyed else []
    tail = "WITHOUT ROWID" if "PRIMARY" in keyed and draw(st.integers(0, 3)) == 0 else ""
    settings_of_file.append(f"CREATE TABLE events ({', '.join(parts)}) {tail}")
    pool = draw(st.sampled_from([cells, plain_cells]))
    rows = draw(st.lists(st.tuples(pool, pool), min_size=3, max_size=40))
    rows += [(1000 + place, place) for place in range(draw(st.sampled_from([0, 200])))]
    return settings_of_file, rows, draw(st.sampled_from(ADDED)) or None


def write_database(path: Path, statements: list[str], rows: list[tuple], added: str | None) -> bool:
    """Write the file; False where the schema is none that SQLite takes."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        try:
            for statement in statements:
                connection.execute(statement)
        except sqlite3.OperationalError:
            return False
        for row in rows:
            with suppress(sqlite3.IntegrityError):  # a key that is there already, or is no integer where it must be
                connection.execute("INSERT INTO events (c, other) VALUES (?, ?)", row)
        connection.execute("DELETE FROM events WHERE other = 3")
        if added:
            connection.execute(f"ALTER TABLE events ADD COLUMN {added}")
            with suppress(sqlite3.IntegrityError):
                connection.execute("INSERT INTO events (c, other) VALUES (2000, 1)")
        connection.commit()
    return True


def read_both(path: Path, wanted: dict[str, Wanted], where: str, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the page reader with its ways out gives, and what SQLite alone gives."""
    answers = []
    for pages_allowed in (True, False):
        with monkeypatch.context() as patch, Database(path) as database:
            patch.setattr(module, "FAST_FROM_ROWS", 1)
            patch.setattr(pages, "LEAVES_AT_ONCE", 2)
            if not pages_allowed:
                patch.setattr(module, "_fast", lambda *_: None)
            table = read_columns(database, "events", wanted, where=where)
        answer = {name: column.tolist() for name, column in table.integers.items()}
        for name, coded in table.texts.items():
            answer[name] = [None if code < 0 else coded.texts[code] for code in coded.codes.tolist()]
        answers.append(answer)
    return answers


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    database=databases(),
    types=st.lists(st.sampled_from(["i64", "i32", "text"]), min_size=4, max_size=4),
    where=st.sampled_from(["", "", "c IN (1,5,1003)", "OTHER IN (0,2,-1)"]),
)
def test_random_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database, types, where):
    path = tmp_path / "t.sqlite"
    if not write_database(path, *database):
        return
    names = ["c", "other", "extra", "g"]
    wanted = {name: Wanted(name, kind) for name, kind in zip(names, types, strict=True)}
    paged, asked = read_both(path, wanted, where, monkeypatch)
    assert paged == asked
    if "text" in types[0] and not where:
        with closing(sqlite3.connect(path)) as connection:
            own = [
                row[0]
                for row in connection.execute(
                    "SELECT CAST(c AS TEXT) FROM events NOT INDEXED WHERE typeof(c) = 'integer'"
                )
            ]
        assert set(own) <= set(paged["c"])


ROW_NUMBER_KEYS = [
    ("c INTEGER PRIMARY KEY, other", ""),
    ('c "INTEGER" PRIMARY KEY, other', ""),
    ("c integer, other, PRIMARY KEY (c)", ""),
    ("c INTEGER, other, PRIMARY KEY (c DESC)", ""),
    ("c INTEGER PRIMARY KEY DESC, other", ""),
    ("c INT PRIMARY KEY, other", ""),
    ("c INTEGER PRIMARY KEY, other", "WITHOUT ROWID"),
]


@pytest.mark.parametrize(("declaration", "tail"), ROW_NUMBER_KEYS)
@pytest.mark.parametrize("kind", ["i64", "i32", "text"])
def test_a_key_reads_as_it_was_written(tmp_path: Path, monkeypatch, declaration: str, tail: str, kind: str):
    path = tmp_path / "t.sqlite"
    rows = [(3 * place + 5, place) for place in range(300)]
    assert write_database(path, [f"CREATE TABLE events ({declaration}) {tail}"], rows, None)
    expected = [str(key) if kind == "text" else key for key, other in rows if other != 3]
    for answer in read_both(path, {"c": Wanted("c", kind)}, "", monkeypatch):
        assert answer["c"] == expected


def test_a_column_wanted_as_number_and_as_text(tmp_path: Path, monkeypatch):
    path = tmp_path / "t.sqlite"
    write_database(path, ["CREATE TABLE events (c, other)"], [(place, 0) for place in range(50)], None)
    wanted = {"number": Wanted("c", "i64"), "text": Wanted("c", "text")}
    expected = {"number": list(range(50)), "text": [str(place) for place in range(50)]}
    assert read_both(path, wanted, "", monkeypatch) == [expected, expected]


def test_a_condition_on_a_column_that_is_not_wanted_as_number(tmp_path: Path, monkeypatch):
    path = tmp_path / "t.sqlite"
    write_database(path, ["CREATE TABLE events (c, other)"], [(place, place % 2) for place in range(50)], None)
    for wanted in ({"c": Wanted("c", "i64")}, {"c": Wanted("c", "i64"), "other": Wanted("other", "text")}):
        for answer in read_both(path, wanted, "other IN (1)", monkeypatch):
            assert answer["c"] == list(range(1, 50, 2))


def test_reserved_bytes_at_the_end_of_each_page(tmp_path: Path, monkeypatch):
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("CREATE TABLE seed (x)")
        connection.commit()
    content = bytearray(path.read_bytes())
    content[20] = 32  # two empty pages, so that moving the end of the content is all there is to it
    for page in (0, 1):
        begin = 100 if page == 0 else 1024
        start = int.from_bytes(content[begin + 5 : begin + 7], "big")
        size = 1024 - start
        content[page * 1024 + start - 32 : page * 1024 + 992] = content[
            page * 1024 + start : page * 1024 + start + size
        ]
        content[begin + 5 : begin + 7] = (start - 32).to_bytes(2, "big")
        if page == 0:
            content[108:110] = (start - 32).to_bytes(2, "big")
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (c, other)")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?)", [(7 * place, "t" * (place % 1200)) for place in range(2000)]
        )
        connection.commit()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert path.read_bytes()[20] == 32
    paged, asked = read_both(path, {"c": Wanted("c", "i64"), "other": Wanted("other", "text")}, "", monkeypatch)
    assert paged == asked
    assert paged["c"] == [7 * place for place in range(2000)]


def test_the_lowest_row_number(tmp_path: Path, monkeypatch):
    path = tmp_path / "t.sqlite"
    rows = [(-(2**63) + place, place) for place in range(5, 60)]
    rows.insert(0, (-(2**63), 4))
    write_database(path, ["CREATE TABLE events (c INTEGER PRIMARY KEY, other)"], rows, None)
    for answer in read_both(path, {"other": Wanted("other", "i64")}, "", monkeypatch):
        assert answer["other"] == [other for _, other in rows]


def test_cells_of_a_chunk_do_not_change_each_other():
    """A blob is no number, also where all other cells of its chunk are whole numbers; numpy would parse it."""
    assert module._integers((b"5", 1)).tolist() == [MISSING, 1]
    assert module._integers(("5", 1)).tolist() == [5, 1]
    assert module._integers((1e19, 1)).tolist() == [MISSING, 1]
    assert module._integers((float("inf"), 2**62)).tolist() == [MISSING, 2**62]
    assert module._integers((1.5, None)).dtype == np.int64
