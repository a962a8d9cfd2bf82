"""What NVTX ranges and profiler annotations say, read once per distinct text.

``markers.toml`` holds the grammars of the engines; a user adds his own with ``--markers FILE.toml`` (the same tables,
tried first). A million distinct texts are normal under PyTorch's ``emit_nvtx``, where every operator carries its own
sequence number, so a single combined expression throws out what no grammar could match before any of them is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from ..facts.load import load_table, read_user_file
from ..records.errors import UsageError
from ..records.trace import Schema
from .counts import COUNTS, finish_counts, read_pairs

MARKER_FACTS: Schema = {  # one row per text, row-aligned with Trace.texts
    "text_id": pl.UInt32,
    "grammar": pl.String,  # id of the grammar that matched
    "engine": pl.String,
    "role": pl.String,  # 'step' | 'part' | 'edge' | 'capture' | 'shape' | 'module' | 'collective' | 'ignore'
    "phase": pl.String,  # a value of PHASES; draft and idle steps are 'other', 'unknown' where the text leaves it open
    "part": pl.String,  # which part of a step; of an edge 'start' | 'end'; of a shape the operator
    "module": pl.String,
    **dict.fromkeys(COUNTS, pl.Int64),
    "shapes": pl.List(pl.List(pl.Int64)),  # inputs, then parameters
}
ROLES = ("step", "part", "edge", "capture", "shape", "module", "collective", "ignore")
PHASE_RULES = ("prefill", "decode", "mixed", "other", "unknown", "by_counts", "by_new")
MODE_PHASES = ("prefill", "decode", "mixed", "verify", "draft", "other", "unknown")
_TOTALS = ("requests", "tokens")
_GROUPS = frozenset({*COUNTS, *_TOTALS, "part", "module", "mode", "pairs"})
_KEYS = frozenset(
    ("id", "engine", "role", "phase", "pattern", "modes", "keys", "keys_in", "decode_tokens_default", "shapes", "about",
     "source", "examples")
)  # fmt: skip

# What emit_nvtx writes behind a name; each part is optional. A quick test first: most texts have no tail at all.
_HAS_TAIL = r", (?:seq|op_id|sizes|input_op_ids) = "
_TAIL = r"(?:, seq = \d+)?(?:, op_id = \d+)?(?:, sizes = \[.*\])?(?:, input_op_ids = \[.*\])?$"
_NESTED_LIST = r"^\[(?:\[[\d, -]*\](?:, ?)?)*\]$"


@dataclass(frozen=True)
class Grammar:
    """One way of writing a marker."""

    id: str
    pattern: str  # as given, without the anchors
    role: str
    engine: str | None
    phase: str | None
    modes: Mapping[str, str]  # upper case
    keys: Mapping[str, str]
    keys_in: Mapping[str, Mapping[str, str]]
    one_token_per_request: bool
    shapes: bool

    @property
    def anchored(self) -> str:
        """The pattern for the whole text; flags such as ``(?i)`` stay in front."""
        flags, rest = re.match(r"(\(\?[a-z]+\))?(.*)", self.pattern, re.DOTALL).groups()  # type: ignore[union-attr]
        return f"{flags or ''}^(?:{rest})$"


@cache
def known_grammars() -> tuple[Grammar, ...]:
    """markers.toml, read once."""
    data = load_table("markers")
    return tuple(_grammar("markers.toml", number, row) for number, row in enumerate(data["grammar"], start=1))


def list_markers() -> list[dict[str, str]]:
    """One row per grammar of markers.toml, for listings: ``engine``, ``role``, ``gives``, ``example``, ``versions``."""
    data = load_table("markers")
    return [
        {
            "engine": grammar.engine or "any",
            "role": grammar.role,
            "gives": _gives(grammar),
            "example": row["examples"][0]["text"] if row.get("examples") else grammar.pattern,
            "versions": str(row.get("about", "")),
        }
        for row, grammar in zip(data["grammar"], known_grammars(), strict=True)
    ]


def _gives(grammar: Grammar) -> str:
    """What a match tells, in a few words: a fixed phase by its name, counts by what they count."""
    columns = {*_groups(grammar.id, grammar.pattern), *grammar.keys.values()}
    columns |= {column for table in grammar.keys_in.values() for column in table.values()}
    fixed = grammar.phase in ("prefill", "decode", "mixed", "other")
    phase = [str(grammar.phase) if fixed else "phase"] if grammar.role == "step" else []
    words = (
        ("requests", "requests"), ("tokens", "tokens"), ("kv", "KV lengths"), ("width", "verify width"),
        ("index", "step number"), ("part", "part"), ("module", "module"),
    )  # fmt: skip
    told = [word for ending, word in words if any(column.endswith(ending) for column in columns)]
    return ", ".join([*phase, *told, *(["shapes"] if grammar.shapes else [])]) or "-"


def read_marker_file(path: Path) -> tuple[Grammar, ...]:
    """A user's grammars. Raises ``UsageError`` that names the table, the key and what is allowed."""
    data = read_user_file("--markers", path)
    rows = data.get("grammar")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"--markers {path.name}: it needs at least one [[grammar]] table with a pattern.")
    return tuple(_grammar(f"--markers {path.name}", number, row) for number, row in enumerate(rows, start=1))


