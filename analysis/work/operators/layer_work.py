"""The work of a whole model by layer kind and operator, for one step, whatever its layers are made of.

Pure functions of a model's shape and a batch; counts are of the whole model, before tensor parallelism. ``kv`` bytes
are those of every cache: keys and values, latents, index keys, compressed rows, and the states of layers whose memory
does not grow, which are given apart as well. A part of a kind nobody knows has no operators and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...models.layer_kinds import (
    RECURRENT,
    Attention,
    CompressedAttention,
    Experts,
    Indexer,
    LatentAttention,
    LayerGroup,
    LinearMap,
    Mlp,
    Part,
    Reach,
    Recurrent,
    ShortConv,
    UnknownPart,
)
from ...models.model_shape import (
    BYTES_PER_ELEMENT,
    ModelShape,
    bytes_per_weight,
    conv_state_bytes,
    latent_row_bytes,
    layer_groups,
)
from .formulas import Work, activation, embedding, expert_gemm, gemm, kv_write, mla_absorb, norm
from .layer_kind_formulas import (
    Batch,
    causal_pairs_of,
    chunked_flop,
    compressed_rows,
    recurrence_elements,
    recurrence_flop,
    seen,
)

LOGIT_BYTES = 4.0  # an indexer's scores are fp32


@dataclass(frozen=True)
class OperatorWork:
    """One operator of one layer. ``state_*``: bytes of state among ``work.kv``; ``executed``: FLOPs that kernels run."""

    operator: str
    work: Work
    state_read: float = 0.0
    state_written: float = 0.0
    executed: float | None = None  # None: as useful

    @property
    def executed_flop(self) -> float:
        """FLOPs that kernels execute, those of chunked forms included."""
        return float(self.work.flop) if self.executed is None else self.executed


@dataclass(frozen=True)
class KindWork:
    """The operators of one kind of part, in one of ``layers`` layers that have it; no operators = not known."""

    kind: str
    layers: int
    parameters: int  # in all of these layers
    operators: tuple[OperatorWork, ...]

    @property
    def known(self) -> bool:
        """Whether its work is known."""
        return bool(self.operators)

    @property
    def work(self) -> Work:
        """Of all layers; zero where the kind is not known (``known`` says which)."""
        return _times(_sum(each.work for each in self.operators), self.layers)

    @property
    def state_bytes(self) -> float:
        """Bytes of state read and written in all layers."""
        return self.layers * sum(each.state_read + each.state_written for each in self.operators)

    @property
    def executed_flop(self) -> float:
        """FLOPs that kernels execute in all layers."""
        return self.layers * sum(each.executed_flop for each in self.operators)


def model_work(model: ModelShape, batch: Batch) -> tuple[KindWork, ...]:
    """Work of one step by part of the model: each part of each group of layers, their norms, embedding and lm_head."""
    found = [kind for group in layer_groups(model) for kind in _group_work(model, group, batch)]
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    rows = float(batch.requests) if not batch.decodes else batch.tokens  # a prompt's last token alone is sampled from
    head = gemm(
        rows, model.hidden, model.vocab, weight_bytes=bytes_per_weight(model, "lm_head"), activation_bytes=width
    )
    table = embedding(
        batch.tokens, model.hidden, weight_bytes=bytes_per_weight(model, "embedding"), activation_bytes=width
    )
    last = norm(batch.tokens, model.hidden, fused_add=True, activation_bytes=width)
    ends = (OperatorWork("embedding", table), OperatorWork("norm", last), OperatorWork("lm_head", head))
    tables = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return (*found, KindWork("embedding and lm_head", 1, tables + model.hidden, ends))


def total_work(kinds: Iterable[KindWork]) -> Work:
    """The sum over all kinds whose work is known."""
    return _sum(each.work for each in kinds)


def unknown_layers(kinds: Iterable[KindWork]) -> dict[str, int]:
    """Layers with a part that is not counted, by its kind."""
    return {each.kind: each.layers for each in kinds if not each.known}


def _group_work(model: ModelShape, group: LayerGroup, batch: Batch) -> Iterator[KindWork]:
    layers, width = len(group.layers), BYTES_PER_ELEMENT[model.activation_dtype]
    for part in group.parts:
        parameters = sum(each.parameters for each in part.maps(model.hidden, layers)) + part.small * layers
        yield KindWork(part.kind, layers, parameters, tuple(part_work(model, part, batch)))
    one = norm(batch.tokens, model.hidden, fused_add=True, activation_bytes=width)
    norms = OperatorWork("norm", _times(one, group.norms))
    yield KindWork("norms", layers, group.norms * model.hidden * layers, (norms,))


def part_work(model: ModelShape, part: Part, batch: Batch) -> Iterator[OperatorWork]:
    """The operators of one part of one layer: its GEMMs, then what lies between them."""
    if isinstance(part, UnknownPart):
        return
    for each in part.maps(model.hidden, 1):
        if each.place == "kv_b" and isinstance(part, LatentAttention) and _absorbed(part, batch):
            yield from _absorb(model, part, batch)
        else:
            yield OperatorWork(each.place, _map_work(model, each, batch))
    if isinstance(part, Attention):
        yield from _attention(model, part, batch)
    elif isinstance(part, LatentAttention):
        yield from _latent(model, part, batch)
    elif isinstance(part, CompressedAttention):
        yield from _compressed(model, part, batch)
    elif isinstance(part, RECURRENT):
        yield from _recurrent(model, part, batch)
    else:
        yield from _feed_forward(model, part, batch)


def _map_work(model: ModelShape, each: LinearMap, batch: Batch) -> Work:
    """A GEMM; experts by the number that the batch is expected to touch, other copies all."""
    sizes = {"weight_bytes": bytes_per_weight(model, each.place)}
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    if each.place.startswith("expert_"):
        return expert_gemm(
            batch.tokens,
            each.inputs,
            each.outputs,
            experts=each.copies,
            per_token=each.active_copies,
            activation_bytes=width,
            **sizes,
        )
    return _times(gemm(batch.tokens, each.inputs, each.outputs, activation_bytes=width, **sizes), each.copies)


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(model: ModelShape, part: Attention, batch: Batch) -> Iterator[OperatorWork]:
    width, cached = BYTES_PER_ELEMENT[model.activation_dtype], BYTES_PER_ELEMENT[model.kv_dtype]
    per_token = part.kv_heads * (part.head_dim + part.width_v)
    if not part.borrows_cache:
        write = kv_write(batch.tokens, kv_elements=per_token, activation_bytes=width, kv_bytes=cached)
        yield OperatorWork("kv_write", write)
    if part.index:
        keys = part.index.head_dim * width
        yield _index_work(part.index.heads * part.index.head_dim, causal_pairs_of(batch), keys, batch)
    looked = seen(part.reach, batch)
    heads = part.heads * (part.head_dim + part.width_v)
    yield OperatorWork(
        "attention",
        Work(
            flop=2.0 * heads * looked.pairs,
            kv=cached * per_token * looked.tokens,
            activations=width * heads * batch.tokens,
        ),
    )


def _index_work(width: int, pairs: float, row_bytes: float, batch: Batch, ratio: int = 1) -> OperatorWork:
    """An indexer's scores: 2 Hi Di per pair; its keys read once, new ones written; fp32 scores written and read."""
    rows, new = float((batch.lengths // ratio).sum()), batch.tokens / ratio
    work = Work(flop=2.0 * width * pairs, kv=row_bytes * (rows + new), activations=2.0 * LOGIT_BYTES * pairs)
    return OperatorWork("index_scores", work)


def _absorbed(part: LatentAttention, batch: Batch) -> bool:
    """Decode works on the latents; sparse attention does in prefill too."""
    return batch.decodes or part.index is not None


def _absorb(model: ModelShape, part: LatentAttention, batch: Batch) -> Iterator[OperatorWork]:
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    for place, inner in (("absorb_q", part.nope), ("absorb_o", part.value)):
        work = mla_absorb(
            batch.tokens,
            heads=part.heads,
            head_width=inner,
            latent=part.kv_lora_rank,
            weight_bytes=bytes_per_weight(model, place),
            activation_bytes=width,
        )
        yield OperatorWork(place, work)


def _latent(model: ModelShape, part: LatentAttention, batch: Batch) -> Iterator[OperatorWork]:
    width, row = BYTES_PER_ELEMENT[model.activation_dtype], latent_row_bytes(part, model.kv_dtype)
    write = Work(flop=0.0, kv=row * batch.tokens, activations=width * part.cache_elements * batch.tokens)
    yield OperatorWork("kv_write", write)
    reach = Reach()
    if part.index:
        reach = Reach(selected=part.index.top)
        if part.index.own:
            scored = part.index.heads * part.index.head_dim
            yield _index_work(scored, causal_pairs_of(batch), part.index.row_bytes, batch)
    looked = seen(reach, batch)
    per_pair = part.nope + part.rope + part.value
    if _absorbed(part, batch):
        per_pair = 2 * part.kv_lora_rank + part.rope
    yield OperatorWork(
        "attention",
        Work(
            flop=2.0 * part.heads * per_pair * looked.pairs,
            kv=row * looked.tokens,
            activations=width * part.heads * per_pair * batch.tokens,
        ),
    )


def _compressed(model: ModelShape, part: CompressedAttention, batch: Batch) -> Iterator[OperatorWork]:
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    new = batch.tokens * (1.0 + (1.0 / part.ratio if part.ratio else 0.0))
    write = Work(flop=0.0, kv=part.row_bytes * new, activations=width * part.head_dim * new)
    yield OperatorWork("kv_write", write)
    window = seen(Reach(window=part.window), batch)
    pairs, rows = window.pairs, window.tokens
    if part.ratio:
        chosen = compressed_rows(batch, part.ratio, part.index.top if part.index else None)
        pairs, rows = pairs + chosen.pairs, rows + chosen.tokens
    if part.index:
        index: Indexer = part.index
        scored = compressed_rows(batch, part.ratio).pairs
        yield _index_work(index.heads * index.head_dim, scored, index.row_bytes, batch, part.ratio)
    yield OperatorWork(
        "attention",
        Work(
            flop=4.0 * part.heads * part.head_dim * pairs,
            kv=part.row_bytes * rows,
            activations=width * 2.0 * part.heads * part.head_dim * batch.tokens,
        ),
    )


# -- layers with a state that does not grow ----------------------------------------------------------------------------


def _recurrent(model: ModelShape, part: Recurrent, batch: Batch) -> Iterator[OperatorWork]:
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    if part.conv_width:
        size = conv_state_bytes(part, model)
        read, written = size * batch.continued, size * batch.requests
        conv = Work(
            flop=2.0 * part.conv * part.conv_width * batch.tokens,
            weights=width * part.conv * part.conv_width,
            kv=read + written,
            activations=2.0 * width * part.conv_width * batch.tokens,
        )
        yield OperatorWork("convolution", conv, read, written)
    if isinstance(part, ShortConv):
        return
    size = part.state_elements * BYTES_PER_ELEMENT[part.state_dtype]
    read, written = size * batch.continued, size * batch.states_written
    useful = recurrence_flop(part) * batch.tokens
    state = Work(flop=useful, kv=read + written, activations=width * recurrence_elements(part) * batch.tokens)
    executed = None if batch.decodes else chunked_flop(part) * batch.tokens
    yield OperatorWork("recurrence", state, read, written, executed)


def _feed_forward(model: ModelShape, part: Mlp | Experts, batch: Batch) -> Iterator[OperatorWork]:
    width = BYTES_PER_ELEMENT[model.activation_dtype]
    if isinstance(part, Mlp):
        work = activation(batch.tokens, part.width, gated=part.gated, activation_bytes=width)
        yield OperatorWork(f"{part.prefix}activation", work)
        return
    rows = batch.tokens * part.per_token_with_weights
    yield OperatorWork("expert_activation", activation(rows, part.width, gated=part.gated, activation_bytes=width))
    if part.shared:
        shared = activation(batch.tokens, part.shared, gated=part.gated, activation_bytes=width)
        yield OperatorWork("shared_activation", shared)


def _sum(works: Iterable[Work]) -> Work:
    return sum(works, Work(flop=0.0))


def _times(work: Work, factor: float) -> Work:
    return Work(work.flop * factor, work.weights * factor, work.kv * factor, work.activations * factor)
