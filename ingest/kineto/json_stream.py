"""Chrome-trace JSON as a stream: the ``traceEvents`` array in batches, the facts around it as one dict.

A trace of 1 GB must not become 1 GB of text plus its objects, so the text is read in blocks (through gzip where the
magic says so), cut between two events and decoded batch by batch. A cut is right exactly when the text before it is
a valid list of events; the decoder is therefore the judge of every cut, and no state machine over quotes and braces
is needed. The facts may stand before the array (where the profiler writes most of them) or behind it. What is held at
once is bounded: a few MB of gzip can be gigabytes of blanks, or of one text, which no profiler writes.

Known slips of writers are mended when, and only when, a batch does not decode: bytes that are not UTF-8, and the bare
words ``nan`` and ``inf`` that a division by a zero duration leaves behind.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

import msgspec

from ...analysis.records.errors import NotACaptureError

BLOCK_BYTES = 16 << 20
MOST_FACTS_BYTES = 64 << 20  # before the first event; profilers write a few kB
MOST_EVENT_BYTES = 128 << 20  # of one event, and of all that stands behind the last one
HEAD_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"

Event = TypeVar("Event")

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_KEY_BYTES = 4096  # that a key and the blanks behind it may be cut in
_BETWEEN_EVENTS = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\{}]*"\s*:)')
_TOO_DEEP = "brackets are nested more than a thousand deep"
_BARE_WORD = re.compile(rb"(:\s*)[-+]?(?:nan|inf(?:inity)?)\b(?=\s*[,}])", re.IGNORECASE)


def open_text(path: Path) -> IO[bytes]:
    """Open ``path`` for reading bytes, through gzip when its magic says so."""
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
    return cast("IO[bytes]", gzip.open(path, "rb")) if zipped else path.open("rb")


def inflate_head(head: bytes) -> bytes:
    """The first bytes of a file as text, inflated when they are the start of a gzip stream."""
    if not head.startswith(GZIP_MAGIC):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


class EventStream(Generic[Event]):
    """Batches of events of one trace file, and ``facts`` (the other keys of the file) once all batches are read."""

    def __init__(
        self,
        path: Path,
        event_type: type[Event],
        *,
        block_bytes: int = BLOCK_BYTES,
        most_facts_bytes: int = MOST_FACTS_BYTES,
        most_event_bytes: int = MOST_EVENT_BYTES,
    ) -> None:
        """Read ``path``; events are decoded into ``event_type``, a ``msgspec.Struct``."""
        self.facts: dict[str, Any] = {}
        self._path = path
        self._block_bytes = block_bytes
        self._most_facts_bytes, self._most_event_bytes = most_facts_bytes, most_event_bytes
        self._batch = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]
        self._read_bytes = 0

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield lists of events in file order. Raises NotACaptureError on a damaged or truncated file."""
        with open_text(self._path) as file:
            buffer = self._open_array(file)
            block = self._block_bytes
            while text := self._read(file, block):
                buffer += text
                events, buffer = self._cut(buffer)
                if events is None:  # no cut is valid: the array ended here, or the text is broken
                    if len(buffer) > self._most_event_bytes:
                        raise self._too_long(f"one event longer than {self._most_event_bytes:,} bytes")
                    block = min(2 * block, max(block, self._most_event_bytes // 4))
                    continue
                block = self._block_bytes
                yield events
        yield self._last(buffer)

    def _read(self, file: IO[bytes], size: int) -> bytes:
        try:
            text = file.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged("the gzip stream ends early or is corrupt", self._read_bytes) from error
        self._read_bytes += len(text)
        return text

    def _open_array(self, file: IO[bytes]) -> bytes:
        """Read up to the first event; the keys before the array go to ``facts``."""
        buffer = b""
        while True:
            text = self._read(file, min(self._block_bytes, 1 << 20))
            seen = max(0, len(buffer) - _ARRAY_KEY_BYTES)
            buffer = buffer + text if buffer else text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if buffer.startswith(b"["):  # the array form of the format: events only
                return buffer[1:]
            found = _ARRAY.search(buffer, seen)
            if found:
                before = buffer[: found.start()].lstrip(b"\xef\xbb\xbf").rstrip().rstrip(b",") + b"}"
                self.facts.update(self._decode_facts(before))
                return buffer[found.end() :]
            if self._read_bytes > self._most_facts_bytes:
                raise self._too_long(f"no event in its first {self._most_facts_bytes:,} bytes")
            if not text:
                raise NotACaptureError(
                    f"{self._path.name} is JSON without a 'traceEvents' array, so it is no PyTorch-profiler trace "
                    "(or it was cut off before its first event). Export it again with prof.export_chrome_trace()."
                )

    def _cut(self, buffer: bytes) -> tuple[list[Event] | None, bytes]:
        """Decode the events up to the last possible cut; returns them and the text behind the cut."""
        cuts = _last_cuts(buffer)
        for end, resume in cuts:
            events = self._decode(b"[" + buffer[:end] + b"]")
            if events is not None:
                return events, buffer[resume:]
        return None, buffer

    def _decode(self, text: bytes) -> list[Event] | None:
        try:
            return self._batch.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        except RecursionError as error:
            raise self._damaged(_TOO_DEEP, self._read_bytes - len(text)) from error
        try:
            return self._batch.decode(mend(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _last(self, buffer: bytes) -> list[Event]:
        """Decode what is left when the file is at its end: the last events and the keys behind the array."""
        array_form = not buffer.rstrip().endswith(b"}") and buffer.rstrip().endswith(b"]")
        text = b'{"traceEvents":[' + buffer + (b"}" if array_form else b"")
        for candidate in (text, mend(text)):
            try:
                parts = msgspec.json.decode(candidate, type=dict[str, msgspec.Raw])
                events = self._batch.decode(parts.pop("traceEvents"))
                self.facts.update({key: msgspec.json.decode(value) for key, value in parts.items()})
            except RecursionError as error:
                raise self._damaged(_TOO_DEEP, self._read_bytes - len(buffer)) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                failure = error
                continue
            return events
        raise self._damaged(str(failure), self._read_bytes - len(buffer)) from failure

    def _decode_facts(self, text: bytes) -> dict[str, Any]:
        for candidate in (text, mend(text)):
            try:
                return msgspec.json.decode(candidate, type=dict[str, Any])
            except RecursionError as error:
                raise self._damaged(_TOO_DEEP, 0) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                failure = error
        raise self._damaged(str(failure), 0) from failure

    def _too_long(self, what: str) -> NotACaptureError:
        return NotACaptureError(
            f"{self._path.name} has {what}, which no profiler writes: it is no PyTorch-profiler trace, or it is damaged. "
            "Export it again with prof.export_chrome_trace()."
        )

    def _damaged(self, why: str, good_bytes: int) -> NotACaptureError:
        return NotACaptureError(
            f"{self._path.name} looks like a PyTorch-profiler trace but its JSON is damaged or cut off after about "
            f"{good_bytes:,} good bytes ({why}). A trace is complete only after prof.stop() has returned: let the "
            "server finish writing (large traces take minutes), copy the file again, or profile fewer steps."
        )


def mend(text: bytes) -> bytes:
    """``text`` with bytes that are not UTF-8 replaced and the bare words nan and inf turned into null."""
    return _BARE_WORD.sub(rb"\1null", text.decode("utf-8", "replace").encode())


def _last_cuts(buffer: bytes) -> list[tuple[int, int]]:
    """Up to four places near the end of ``buffer`` where one object ends and the next begins, last first."""
    for window in (1 << 16, 1 << 20, len(buffer)):
        start = max(0, len(buffer) - window)
        found = [(start + match.start() + 1, start + match.end()) for match in _BETWEEN_EVENTS.finditer(buffer[start:])]
        if found:
            return found[:-5:-1]
        if start == 0:
            break
    return []