def _grammar(file: str, number: int, row: object) -> Grammar:
    where = f"{file}, grammar {number}"
    if not isinstance(row, dict) or not isinstance(row.get("pattern"), str):
        raise UsageError(f"{where}: needs a pattern (a regular expression in quotes).")
    _check_words(where, "key", row, _KEYS)
    where = f"{where} ({row.get('id', row['pattern'])})"
    role, phase = row.get("role", "step"), row.get("phase")
    modes = {word.upper(): meaning for word, meaning in _table(where, row, "modes").items()}
    _check_words(where, "role", [role], ROLES)
    _check_words(where, "phase", [] if phase is None else [phase], PHASE_RULES)
    _check_words(where, "meaning of a mode", modes.values(), MODE_PHASES)
    _check_words(where, "group", _groups(where, row["pattern"]), _GROUPS)
    keys = _table(where, row, "keys")
    keys_in = {phase: _table(where, _table(where, row, "keys_in"), phase) for phase in row.get("keys_in", {})}
    columns = [column for table in (keys, *keys_in.values()) for column in table.values()]
    _check_words(where, "column", columns, {*COUNTS, *_TOTALS})
    if role == "step" and phase is None and not modes:
        counted = set(_groups(where, row["pattern"])) & {"prefill_requests", "decode_requests", *COUNTS[1:4:2]}
        if not counted:
            raise UsageError(f"{where}: a step needs a phase, modes, or groups such as prefill_requests.")
        phase = "by_counts"
    return Grammar(
        id=str(row.get("id", f"user rule {number}")),
        pattern=row["pattern"],
        role=role,
        engine=row.get("engine"),
        phase=phase,
        modes=modes,
        keys=keys,
        keys_in=keys_in,
        one_token_per_request=row.get("decode_tokens_default") == "requests",
        shapes=row.get("shapes", False),
    )


