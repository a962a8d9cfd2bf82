"""What a file is, from its first bytes, in words for a person.

``read_head`` refuses what cannot be opened at all; ``describe`` turns a file that no reader took into one paragraph:
what it is, what was expected, what to do next.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import stat
import zlib
from pathlib import Path

from ..analysis.records.errors import NotACaptureError

HEAD_BYTES = 65536
SQLITE_MAGIC = b"SQLite format 3\x00"
GZIP_MAGIC = b"\x1f\x8b"


def read_head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file (of its content, where it is gzip); ``b""`` for a folder.

    Raises ``NotACaptureError`` for what ``refuse_unreadable`` refuses, cannot be read, or holds 0 bytes.
    """
    refuse_unreadable(path)
    try:
        if path.is_dir():
            return b""
        with path.open("rb") as file:
            head = file.read(size)
    except OSError as error:
        raise NotACaptureError(why_unreadable(path, error)) from error
    if not head:
        raise NotACaptureError(
            f"{path.name} is empty (0 bytes): the export or the copy did not finish. Export it again: {NSYS_EXPORT}"
        )
    return _unzipped(path, size) or head if head.startswith(GZIP_MAGIC) else head


def refuse_unreadable(path: Path) -> None:
    """Raise ``NotACaptureError`` where ``path`` leads to neither a file nor a folder.

    Opens nothing: a pipe that nobody writes to would never answer, and some devices never end.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotACaptureError(_missing(path)) from error
    except (OSError, ValueError) as error:
        raise NotACaptureError(why_unreadable(path, error)) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = next((what for is_kind, what in _NO_FILES if is_kind(mode)), "of an unknown kind")
        raise NotACaptureError(f"{path.name} is {what}, not a regular file. {EXPECTED}")


_NO_FILES = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; False where its own folder lets nobody look."""
    try:
        return path.is_dir()
    except OSError:
        return False


