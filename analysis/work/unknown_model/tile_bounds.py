"""Work of GEMMs of an unknown model, bounded by tiles and grids.

A launch tells an interval of outputs (``tile_grids``). Inputs are in no name and no grid, but a decoder layer is a
chain: what ``o`` and ``down`` put out is the hidden width that qkv, gate_up and lm_head read; ``down`` reads the width
of the MLP, ``o`` that of attention's heads. So each matrix gets bounds of N and of K. Where the two ends of N K are
within ``MAX_BOUNDS_SPREAD`` of each other the work is filled in, else the bounds are said as a reason. Launches that contradict each
other, experts and latent attention leave all unknown: there the chain is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ..kernel_work import NAME, UNKNOWN, KernelWork, PlacedKernels, WorkLayer, gemm_rows
from ..model_choice.choose_model import ModelChoice
from ..operators.gemm_orders import OP_CODE, PLACE_CODE, PLACES
from ..sources.shape_work import element_bytes
from ..work_input import WorkInput
from .matrix_bounds import MatrixBounds, WidthBounds
from .tile_grids import DENSE, Widths, common, outputs_of_places, tiled_launches, union
from .tile_rules import HeadRule, plain_names, tile_rules

Floats = npt.NDArray[np.float64]

MAX_WIDTHS_IN_QKV = 4  # q, k, v and an output gate of equal width: attention reads at least a quarter of them
MAX_UNPLACED_SHARE = 0.05  # of GEMMs without a place: beyond it the layers are of another build
MAX_LACKING_SHARE = 0.1  # of layers that lack one of their GEMMs: a capture's edges and lost kernels
HEAD_DIM_STEP = 8  # head dimensions are multiples of this
EVERY_LAYER = (("qkv", "q"), ("o",), ("gate_up", "gate"), ("down",))  # what each layer has once
READS_HIDDEN = ("qkv", "q", "k", "v", "kv", "gate_up", "gate", "up", "lm_head")


class WidthContradiction(Exception):
    """Widths that should be one are not."""


def roundest(low: int, high: int) -> int:
    """The multiple of the largest power of two from ``low`` to ``high``: widths of models are such numbers."""
    power = 1
    while high // (2 * power) * 2 * power >= low:
        power *= 2
    return high // power * power


def bound_by_tiles(given: WorkInput, kernels: PlacedKernels) -> MatrixBounds | None:
    """Bounds of this capture's matrices; None where it launches no GEMM with a block per tile in a layer."""
    if not given.phases.autoregressive:
        return None
    launches = tiled_launches(given, kernels)
    if launches.is_empty():
        return None
    used = np.zeros(given.name_facts.height, np.bool_)
    used[kernels.name[kernels.step >= 0]] = True
    try:
        _require_plain_layers(given.name_facts, kernels, used)
        widths = outputs_of_places(launches)
        dense = {place: own for place, own in widths.items() if place in DENSE}
        chain = LayerWidths(dense, _heads(given, kernels, used), _gated(given.trace.names, kernels, used))
    except WidthContradiction as why:
        return MatrixBounds({}, {}, (f"GEMM work is not bounded by tiles and grids: {why}",))
    return chain.bounds(widths.get("lm_head"))


def _require_plain_layers(facts: pl.DataFrame, work: PlacedKernels, used: npt.NDArray[np.bool_]) -> None:
    """Raise WidthContradiction where the kernels are not those of dense layers with ordinary attention."""
    if (used & (work.names.op == OP_CODE["moe_gemm"])).any():
        raise WidthContradiction("layers with experts are no plain chain")
    texts = facts["library"].fill_null("") + " " + facts["short_name"].fill_null("")
    for rule in tile_rules().no_chain:
        if (used & texts.str.contains(rule.regex).to_numpy()).any():
            raise WidthContradiction(rule.says)
    gemm = (work.names.op == OP_CODE["gemm"])[work.name] & np.append(work.countable, False)[work.step]
    times = np.bincount(work.place[gemm], minlength=len(PLACES))
    if times[0] > MAX_UNPLACED_SHARE * times.sum():
        raise WidthContradiction("its layers hold GEMMs of no known place")
    layers = [sum(int(times[PLACE_CODE[place]]) for place in places) for places in EVERY_LAYER]
    if min(layers) < (1.0 - MAX_LACKING_SHARE) * max(layers):
        raise WidthContradiction("not every layer has the GEMMs of a plain one")


@dataclass(frozen=True)
class Heads:
    """Heads that the grids of attention and rotary kernels count, and the dimensions a head can have.

    ``told`` are counts of 'query' heads, 'kv' heads or 'both' together.
    """

    told: Mapping[str, int]
    dimensions: tuple[int, ...]

    def agree(self, query: int, kv: int) -> bool:
        """Whether so many heads are those of the grids."""
        own = {"query": query, "kv": kv, "both": query + kv}
        return query % kv == 0 and all(own[kind] == count for kind, count in self.told.items())

    def possible(self) -> list[tuple[int, int, int]]:
        """(query heads, kv heads, dimension) that the grids allow."""
        most = self.told.get("query", self.told.get("both", 0))
        pairs = [(q, kv) for q in range(1, most + 1) for kv in range(1, q + 1) if self.agree(q, kv)]
        return [(q, kv, size) for q, kv in pairs for size in self.dimensions]