def _table(where: str, row: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = row.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{where}: {name} must be a table, such as {{ a = 'b' }}.")
    return table


def _groups(where: str, pattern: str) -> tuple[str, ...]:
    try:
        pl.Series([""]).str.contains(pattern, strict=True)
        return tuple(re.findall(r"\(\?P?<(\w+)>", pattern))
    except pl.exceptions.ComputeError as error:
        reason = " ".join(str(error).partition("This error occurred")[0].split()).rstrip(".")
        raise UsageError(f"{where}: the pattern is no regular expression: {reason}.") from error


def _check_words(where: str, what: str, words: Iterable[str], allowed: Iterable[str]) -> None:
    for word in words:
        if word not in set(allowed):
            raise UsageError(f"{where}: unknown {what} {word!r}; known are {', '.join(sorted(allowed))}.")


# -- reading -----------------------------------------------------------------------------------------------------------


def parse_texts(texts: pl.DataFrame, extra: Path | None = None) -> pl.DataFrame:
    """What each text says: one row per row of ``texts`` (columns of ``Trace.texts``), in its order.

    Columns: ``MARKER_FACTS``; all but ``text_id`` are null for a text no grammar knows. ``extra`` is a user's file of
    grammars (``read_marker_file``), tried before the known ones.
    """
    grammars = (*(read_marker_file(extra) if extra else ()), *known_grammars())
    frame = texts.select("text_id", raw=pl.col("text").fill_null("")).with_row_index("row")
    has_tail = frame["raw"].str.contains(_HAS_TAIL)
    plain = frame["raw"]
    if has_tail.any():
        plain = plain.zip_with(~has_tail, plain.str.replace(_TAIL, ""))
    frame = frame.with_columns(text=plain)
    found = _match(frame.filter(_possible(plain, grammars)).select("row", "text"), grammars)
    found += _operator_shapes(frame.filter(has_tail).select("row", "raw", "text"))
    return _assemble(texts["text_id"], found)


def _possible(texts: pl.Series, grammars: Sequence[Grammar]) -> pl.Series:
    """Texts that some grammar matches, by one combined expression without groups."""
    parts = []
    for grammar in grammars:
        pattern = re.sub(r"\(\?P?<\w+>", "(?:", grammar.pattern)
        flags = re.match(r"\(\?([a-z]+)\)(.*)", pattern, re.DOTALL)
        parts.append(f"(?{flags[1]}:{flags[2]})" if flags else f"(?:{pattern})")
    return texts.str.contains("^(?:" + "|".join(parts) + ")$")


def _match(pending: pl.DataFrame, grammars: Iterable[Grammar]) -> list[pl.DataFrame]:
    found = []
    for grammar in grammars:
        if pending.is_empty():
            break
        hit = pending["text"].str.contains(grammar.anchored)
        if hit.any():
            found.append(_read(pending.filter(hit), grammar))
            pending = pending.filter(~hit)
    return found


def _read(matched: pl.DataFrame, grammar: Grammar) -> pl.DataFrame:
    """The columns one grammar reads from the texts it matched."""
    frame = matched
    if re.search(r"\(\?P?<", grammar.pattern):
        groups = matched["text"].str.extract_groups(grammar.anchored).struct.unnest()
        known = [column for column in groups.columns if column in _GROUPS]
        frame = frame.hstack(groups.select(known))
    frame = frame.with_columns(
        pl.col(column).cast(pl.Int64, strict=False) for column in frame.columns if column in {*COUNTS, *_TOTALS}
    )
    if "mode" in frame.columns:
        meaning = (
            pl.col("mode").str.to_uppercase().replace_strict(grammar.modes, default="unknown", return_dtype=pl.String)
        )
        frame = frame.with_columns(meaning=meaning)
    if "pairs" in frame.columns:
        frame = read_pairs(frame, grammar.keys, grammar.keys_in)
    frame = finish_counts(frame, grammar.phase, one_token_per_request=grammar.one_token_per_request)
    if "part" in frame.columns and grammar.role in {"part", "edge"}:
        lowered = pl.col("part").str.to_lowercase() if grammar.engine is None else pl.col("part")
        frame = frame.with_columns(part=lowered)
    if grammar.shapes:
        frame = frame.with_columns(shapes=_module_shapes(frame["text"]))
    return frame.with_columns(
        grammar=pl.lit(grammar.id), engine=pl.lit(grammar.engine, dtype=pl.String), role=pl.lit(grammar.role)
    )


def _operator_shapes(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Operators recorded with their input sizes (emit_nvtx with record_shapes)."""
    if frame.is_empty():
        return []
    behind = frame["raw"].str.splitn(", sizes = ", 2).struct.field("field_1")
    sizes = behind.str.splitn(", input_op_ids = ", 2).struct.field("field_0")
    with_sizes = frame.with_columns(sizes=sizes).filter(pl.col("sizes").is_not_null())
    if with_sizes.is_empty():
        return []
    return [
        with_sizes.select(
            "row",
            grammar=pl.lit("emit_nvtx"),
            engine=pl.lit(None, dtype=pl.String),
            role=pl.lit("shape"),
            part=pl.col("text"),
            shapes=_decode_lists(with_sizes["sizes"]),
        )
    ]


def _decode_lists(text: pl.Series) -> pl.Series:
    """'[[16, 4096], []]' as lists; null where the text is anything else (lists of tensors nest deeper)."""
    shapes = pl.DataFrame({"text": text})
    distinct = shapes.unique("text").filter(pl.col("text").str.contains(_NESTED_LIST))
    decoded = distinct.with_columns(lists=pl.col("text").str.json_decode(pl.List(pl.List(pl.Int64))))
    return shapes.join(decoded, on="text", how="left", maintain_order="left")["lists"]


def _module_shapes(text: pl.Series) -> pl.Series:
    """Shapes in a layer-wise marker: inputs first, then the parameters."""
    inputs = text.str.extract(r"'Inputs': \[((?:\[[\d, ]*\](?:, )?)*)\]", 1).fill_null("")
    parameters = (
        text.str.extract(r"'TrainableParams': \{([^}]*)\}", 1)
        .fill_null("")
        .str.extract_all(r"\[[\d, ]*\]")
        .list.join(", ")
    )
    both = pl.DataFrame({"inputs": inputs, "parameters": parameters}).select(
        pl.concat_str(
            pl.lit("["),
            pl.concat_list("inputs", "parameters").list.eval(pl.element().filter(pl.element() != "")).list.join(", "),
            pl.lit("]"),
        )
    )
    lists = _decode_lists(both.to_series())
    return lists.zip_with(lists.list.len() > 0, pl.Series([None], dtype=lists.dtype).new_from_index(0, len(lists)))


def _assemble(text_ids: pl.Series, found: list[pl.DataFrame]) -> pl.DataFrame:
    columns = [column for column in MARKER_FACTS if column != "text_id"]
    aligned = [
        part.select("row", *(
            pl.col(column).cast(MARKER_FACTS[column]) if column in part.columns else pl.lit(None, dtype=MARKER_FACTS[column]).alias(column)
            for column in columns
        ))
        for part in found
    ]  # fmt: skip
    if not aligned:
        empty = pl.DataFrame(schema=dict(MARKER_FACTS))
        return pl.concat([pl.DataFrame({"text_id": text_ids}), empty.drop("text_id")], how="diagonal").select(
            list(MARKER_FACTS)
        )
    everything = pl.concat(aligned).unique("row", keep="first", maintain_order=True)
    rows = pl.DataFrame({"text_id": text_ids}).with_row_index("row")
    return rows.join(everything, on="row", how="left", maintain_order="left").select(list(MARKER_FACTS))
