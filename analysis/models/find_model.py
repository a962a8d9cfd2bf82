"""Models by the names people type: the table ``models.toml``, name endings that tell quantisation, and ``--model``.

The shape itself and what is counted from it live in ``model_shape``; both are importable from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from ..facts.load import load_table
from .hf_config import shape_of
from .layer_kinds import LinearMap
from .model_shape import (
    BYTES_PER_ELEMENT,
    ModelShape,
    Quantisation,
    bytes_per_weight,
    kv_bytes_per_token,
    kv_elements_per_token_and_layer,
    linear_maps,
    parameters_active,
    parameters_total,
    ridge_batch,
    sliding_by_period,
    weight_bytes_per_token,
)

__all__ = [
    "BYTES_PER_ELEMENT",
    "LinearMap",
    "ModelShape",
    "Quantisation",
    "bytes_per_weight",
    "find_model",
    "fold_name",
    "known_models",
    "kv_bytes_per_token",
    "kv_elements_per_token_and_layer",
    "linear_maps",
    "list_models",
    "model_names",
    "parameters_active",
    "parameters_total",
    "ridge_batch",
    "weight_bytes_per_token",
]

_LONGEST_ENDING = 4  # words of a name that may belong to one ending: Q4_K_M, AWQ-INT4
_RIDGE_GPUS = {"ridge_batch_a100": "a100-80gb", "ridge_batch_h100": "h100-sxm"}


@dataclass(frozen=True)
class Ending:
    """What a name's ending says: nothing about the shape, or how the weights are stored."""

    quantisation: Quantisation | None = None
    weight_dtype: str | None = None  # None: the ending says nothing about the weights
    note: str | None = None


@cache
def known_models() -> Mapping[str, ModelShape]:
    """The models of ``models.toml`` by their canonical name."""
    return {name: _known_model(name) for name in _rows()}


@cache
def _known_model(name: str) -> ModelShape:
    return _from_row(name, _rows()[name])


@cache
def _rows() -> Mapping[str, Any]:
    return _table("models")


@cache
def model_names() -> Mapping[str, str]:
    """Every spelling people type, folded, to the canonical name; without decimal points too where that is unique."""
    rows = _rows().items()
    exact = {fold_name(alias): name for name, row in rows for alias in (name, *row.get("aliases", ()))}
    pointless: dict[str, set[str]] = {}
    for folded, name in exact.items():
        pointless.setdefault(folded.replace(".", ""), set()).add(name)
    return {**{folded: min(names) for folded, names in pointless.items() if len(names) == 1}, **exact}


@cache
def name_endings() -> Mapping[str, Ending]:
    """``name_endings.toml``: endings of model names, as words joined by dashes, and what they say."""
    found: dict[str, Ending] = {}
    for row in _table("name_endings")["ending"]:
        stored = row.get("quantisation")
        ending = Ending(Quantisation(**stored) if stored else None, row.get("weight_dtype"), row.get("note"))
        found |= dict.fromkeys(("-".join(_words(word)) for word in row["words"]), ending)
    return found


def _table(file: str) -> dict[str, Any]:
    return load_table(file)


def fold_name(name: str) -> str:
    """A model name in lower case, without the owner before the last slash and without punctuation.

    A point between digits stays: opt-1.3b is not opt-13b.
    """
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", _last_part(name).lower())


def _words(name: str) -> list[str]:
    """The words of a name in lower case; points end a word except between digits."""
    return [word for word in re.split(r"[-_\s]+|\.(?=[a-z])", name.lower()) if word]