def _heads(given: WorkInput, work: PlacedKernels, used: npt.NDArray[np.bool_]) -> Heads | None:
    """Heads of the kernels in use; None where the grids do not tell query heads. Raises WidthContradiction for two answers.

    KV heads alone are not enough: what of qkv is queries and what an output gate would be a guess.
    """
    facts, kernels = given.name_facts, given.phases.kernels
    names = np.flatnonzero(used & np.isin(work.names.op, [OP_CODE["attention"], OP_CODE["rope"]]))
    plain = plain_names(given.trace.names["name"].gather(names))
    found: dict[str, set[int]] = {}
    dimensions: set[int] | None = None
    for rule in tile_rules().heads:
        for at in np.flatnonzero(plain.str.contains(rule.regex).to_numpy()):
            name = int(names[at])
            own = _dimensions(rule, plain[int(at)], facts["head_dim"][name])
            said = ((rule.causal, facts["is_causal"][name]), (rule.split, facts["split_kv"][name]))
            if any(wanted is not None and own_flag is not wanted for wanted, own_flag in said):
                continue
            if own is not None:
                dimensions = own if dimensions is None else dimensions & own
            rows = np.flatnonzero((work.name == name) & (work.step >= 0))
            found.setdefault(rule.counts, set()).update(kernels[rule.axis].gather(rows).unique())
    if dimensions is None or not found.keys() & {"query", "both"}:
        return None
    if not dimensions or any(len(counts) > 1 for counts in found.values()):
        raise WidthContradiction("attention kernels are launched for different heads")
    return Heads({kind: counts.pop() for kind, counts in found.items()}, tuple(sorted(dimensions)))


def _dimensions(rule: HeadRule, name: str, told: int | None) -> set[int] | None:
    """Head dimensions that a kernel of this name can serve; None where it does not say."""
    if rule.head_dim is not None:
        group = pl.Series([name]).str.extract(rule.head_dim)[0]
        return None if group is None else {int(group) * rule.times}
    if told is None:
        return None
    if rule.rounded is None:
        return {told}
    return set(range(told, max(told - rule.rounded, 0), -HEAD_DIM_STEP))


def _gated(names: pl.DataFrame, work: PlacedKernels, used: npt.NDArray[np.bool_]) -> bool | None:
    """Whether the activation halves what the GEMM before it puts out; None where its kernels do not say."""
    activations = np.flatnonzero(used & (work.names.op == OP_CODE["activation"]))
    answers: set[bool | None] = set()
    for name in plain_names(names["name"].gather(activations)):
        said = [rule.gated for rule in tile_rules().mlp if pl.Series([name]).str.contains(rule.regex)[0]]
        answers.add(said[0] if said else None)
    return answers.pop() if len(answers) == 1 else None


