"""How the weights at each place of a model are stored and computed with: no place stands for another.

gpt-oss keeps its experts in MXFP4 (4 bits and one byte of scale for 32 weights = 4.25 bits a weight) and everything else
at 16 bit; one number for the whole model would be wrong for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model_shape import (
    BYTES_PER_ELEMENT,
    FULL_PRECISION,
    ModelShape,
    bytes_per_weight,
    linear_maps,
    parameters_total,
)


@dataclass(frozen=True)
class PlaceWeights:
    """The weights of one place over all layers that have it.

    ``bits``: of one weight, with its share of scales and zero points, the mean over the layers; biases are counted at
    16 bit in ``stored_bytes``. ``weight_dtype``: as stored; ``arithmetic``: what kernels multiply in when their names do not
    say, and so the ceiling that binds. ``share_16_bit``: of the layers in which the place is not packed.
    """

    place: str
    parameters: int
    bits: float
    stored_bytes: float
    weight_dtype: str
    arithmetic: str
    share_16_bit: float


def weights_by_place(model: ModelShape) -> dict[str, PlaceWeights]:
    """Every place that holds weights: each matrix of ``linear_maps``, 'embedding' and 'small' (norms and the like).

    With tied embeddings the one table is read as 'lm_head' and looked up as 'embedding': it is counted once, as lm_head.
    """
    found: dict[str, PlaceWeights] = {}
    counted = 0
    for each in linear_maps(model):
        matrices = each.inputs * each.outputs * each.copies * each.layers
        before = found.get(each.place)
        own = _place(model, each.place, matrices, each.bias * each.copies * each.layers)
        found[each.place] = own if before is None else _joined(before, own)
        counted += each.parameters
    if not model.tied_embeddings:
        found["embedding"] = _place(model, "embedding", model.vocab * model.hidden, 0)
        counted += model.vocab * model.hidden
    found["small"] = _place(model, "embedding", 0, parameters_total(model) - counted, name="small")
    return found


def stored_bytes(model: ModelShape) -> float:
    """Bytes of all weights as stored: the checkpoint's size."""
    return sum(each.stored_bytes for each in weights_by_place(model).values())


def bytes_read_per_step(model: ModelShape, tensor_parallel: int = 1) -> float:
    """Bytes of weights that one rank reads in a step with so many tokens that every expert is touched.

    Everything but the embedding table (looked up by row), divided over the ranks.
    """
    places = weights_by_place(model).values()
    return sum(each.stored_bytes for each in places if each.place not in ("embedding", "small")) / tensor_parallel


def _place(model: ModelShape, place: str, weights: int, plain: int, *, name: str = "") -> PlaceWeights:
    """``weights`` packed as the place is, and ``plain`` parameters beside them at 16 bit."""
    quantisation, wide = model.quantisation, BYTES_PER_ELEMENT[model.activation_dtype]
    size = bytes_per_weight(model, place)
    share, kind, arithmetic = 0.0, model.weight_dtype, model.weight_dtype
    if quantisation is not None:
        kinds = {"weights": model.weight_dtype, "activations": model.activation_dtype}
        share = dict(quantisation.partly).get(place, 1.0 if size == wide else 0.0)
        kind = next((own for other, own, _ in quantisation.by_place if other == place), model.weight_dtype)
        arithmetic = quantisation.arithmetic_at(place, **kinds)
    elif BYTES_PER_ELEMENT[model.weight_dtype] == 2.0:
        share = 1.0
    if place in FULL_PRECISION:
        share, kind, arithmetic = 0.0, "fp32", "tf32"
    elif share > 0.5:
        kind = arithmetic = model.activation_dtype
    return PlaceWeights(
        name or place, weights + plain, 8 * size, weights * size + plain * wide, kind, arithmetic, share
    )


def _joined(one: PlaceWeights, other: PlaceWeights) -> PlaceWeights:
    """The same place in layers of two groups."""
    return PlaceWeights(
        one.place,
        one.parameters + other.parameters,
        one.bits,
        one.stored_bytes + other.stored_bytes,
        one.weight_dtype,
        one.arithmetic,
        one.share_16_bit,
    )
