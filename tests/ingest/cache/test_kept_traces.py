"""Entries of a cache folder: whole or not there, whoever writes them at the same time; and what names them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import polars as pl
import pytest

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.ingest.cache import cache_entries as entries
from trace_analyze.ingest.cache import fingerprint as fingerprints
from trace_analyze.ingest.cache.cache_entries import DamagedEntryError, read_entry, tool_digest, write_entry
from trace_analyze.ingest.cache.fingerprint import fingerprint, fingerprint_of_run

FRAMES = {"one": pl.DataFrame({"x": range(1000)}), "two": pl.DataFrame({"y": ["a", None]})}


def test_an_entry_holds_what_was_written(tmp_path):
    write_entry(tmp_path / "new" / "entry", FRAMES, "words, ü".encode())
    entry = read_entry(tmp_path / "new" / "entry")
    assert entry.text.decode() == "words, ü"
    assert "one" in entry
    assert "three" not in entry
    for name, frame in FRAMES.items():
        assert entry.frame(name).equals(frame)
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["entry"]


def test_many_write_one_entry_and_nobody_reads_half_of_it(tmp_path):
    folder = tmp_path / "entry"
    write_entry(folder, FRAMES, b"0")
    done = threading.Event()
    seen = set()

    def read():
        while not done.is_set():
            entry = read_entry(folder)
            if entry is not None:
                seen.add(entry.text)
                with suppress(DamagedEntryError):  # replaced between the index and the frame
                    assert entry.frame("one").height == 1000

    with ThreadPoolExecutor(8) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write_entry, folder, FRAMES, str(n % 5).encode()) for n in range(200)]
        wait(writers)
        done.set()
    for each in (reader, *writers):
        each.result()
    assert read_entry(folder).frame("two").equals(FRAMES["two"])
    assert seen <= {b"0", b"1", b"2", b"3", b"4"}
    assert [each.name for each in tmp_path.iterdir()] == ["entry"]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    with pytest.raises(UsageError, match=r"--cache: cannot write .*No space left"):
        write_entry(tmp_path / "entry", FRAMES, b"")
    assert not list(tmp_path.iterdir())


def test_a_content_has_one_fingerprint_however_it_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "_STRETCH", 1000)
    monkeypatch.setattr(fingerprints, "_BLOCK", 300)
    content = bytes(range(256)) * 20  # 5,120 bytes: six stretches
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(content)
    other.write_bytes(content)
    assert fingerprint(one) == fingerprint(other)
    for place in (0, 999, 1000, 5119):
        other.write_bytes(content[:place] + b"!" + content[place + 1 :])
        assert fingerprint(other) != fingerprint(one)
    for length in (5000, 5119, 0):
        other.write_bytes(content[:length])
        assert fingerprint(other) != fingerprint(one)


def test_names_count_within_a_folder_and_a_run(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"content")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    before = fingerprint_of_run([tmp_path / "a" / "same"])
    renamed = (tmp_path / "a" / "same").rename(tmp_path / "a" / "other")
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")
    assert fingerprint_of_run([renamed]) != before


def test_the_tool_is_the_content_of_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "_PACKAGE", tmp_path)
    (tmp_path / "ingest").mkdir()
    (tmp_path / "analysis").mkdir()
    source = tmp_path / "ingest" / "reader.py"
    source.write_text("A = 1")
    (tmp_path / "analysis" / "table.toml").write_text("a = 1")
    reading, both = tool_digest("ingest"), tool_digest("ingest", "analysis")
    (tmp_path / "ingest" / "reader.pyc").write_bytes(b"compiled")
    source.touch()
    assert (tool_digest("ingest"), tool_digest("ingest", "analysis")) == (reading, both)
    (tmp_path / "analysis" / "table.toml").write_text("a = 2")
    assert tool_digest("ingest") == reading
    assert tool_digest("ingest", "analysis") != both
    source.write_text("A = 2")
    assert tool_digest("ingest") != reading