def why_unreadable(path: Path, error: OSError | ValueError) -> str:
    """One sentence or two on why the system gives neither the file nor the folder ``path``."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, PermissionError):
        allow = "chmod u+rx" if _is_folder(path) else "chmod u+r"
        return f"No permission to read {path}: make it readable for you ({allow}) or copy it."
    if number == errno.ELOOP:
        return f"Cannot read {path}: it is a link that leads in a circle. Link it to the capture itself."
    if number == errno.ENAMETOOLONG:
        return (
            f"Cannot read {path.name}: its path is too long for the system. Move it up, or shorten its folders' names."
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"Cannot read {path}: {reason}."


NSYS_EXPORT = "nsys export --type sqlite -o run.sqlite run.nsys-rep"
EXPECTED = f"Expected an Nsight Systems SQLite export, made with: {NSYS_EXPORT}"

# (first bytes, where they start, what the file is, what to do)
SIGNATURES: tuple[tuple[bytes, int, str, str], ...] = (
    (b"version https://git-lfs", 0, "a Git LFS pointer, not the file itself", "Fetch the content first: git lfs pull"),
    (b"/annex/objects", 0, "a git-annex pointer, not the file itself", "Fetch the content first: git annex get FILE"),
    (
        b"NVR\x00",
        0,
        "an Nsight Compute report (.ncu-rep)",
        "Export it: ncu --import FILE --csv --page raw > kernels.csv",
    ),
    (
        b"QDSTRM",
        0,
        "an unfinished Nsight Systems recording (.qdstrm)",
        "Convert it with QdstrmImporter, then: " + NSYS_EXPORT,
    ),
    (b"PAR1", 0, "a Parquet file", "Give a folder made with: nsys export --type parquetdir"),
    (b"ARROW1", 0, "an Arrow file", "Give a folder made with: nsys export --type arrowdir"),
    (b"\x89HDF\r\n", 0, "an HDF5 file", "Export as SQLite instead: " + NSYS_EXPORT),
    (b"PK\x03\x04", 0, "a zip archive", "Unpack it and give the capture inside."),
    (b"\x28\xb5\x2f\xfd", 0, "a Zstandard-compressed file", "Decompress it first: zstd -d FILE"),
    (b"\xfd7zXZ\x00", 0, "an xz-compressed file", "Decompress it first: xz -d FILE"),
    (GZIP_MAGIC, 0, "a damaged gzip file", "Copy or export it again."),  # a sound one was unpacked
    (b"BZh", 0, "a bzip2-compressed file", "Decompress it first: bzip2 -d FILE"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7-Zip archive", "Unpack it and give the capture inside."),
    (b"ustar", 257, "a tar archive", "Unpack it and give the capture inside."),
    (b"\x7fELF", 0, "a program or library", ""),
    (b"%PDF", 0, "a PDF document", ""),
    (b"\x89PNG", 0, "a picture", ""),
)


def describe(path: Path, head: bytes, looked_for: list[str]) -> NotACaptureError:
    """The error for a file that no reader took: what it is, what was looked for, what to do."""
    what, advice = kind_of(path, head)
    expected = "; ".join(looked_for)
    return NotACaptureError(" ".join(f"{path.name} is {what}. Looked for: {expected}. {advice}".split()))


def kind_of(path: Path, head: bytes) -> tuple[str, str]:
    """What the file is and what to do about it, both in words."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return "a folder", "Give one file of it, or analyse all its captures with: trace-analyze batch FOLDER -o DIR"
    if _is_nsys_rep(suffix, head):
        return (
            "an Nsight Systems report (.nsys-rep), which only Nsight Systems itself can open",
            f"Export it first: nsys export --type sqlite -o {path.stem}.sqlite {path.name}",
        )
    for magic, offset, what, advice in SIGNATURES:
        if head[offset : offset + len(magic)] == magic:
            return what, advice
    text = _as_text(head)
    if text is not None:
        return _kind_of_text(text.lstrip("\ufeff \t\r\n"))
    if suffix in {".sqlite", ".db", ".sqlite3"}:
        return (
            "not SQLite although its name says so: encrypted, or damaged at its beginning",
            f"Decrypt it, or export it again: {NSYS_EXPORT}",
        )
    return "a binary file of unknown kind", f"Export the capture with: {NSYS_EXPORT}"


def _kind_of_text(text: str) -> tuple[str, str]:
    if text[:1] in {"{", "["}:
        return "JSON, but not a trace this tool knows", f"For Nsight Systems: {NSYS_EXPORT}"
    if text[:15].lower().startswith(("<!doctype", "<html", "<?xml")):
        return "a web page or XML, perhaps a download that failed", f"Fetch the file again. {EXPECTED}"
    what = "a text table (CSV) of unknown columns" if "," in text.partition("\n")[0] else "a text file"
    return what, f"For Nsight Systems: {NSYS_EXPORT}"


def _is_nsys_rep(suffix: str, head: bytes) -> bool:
    if head.startswith(SQLITE_MAGIC):
        return False
    return suffix in {".nsys-rep", ".qdrep"} or b"NVIDIA Nsight Systems" in head[:512] or b"QuadD" in head[:512]


def _as_text(head: bytes) -> str | None:
    """The head as text, or None where it is binary."""
    if b"\x00" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    for encoding in ("utf-8", "utf-16") if head.startswith((b"\xff\xfe", b"\xfe\xff")) else ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            text = head[: len(head) - len(head) % 2].decode(encoding) if encoding == "utf-16" else head.decode(encoding)
            printable = sum(character.isprintable() or character in "\r\n\t\f\ufeff" for character in text[:2000])
            return text if printable >= 0.9 * len(text[:2000]) else None
    return None


def _unzipped(path: Path, size: int) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"{path.name} is a link to {path.readlink()}, which is not there."
    message = f"No such file: {path}."
    parent = path.parent
    with contextlib.suppress(OSError):
        if not parent.is_dir():
            return f"{message} Its folder does not exist either."
        import difflib

        near = difflib.get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=3)
        if near:
            message += f" Near it: {', '.join(near)}."
    return message
