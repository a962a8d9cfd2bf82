"""Which model ran, on how many ranks, with which data types: given, read off the command line, or recognised.

Every answer carries its source, and what contradicts it is reported. Without an answer the work of a GEMM is unknown
(or comes from shapes recorded in the capture), never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import polars as pl

from ...facts.name_signs import sign_pattern
from ...models.find_model import find_model, known_models
from ...models.load_model import load_model
from ...models.model_shape import BYTES_PER_ELEMENT, ModelShape
from ...models.usual_storage import USUAL_STORAGE
from ...phases import PhaseResult
from ...records.errors import UsageError
from ...records.options import Options
from ...records.trace import ServingFacts
from ..operators.layer_matrices import RankShape
from ..work_input import WorkInput
from .cross_checks import NameUse, against_kernels, name_use, packed_by_names
from .launch_grids import Fitting

DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "fp8_inc": "fp8",
    "w8a8": "int8",
    "w8a8_int8": "int8",
    "w8a8_fp8": "fp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "w4a16": "int4",
    "w4a16_awq": "int4",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
    "modelopt_fp4": "fp4",
    "modelopt": "fp8",
    "fbgemm_fp8": "fp8",
}


@dataclass(frozen=True)
class ModelChoice:
    """The model whose work is counted. ``shape`` or ``tensor_parallel`` None = unknown, with ``reason``."""

    shape: ModelShape | None
    source: str | None  # 'option' | 'command_line' | 'recognised'
    tensor_parallel: int | None
    tensor_parallel_source: str | None  # 'option' | 'command_line' | 'group' | 'world_size' | 'no_collectives'
    candidates: tuple[str, ...] = ()
    reason: str | None = None
    notes: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def rank(self) -> RankShape | None:
        """The share of one rank, where both model and ranks are known."""
        if self.shape is None or self.tensor_parallel is None or self.shape.needs_layer_kinds:
            return None
        return RankShape(self.shape, self.tensor_parallel)


Recogniser: TypeAlias = Callable[[tuple[ModelShape, ...], int], Fitting]


@dataclass
class _Notes:
    notes: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)


def choose_model(given: WorkInput, recognise: Recogniser | None = None) -> ModelChoice:
    """Choose the model: ``--model``, else the recorded command line, else recognised from layers and geometry.

    ``recognise(candidates, tensor_parallel)`` keeps the models that fit the shapes and launch grids
    (``launch_grids``); a layer count alone names nobody.
    Raises UsageError for an unknown ``--model``, ``--weight-dtype`` or ``--kv-dtype``.
    """
    _check_dtypes(given.options)
    said = _Notes()
    use = name_use(given.phases, given.name_facts.height)
    tensor_parallel, tp_source = _tensor_parallel(given, use, said)
    shape, source, candidates = _named(given.options, given.trace.capture.serving, said)
    if shape is None and source is None:
        candidates = _fitting(given.phases, given.name_facts, known_models())
        if recognise is not None and tensor_parallel is not None and candidates:
            fitting = recognise(candidates, tensor_parallel)
            candidates, shape = fitting.models, _recognised(fitting, said)
            source = "recognised" if shape is not None else None
    if shape is not None:
        shape = _as_served(given, shape, said)
        said.contradictions += against_kernels(shape, tensor_parallel, tp_source, given.name_facts, use)
        packed = packed_by_names(shape, given.name_facts, use)
        if packed:
            (said.contradictions if given.options.weight_dtype else said.notes).append(packed)
    return ModelChoice(
        shape=shape,
        source=source,
        tensor_parallel=tensor_parallel,
        tensor_parallel_source=tp_source,
        candidates=tuple(dict.fromkeys(each.name for each in candidates)),
        reason=_why_no_work(shape, tensor_parallel),
        notes=tuple(said.notes) + (shape.notes if shape is not None else ()),
        contradictions=tuple(said.contradictions),
    )


def _recognised(fitting: Fitting, said: _Notes) -> ModelShape | None:
    """The first model that fits, where all that do have its architecture."""
    if not fitting.confirmed or not fitting.models:
        return None
    shape, *others = fitting.models
    if not all(same_architecture(each, shape) for each in others):
        return None
    names = ", ".join(each.name for each in others)
    said.notes.append(
        f"model recognised as {shape.name} by its layer count, shapes and launch grids"
        + (f" (equal in shape: {names})" if names else "")
    )
    return shape


def _as_served(given: WorkInput, shape: ModelShape, said: _Notes) -> ModelShape:
    """The shape with the data types of options, command line and kernels; other layers than those seen are reported."""
    options, serving = given.options, given.trace.capture.serving
    shape = _with_dtypes(shape, options, serving, said)
    if normalise_dtype(options.kv_dtype or serving.kv_cache_dtype) is None:
        shape = _kv_of_names(shape, given.name_facts, said)
    _check_layers(shape, given.phases, serving, said)
    return shape


def _why_no_work(shape: ModelShape | None, tensor_parallel: int | None) -> str | None:
    """Why kernels get no work by the model; None where they do."""
    if shape is None:
        return "model not known: pass --model with a name or a config.json"
    if tensor_parallel is None:
        return "tensor-parallel size not known (the capture has collectives in every layer): pass --tp"
    if shape.needs_layer_kinds:
        return f"layers of {shape.name} are of several kinds: their work is not given to single kernels"
    return None


def _named(
    options: Options, serving: ServingFacts, said: _Notes
) -> tuple[ModelShape | None, str | None, tuple[ModelShape, ...]]:
    recorded = find_model(serving.model) if serving.model else None
    if options.model:
        shape = load_model(options.model)
        if recorded is not None and same_architecture(recorded, shape):
            if shape.quantisation is None and recorded.quantisation is not None:  # the recorded name tells the storage
                shape = replace(
                    shape,
                    weight_dtype=recorded.weight_dtype,
                    quantisation=recorded.quantisation,
                    notes=(*shape.notes, *recorded.notes),
                )
        elif recorded is not None:
            said.contradictions.append(
                f"--model says {shape.name}, the recorded command line {serving.model}: the flag is used"
            )
        return shape, "option", (shape,)
    if recorded is not None:
        said.notes.append(f"model {recorded.name} taken from the recorded command line")
        return recorded, "command_line", (recorded,)
    if serving.model:
        said.notes.append(f"the command line names {serving.model}, which is not in the table of models")
        return None, "command_line", ()
    return None, None, ()


def same_architecture(one: ModelShape, other: ModelShape) -> bool:
    """Whether two shapes differ in name, storage and attention window at most."""
    return _plain(one) == _plain(other)


def _plain(shape: ModelShape) -> ModelShape:
    """The shape without name, storage and attention window."""
    named = replace(shape, name="", notes=(), sliding_window=None, sliding_layers=())
    return replace(named, weight_dtype="", activation_dtype="", kv_dtype="", quantisation=None)


def _tensor_parallel(given: WorkInput, use: NameUse, said: _Notes) -> tuple[int | None, str | None]:
    options, capture = given.options, given.trace.capture
    grouped = given.phases.groups.filter(pl.col("kind") == "tensor_parallel")
    ranks = max([1, *grouped["devices"].list.len().drop_nulls()])
    serving = capture.serving
    if options.tensor_parallel:
        if ranks > 1 and ranks != options.tensor_parallel:
            said.contradictions.append(
                f"--tp {options.tensor_parallel}, but {ranks} devices run one step together: the flag is used"
            )
        return options.tensor_parallel, "option"
    if serving.tensor_parallel:
        return serving.tensor_parallel, "command_line"
    if ranks > 1:
        return ranks, "group"
    if not _reduces_every_layer(given.name_facts, use):
        return 1, "no_collectives"
    world = capture.world_size
    if world and world > 1:
        said.notes.append(f"tensor-parallel size taken as the capture's world size, {world}")
        return world, "world_size"
    return None, None


def _reduces_every_layer(name_facts: pl.DataFrame, use: NameUse) -> bool:
    """Whether each layer ends in a collective: at least one for every attention kernel."""

    def number(op_class: str) -> int:
        return int(use.count[(name_facts["op_class"] == op_class).to_numpy()].sum())

    collectives = number("collective")
    return collectives > 0 and collectives >= number("attention")


def _fitting(phases: PhaseResult, name_facts: pl.DataFrame, models: Mapping[str, ModelShape]) -> tuple[ModelShape, ...]:
    """Models of the table with this layer count, and experts or latent attention where the kernels show them."""
    if phases.layers is None or not phases.autoregressive:
        return ()
    experts = bool((name_facts["op_class"] == "moe_gemm").any())
    names = name_facts["library"].fill_null("") + " " + name_facts["short_name"].fill_null("")
    latent = bool(names.str.contains(sign_pattern("latent_attention")).any())
    return tuple(
        model
        for model in models.values()
        if not model.needs_layer_kinds
        and model.layers == phases.layers
        and bool(model.experts) == experts
        and model.is_mla == latent
    )


def _check_layers(shape: ModelShape, phases: PhaseResult, serving: ServingFacts, said: _Notes) -> None:
    if phases.layers is None or phases.layers == shape.layers:
        return
    stages = serving.pipeline_parallel or 1
    if stages > 1 and -(-shape.layers // stages) == phases.layers:
        return
    said.contradictions.append(
        f"{phases.layers} layers seen in the capture, {shape.name} has {shape.layers}: "
        "its FLOPs and bytes per layer may be those of another model"
    )


def normalise_dtype(name: str | None) -> str | None:
    """A data type as this package writes it, or None for ``auto`` and what is not known."""
    if not name:
        return None
    folded = re.sub(r"[^a-z0-9_]", "_", name.lower())
    folded = DTYPES.get(folded, folded)
    return folded if folded in BYTES_PER_ELEMENT else None


def _check_dtypes(options: Options) -> None:
    for flag, given in (("--weight-dtype", options.weight_dtype), ("--kv-dtype", options.kv_dtype)):
        if given is not None and given != "auto" and normalise_dtype(given) is None:
            known = ", ".join(BYTES_PER_ELEMENT)
            raise UsageError(f"{flag}: unknown {given!r}; choose of {known}, or an engine's name such as awq.")


def _with_dtypes(shape: ModelShape, options: Options, serving: ServingFacts, said: _Notes) -> ModelShape:
    """The shape with the data types of options and command line."""
    activations = normalise_dtype(serving.dtype)
    if activations and shape.quantisation is None:
        shape = replace(shape, weight_dtype=activations, activation_dtype=activations, kv_dtype=activations)
    elif activations:
        shape = replace(shape, activation_dtype=activations, kv_dtype=activations)
    stored = options.weight_dtype or serving.quantization
    if stored:
        weight = normalise_dtype(stored)
        if weight is None:
            said.notes.append(f"weight storage {stored!r} is not known: weights counted as {shape.weight_dtype}")
        elif weight in ("int4", "int8", "fp8", "fp4"):
            if shape.quantisation is None or weight != shape.weight_dtype:
                usual = USUAL_STORAGE.get(stored.lower().split("_")[0], USUAL_STORAGE[weight])
                shape = replace(shape, weight_dtype=weight, quantisation=usual)
        else:
            shape = replace(shape, weight_dtype=weight, activation_dtype=weight, quantisation=None)
    kv = normalise_dtype(options.kv_dtype or serving.kv_cache_dtype)
    return replace(shape, kv_dtype=kv) if kv else shape


def _kv_of_names(shape: ModelShape, name_facts: pl.DataFrame, said: _Notes) -> ModelShape:
    """The shape with an fp8 cache where every attention kernel that names its type computes in fp8."""
    kinds = set(name_facts.filter(pl.col("op_class") == "attention")["dtype"].drop_nulls().to_list())
    if kinds != {"fp8"} or shape.kv_dtype == "fp8":
        return shape
    said.notes.append("KV cache counted as fp8: the attention kernels' names say so")
    return replace(shape, kv_dtype="fp8")
