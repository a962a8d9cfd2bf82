"""The input formats, one record each: everything the tool knows of a format beside how to read it.

A new format is a record here and a reader module in ``ingest`` with ``sniff`` and ``read``; the order is the order in
which readers are asked. CONTRIBUTING.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputFormat:
    """One kind of input."""

    key: str  # CaptureFacts.format of the Traces it becomes
    words: str  # what it is and how it is made, for error messages
    reader: str  # module within ``ingest``; formats that share one are sniffed and read by it alike
    suffixes: tuple[str, ...]  # names it usually has, longest first
    is_folder: bool = False
    clock: str | None = None  # files of one clock can be laid beside each other; None = times of no clock
    has_timeline: bool = True  # False: durations only, laid end to end
    profiled_one_by_one: bool = False  # its kernels are Nsight Compute's launches: their work is measured


_STATS = ("a table of nsys stats or nsys recipe (cuda_gpu_trace, cuda_gpu_kern_sum)", "nsys_stats.reader", (".csv",))
_TABLES = ("a folder of nsys export --type parquetdir or arrowdir", "nsys.table_folder")

FORMATS: tuple[InputFormat, ...] = (
    InputFormat(
        "nsys_sqlite",
        "an Nsight Systems SQLite export (nsys export --type sqlite)",
        "nsys",
        (".sqlite", ".db"),
        clock="nsys",
    ),
    InputFormat("nsys_parquet", *_TABLES, (".parquet",), is_folder=True, clock="nsys"),
    InputFormat("nsys_arrow", *_TABLES, (".arrow",), is_folder=True, clock="nsys"),
    InputFormat(
        "kineto_json",
        "a PyTorch-profiler trace (*.pt.trace.json, also gzipped)",
        "kineto.reader",
        (".pt.trace.json.gz", ".pt.trace.json", ".json.gz", ".json"),
        clock="kineto",
    ),
    InputFormat(
        "ncu_csv",
        "Nsight Compute results as CSV (ncu --csv --page raw or details)",
        "ncu.ncu_csv",
        (".csv",),
        has_timeline=False,
        profiled_one_by_one=True,
    ),
    InputFormat(
        "ncu_rep",
        "an Nsight Compute report (.ncu-rep), where ncu is installed",
        "ncu.report_file",
        (".ncu-rep",),
        has_timeline=False,
        profiled_one_by_one=True,
    ),
    InputFormat("nsys_stats", *_STATS),
    InputFormat("nsys_stats_summary", *_STATS, has_timeline=False),
    InputFormat(
        "nsys_rep",
        "an Nsight Systems report (.nsys-rep), where nsys is installed",
        "nsys.report_file",
        (".nsys-rep",),
        clock="nsys",
    ),
)
# A folder of several captures: what it becomes has the format of its files.
RUN_OF_FILES = ("a folder with the files of one run, one per rank or node", "run_of_files.open_run")

_BY_KEY = {each.key: each for each in FORMATS}


def format_of(key: str | None) -> InputFormat | None:
    """The record of a Trace's format; None for a run whose files are of several."""
    return _BY_KEY.get(key or "")


def readers() -> tuple[tuple[str, str], ...]:
    """(what it reads, in words; module within ``ingest``) of every reader, in the order in which they are asked."""
    return (*dict.fromkeys((each.words, each.reader) for each in FORMATS), RUN_OF_FILES)


def clocks_by_reader() -> dict[str, str]:
    """The clock of every reader whose inputs have one."""
    return {each.reader: each.clock for each in FORMATS if each.clock is not None}


def clock_by_name(name: str) -> str | None:
    """The clock that a file of this name would be on, where its suffix is that of a format with one."""
    endings = (
        (suffix, each.clock) for each in FORMATS if not each.is_folder and each.clock for suffix in each.suffixes
    )
    return next((clock for suffix, clock in endings if name.lower().endswith(suffix)), None)


def file_suffixes() -> tuple[str, ...]:
    """The suffixes of captures that are files, each once."""
    return tuple(dict.fromkeys(s for each in FORMATS if not each.is_folder for s in each.suffixes))


def suffix_parts() -> tuple[str, ...]:
    """What may be cut off the end of a capture's name, one part at a time (``.gz``, ``.json``, ``.trace``, ``.pt``)."""
    suffixes = (s for each in FORMATS for s in each.suffixes)
    return tuple(dict.fromkeys(f".{part}" for s in suffixes for part in s.removeprefix(".").split(".")))