class LayerWidths:
    """The widths of a dense decoder layer, each the intervals that all its matrices allow."""

    def __init__(self, widths: Mapping[str, Widths], heads: Heads | None, gated: bool | None) -> None:
        for place, own in widths.items():
            if not own:
                raise WidthContradiction(f"the launches of {place} do not fit one matrix")
        self.widths = widths
        self.hidden = self._one("o", "down")
        self.kv = self._one("k", "v")
        self.gated = gated
        self.mlp = self._mlp()
        self.qkv, self.attention = self._attention(heads)

    def _one(self, *places: str) -> Widths | None:
        """The width that these places share, None where none of them is known."""
        known = [self.widths[place] for place in places if place in self.widths]
        if not known:
            return None
        shared = known[0]
        for other in known[1:]:
            shared = common(shared, other)
        if not shared:
            raise WidthContradiction(f"{' and '.join(places)} should put out the same width and do not")
        return shared

    def _mlp(self) -> Widths | None:
        """Inputs of ``down``."""
        split = self._one("gate", "up")
        both = self.widths.get("gate_up")
        if both is None:
            return split
        halves = union((-(-low // 2), high // 2) for low, high in both)
        own = {True: halves, False: both, None: ((halves[0][0], both[-1][1]),)}[self.gated]
        shared = own if split is None else common(own, split)
        if not shared:
            raise WidthContradiction("gate_up is not as wide as gate and up")
        return shared

    def _attention(self, heads: Heads | None) -> tuple[Widths | None, Widths | None]:
        """Outputs of qkv, and inputs of ``o``: the query heads."""
        queries, qkv = self.widths.get("q"), self.widths.get("qkv")
        if heads is not None:
            fits = [
                (query * size, (query + 2 * kv) * size)
                for query, kv, size in heads.possible()
                if _holds(queries, query * size)
                and _holds(self.kv, kv * size)
                and _holds(self.widths.get("kv"), 2 * kv * size)
                and _holds(qkv, (query + 2 * kv) * size)
            ]
            if not fits and (queries or qkv):
                raise WidthContradiction("the heads of attention do not make the outputs of qkv")
            if fits:
                own = union((query, query) for query, _ in fits)
                return (union((both, both) for _, both in fits) if qkv else None), own
        wide = queries or qkv  # q may be qkv, where another GEMM beside it was read as kv
        return qkv, ((-(-wide[0][0] // MAX_WIDTHS_IN_QKV), wide[-1][1]),) if wide else None

    def bounds(self, head: Widths | None) -> MatrixBounds:
        """Bounds of all matrices whose outputs and inputs are known."""
        hidden, attention = _bounds(self.hidden), _bounds(self.attention)
        mlp = _bounds(self.mlp)
        outputs = {place: _bounds(own) for place, own in self.widths.items()}
        outputs |= dict.fromkeys(("o", "down"), hidden) | {"qkv": _bounds(self.qkv), "lm_head": _bounds(head)}
        if self.kv is not None:
            outputs |= {"k": _bounds(self.kv), "v": _bounds(self.kv)}
        if "gate" in self.widths or "up" in self.widths:
            outputs |= {"gate": mlp, "up": mlp}
        if "gate_up" in self.widths and mlp is not None and self.gated is not None:
            times = 2 if self.gated else 1
            widest = outputs["gate_up"]
            assert widest is not None
            outputs["gate_up"] = WidthBounds(widest.low, widest.high, times * mlp.counted)
        inputs = dict.fromkeys(READS_HIDDEN, hidden) | {"o": attention, "down": mlp}
        known = {place: own for place, own in outputs.items() if own is not None}
        read = {place: own for place, own in inputs.items() if own is not None}
        return MatrixBounds(known, read, _notes(known, read))


def _holds(widths: Widths | None, value: int) -> bool:
    return widths is None or any(low <= value <= high for low, high in widths)


def _bounds(widths: Widths | None) -> WidthBounds | None:
    if not widths:
        return None
    inside = max((roundest(low, high) for low, high in widths), key=lambda width: (width & -width, width))
    return WidthBounds(widths[0][0], widths[-1][1], inside)


def _notes(outputs: Mapping[str, WidthBounds], inputs: Mapping[str, WidthBounds]) -> tuple[str, ...]:
    known = [place for place in (*DENSE, "lm_head") if place in outputs and place in inputs]
    if not known:
        return ("tiles and grids of GEMMs tell no width that another GEMM reads: their work is unknown",)
    said = "; ".join(f"{place} {outputs[place]} x {inputs[place]}" for place in known)
    return (f"no model known: matrices (outputs x inputs on one rank) bounded by tiles and grids: {said}",)


def bounded_layers(work: KernelWork, bounds: MatrixBounds, choice: ModelChoice) -> Iterator[WorkLayer]:
    """The work of GEMMs whose bounds are close: source ``name``.

    Bytes stay unknown where the name does not tell how a weight is stored; packed types of under a byte, whose scales
    no name tells, count as not told.
    """
    close = bounds.close()
    if not close.any():
        return
    gemm = (work.names.op == OP_CODE["gemm"]) | (work.names.op == OP_CODE["gemm_reduce"])
    rows = np.flatnonzero(gemm[work.name] & close[work.place] & (work.source == UNKNOWN) & (work.step >= 0))
    rows = rows[work.countable[work.step[rows]]]
    useful, executed = gemm_rows(work, rows)
    outputs, inputs = np.zeros(len(PLACES)), np.zeros(len(PLACES))
    for place in bounds.outputs.keys() & bounds.inputs.keys():
        outputs[PLACE_CODE[place]] = bounds.outputs[place].counted
        inputs[PLACE_CODE[place]] = bounds.inputs[place].counted
    n, k = outputs[work.place[rows]], inputs[work.place[rows]]
    told = work.names.weight_bytes[work.name[rows]]
    weights = np.where(told < 1.0, np.nan, told) * n * k
    own = ~work.helper[rows]  # a split-K reduction: its work is that of the GEMM before it
    yield WorkLayer(
        rows,
        flop=np.where(own, 2.0 * useful * n * k, 0.0),
        flop_executed=np.where(own, 2.0 * executed * n * k, 0.0),
        # the least bytes of a GEMM whose rows are unknown are its weights
        bytes=np.where(own, weights + element_bytes(work, rows, choice) * np.nan_to_num(useful) * (n + k), 0.0),
        weights=np.where(own, weights, 0.0),
        kv=np.zeros(len(rows)),
        source=np.full(len(rows), NAME, np.uint8),
    )