def _last_part(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def find_model(name: str) -> ModelShape | None:
    """The table's model of that name, or None.

    Endings that do not change the shape (``-Instruct``) are dropped; those that tell the storage of the weights
    (``-AWQ``, ``-FP8``, ``-GPTQ-Int4``) set the quantisation, and a note says that the name is where it comes from.
    """
    names = model_names()
    words = _words(_last_part(name))
    stored: list[tuple[str, Ending]] = []
    while words:
        joined = fold_name("-".join(words))
        canonical = names.get(joined) or names.get(joined.removeprefix("meta"))
        if canonical is not None:
            return _stored_as(_known_model(canonical), stored)
        taken = _ending(words)
        if taken is None:
            return None
        count, ending = taken
        if ending.weight_dtype is not None:
            stored.append(("-".join(words[-count:]), ending))
        words = words[:-count]
    return None


def _ending(words: Sequence[str]) -> tuple[int, Ending] | None:
    """The longest known ending of a name: how many words, and what it says."""
    endings = name_endings()
    for count in range(min(_LONGEST_ENDING, len(words) - 1), 0, -1):
        ending = endings.get("-".join(words[-count:]))
        if ending is not None:
            return count, ending
    # a date, a version or a context size; never a size: GLM-4.5-9B is no GLM-4.5
    if re.fullmatch(r"\d{4,8}|v\d+(?:\.\d+)*|\d+k", words[-1]) and len(words) > 1:
        return 1, Ending()
    return None


def storage_in_name(name: str) -> str | None:
    """The weight type that an ending of ``name`` tells, whatever model it is; None where it tells none."""
    words = _words(_last_part(name))
    while words:
        taken = _ending(words)
        if taken is None:
            return None
        if taken[1].weight_dtype is not None:
            return taken[1].weight_dtype
        words = words[: -taken[0]]
    return None


def _stored_as(shape: ModelShape, endings: Sequence[tuple[str, Ending]]) -> ModelShape:
    """``shape`` with the storage that the outermost ending names."""
    if not endings:
        return shape
    # 'AWQ-INT4' or 'unsloth-bnb-4bit': the ending with the more exact storage, the first in reading order
    word, ending = endings[-1] if endings[-1][1].quantisation is not None else endings[0]
    own, named = shape.quantisation, ending.quantisation
    if own is not None and named is not None and (own.bits, own.method) == (named.bits, named.method):
        return shape
    note = ending.note or "usual group size and exclusions assumed"
    said = f"weights counted as {ending.weight_dtype} because the name ends in {word} ({note})"
    activations = shape.activation_dtype if named is not None else str(ending.weight_dtype)
    return replace(
        shape,
        weight_dtype=str(ending.weight_dtype),
        activation_dtype=activations,
        kv_dtype=shape.kv_dtype if named is not None else activations,
        quantisation=named,
        notes=(*shape.notes, said),
    )


def list_models() -> list[dict[str, Any]]:
    """One row per model of the table, in its order, for listings.

    ``parameters``, ``parameters_active`` (counts), ``layers``, ``kv_bytes_per_token``, ``weight_dtype``, ``aliases``
    (those that differ in more than case and punctuation), and ``ridge_batch_a100`` / ``ridge_batch_h100``: tokens a step at which weight GEMMs turn compute-bound on
    an A100 SXM 80 GB / H100 SXM.
    """
    table = _rows()
    return [
        {
            "name": name,
            "parameters": parameters_total(shape),
            "parameters_active": parameters_active(shape),
            "layers": shape.layers,
            "kv_bytes_per_token": kv_bytes_per_token(shape),
            "weight_dtype": shape.weight_dtype,
            "aliases": [alias for alias in table[name].get("aliases", ()) if fold_name(alias) != fold_name(name)],
            **{column: _ridge_batch_on(shape, gpu) for column, gpu in _RIDGE_GPUS.items()},
        }
        for name, shape in known_models().items()
    ]


def _ridge_batch_on(shape: ModelShape, gpu: str) -> float | None:
    """The ridge batch at the peak the weights' arithmetic uses on this GPU; 16 bit where it has none (Marlin)."""
    from ..gpus.gpu_table import gpu_table

    row = gpu_table().typed(gpu)[0]
    kinds = {"weights": shape.weight_dtype, "activations": shape.activation_dtype}
    stored = shape.quantisation
    wanted = stored.arithmetic_at("", **kinds) if stored is not None else shape.activation_dtype
    peak = row.peaks.get(wanted) or row.peaks.get(shape.activation_dtype)
    return ridge_batch(shape, peak * 1e3 / row.bandwidth_gbps) if peak else None


def _from_row(name: str, row: Mapping[str, Any]) -> ModelShape:
    if "config" in row:  # layers of several kinds, read as the model's config.json is
        return shape_of(row["config"], file="models.toml", name=name)
    known = {field.name for field in fields(ModelShape)}
    values = {
        key: value
        for key, value in row.items()
        if key not in ("aliases", "source", "sliding_period", "chunk_period", "note")
    }
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"models.toml: {name}: unknown keys {', '.join(unknown)}")
    quantisation = values.pop("quantisation", None)
    if quantisation is not None:
        places = {"excluded": tuple(quantisation["excluded"])} if "excluded" in quantisation else {}
        values["quantisation"] = Quantisation(**{**quantisation, **places})
    if "sliding_period" in row:
        values["sliding_layers"] = sliding_by_period(row["layers"], row["sliding_period"])
    if "chunk_period" in row:
        values["chunked_layers"] = sliding_by_period(row["layers"], row["chunk_period"])
    return ModelShape(name=name, **values)
