"""What a row of each table of facts holds. A key that stands in no row type is refused when the table is loaded."""

from __future__ import annotations

import msgspec


class PatternRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A regular expression and names that it is there to match."""

    pattern: str
    examples: tuple[str, ...]
    source: str


class EngineRow(PatternRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """engines.toml: kernel names that one engine alone launches. An empty ``pattern`` matches none."""

    name: str
    mixes: bool
    pads_graphs: bool = True


class MemoryPassRow(PatternRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """memory_passes.toml: kernels that pass over one table per step. ``bytes``: per element of it, at the least."""

    name: str
    of: str  # a pass of work/operators/table_passes.py
    bytes: float


class NameSignRow(PatternRow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """name_signs.toml: what a kernel's or a runtime call's name tells beside its class."""

    sign: str
