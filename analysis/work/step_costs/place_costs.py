"""Work of every place in every step: one table, gathered by the kernels.

All kernels at one place of one step do the same work in every layer, so FLOPs and bytes are computed per
(place, step) - a few thousand columns - and picked up per kernel. NaN is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from ...models.model_shape import BYTES_PER_ELEMENT, ModelShape
from ..kv_lengths.step_kv_lengths import KvLengths
from ..operators import formulas
from ..operators.formulas import Attended, Work
from ..operators.gemm_orders import PLACES
from ..operators.layer_matrices import Matrix, RankShape, rank_matrices
from ..operators.table_passes import TABLE_PASSES, StepRows

Floats = npt.NDArray[np.float64]

# Attention inside the model's sliding window, a variant of each attention place.
WINDOWED = ("attention", "attention_prefill", "attention_decode")
ROWS: tuple[str, ...] = (*PLACES, *(f"{place}/window" for place in WINDOWED))
ROW_CODE: dict[str, int] = {row: code for code, row in enumerate(ROWS)}


@dataclass(frozen=True)
class StepSums:
    """What formulas need of each step, NaN where unknown."""

    tokens: Floats
    executed_tokens: Floats  # padded size of a graph
    prefill_tokens: Floats
    decode_tokens: Floats
    decode_requests: Floats
    logits_rows: Floats
    executed_logits_rows: Floats
    decode_length: Floats
    decode_window_length: Floats
    decode_pairs: Floats
    decode_window_pairs: Floats
    prefill_length: Floats
    prefill_window_length: Floats
    prefill_pairs: Floats
    prefill_window_pairs: Floats
    decodes: npt.NDArray[np.bool_]  # pure decode steps


def step_sums(steps: pl.DataFrame, lengths: KvLengths, *, rectangle: bool = False) -> StepSums:
    """Sums per row of ``steps``. ``rectangle`` counts attention as full rectangles, the other convention in use."""

    def column(name: str, absent_phase: str) -> Floats:
        values = steps[name].cast(pl.Float64).to_numpy().astype(np.float64)
        return np.where((steps["phase"] == absent_phase).to_numpy(), 0.0, values)

    prefill, decode = column("prefill_tokens", "decode"), column("decode_tokens", "prefill")
    prefill_requests, requests = column("prefill_requests", "decode"), column("decode_requests", "prefill")
    padded = steps["padded_tokens"].cast(pl.Float64).to_numpy().astype(np.float64)
    tokens = prefill + decode
    in_graph = steps["graph_id"].is_not_null().to_numpy()
    decodes = (steps["phase"] == "decode").to_numpy()
    rows = prefill_requests + decode
    width = np.divide(decode, requests, out=np.ones_like(decode), where=requests > 0)
    decode_pairs = formulas.decode_pairs(lengths.decode_sum, requests, width)
    window_pairs = formulas.decode_pairs(lengths.decode_window_sum, requests, width)
    prefill_pairs = formulas.causal_pairs(prefill, lengths.prefill_qk, lengths.prefill_qq)
    if rectangle:
        decode_pairs = formulas.rectangle_pairs(width * lengths.decode_sum)
        prefill_pairs = formulas.rectangle_pairs(lengths.prefill_qk)
    return StepSums(
        tokens=tokens,
        executed_tokens=np.fmax(tokens, padded),
        prefill_tokens=prefill,
        decode_tokens=decode,
        decode_requests=requests,
        logits_rows=rows,
        executed_logits_rows=np.where(in_graph & decodes, np.fmax(rows, padded), rows),
        decode_length=lengths.decode_sum,
        decode_window_length=lengths.decode_window_sum,
        decode_pairs=np.asarray(decode_pairs),
        decode_window_pairs=np.asarray(window_pairs),
        prefill_length=lengths.prefill_sum,
        prefill_window_length=lengths.prefill_window_sum,
        prefill_pairs=np.asarray(prefill_pairs),
        prefill_window_pairs=lengths.prefill_window_pairs,
        decodes=decodes,
    )


def with_tokens_of_names(sums: StepSums, told: Floats) -> StepSums:
    """``sums`` with the tokens of pure decode steps whose count is only in their kernels' names."""
    use = sums.decodes & np.isnan(sums.decode_tokens) & ~np.isnan(told)
    if not use.any():
        return sums

    def fill(values: Floats) -> Floats:
        return np.where(use, told, values)

    return replace(
        sums,
        tokens=fill(sums.tokens),
        executed_tokens=np.fmax(fill(sums.tokens), sums.executed_tokens),
        decode_tokens=fill(sums.decode_tokens),
        logits_rows=fill(sums.logits_rows),
        executed_logits_rows=np.fmax(fill(sums.logits_rows), sums.executed_logits_rows),
    )


@dataclass(frozen=True)
class WorkTable:
    """Arrays of (row of ROWS, step). ``weight_elements`` turn into bytes per kernel, by the type it reads."""

    flop: Floats
    flop_executed: Floats
    weight_elements: Floats
    weight_bytes: Floats
    kv: Floats
    activations: Floats

    def put(self, row: str, useful: Work, executed_flop: formulas.Number, *, elements: bool = False) -> None:
        """Write one row; with ``elements`` the work's weights are counted in elements, not bytes."""
        at = ROW_CODE[row]
        self.flop[at] = useful.flop
        self.flop_executed[at] = executed_flop
        self.weight_elements[at] = useful.weights if elements else 0.0
        self.weight_bytes[at] = 0.0 if elements else useful.weights
        self.kv[at] = useful.kv
        self.activations[at] = useful.activations


def work_table(rank: RankShape, sums: StepSums) -> WorkTable:
    """Work of one rank for every place of the model in every step."""
    shape = (len(ROWS), len(sums.tokens))
    table = WorkTable(*(np.full(shape, np.nan) for _ in fields(WorkTable)))
    activation_bytes = BYTES_PER_ELEMENT[rank.model.activation_dtype]
    for place, matrix in rank_matrices(rank).items():
        rows, executed = _rows_of(place, sums)
        work = _matrix_work(rank.model, matrix, rows, activation_bytes)
        table.put(place, work, _matrix_work(rank.model, matrix, executed, activation_bytes).flop, elements=True)
    _put_both_expert_gemms(table)
    _put_attention(table, rank, sums, activation_bytes)
    _put_small(table, rank, sums, activation_bytes)
    return table


def _rows_of(place: str, sums: StepSums) -> tuple[Floats, Floats]:
    """Rows that the GEMM of a place multiplies: useful, and with padding."""
    if place == "lm_head":
        return sums.logits_rows, sums.executed_logits_rows
    if place in ("absorb_q", "absorb_o"):
        return sums.decode_tokens, np.where(sums.decodes, sums.executed_tokens, sums.decode_tokens)
    if place == "kv_b":  # decompresses all that the prefill attends to
        return sums.prefill_length, sums.prefill_length
    return sums.tokens, sums.executed_tokens


def _matrix_work(model: ModelShape, matrix: Matrix, rows: Floats, activation_bytes: float) -> Work:
    """Work of one matrix; its ``weights`` are elements (one byte each)."""
    if matrix.per_head:
        return formulas.mla_absorb(
            rows,
            heads=matrix.per_head,
            head_width=round(matrix.inputs),
            latent=round(matrix.outputs),
            weight_bytes=1.0,
            activation_bytes=activation_bytes,
        )
    if matrix.grouped:
        return formulas.expert_gemm(
            rows,
            matrix.inputs,
            matrix.outputs,
            experts=model.experts,
            per_token=model.experts_per_token,
            weight_bytes=1.0,
            activation_bytes=activation_bytes,
        )
    return formulas.gemm(rows, matrix.inputs, matrix.outputs, weight_bytes=1.0, activation_bytes=activation_bytes)


def _put_both_expert_gemms(table: WorkTable) -> None:
    """A lone expert kernel does both GEMMs of its experts."""
    both, up, down = (ROW_CODE[place] for place in ("experts", "expert_gate_up", "expert_down"))
    for field in fields(WorkTable):
        column = getattr(table, field.name)
        column[both] = column[up] + column[down]


def _put_attention(table: WorkTable, rank: RankShape, sums: StepSums, activation_bytes: float) -> None:
    model, kv_bytes = rank.model, BYTES_PER_ELEMENT[rank.model.kv_dtype]
    ordinary = formulas.OrdinaryHeads(rank.heads, rank.kv_heads, model.head_dim)
    latent = formulas.LatentHeads(
        rank.heads, model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim, model.kv_lora_rank
    )

    def decode(pairs: Floats, length: Floats) -> Work:
        seen = Attended(pairs, sums.decode_tokens, length)
        if model.is_mla:
            return formulas.mla_attention_absorbed(seen, latent, activation_bytes=activation_bytes, kv_bytes=kv_bytes)
        return formulas.attention(seen, ordinary, activation_bytes=activation_bytes, kv_bytes=kv_bytes)

    def prefill(pairs: Floats, length: Floats) -> Work:
        seen = Attended(pairs, sums.prefill_tokens, length)
        if model.is_mla:
            return formulas.mla_attention_decompressed(
                seen, latent, activation_bytes=activation_bytes, kv_bytes=kv_bytes
            )
        return formulas.attention(seen, ordinary, activation_bytes=activation_bytes, kv_bytes=kv_bytes)

    for suffix, decoding, prefilling in (
        ("", decode(sums.decode_pairs, sums.decode_length), prefill(sums.prefill_pairs, sums.prefill_length)),
        (
            "/window",
            decode(sums.decode_window_pairs, sums.decode_window_length),
            prefill(sums.prefill_window_pairs, sums.prefill_window_length),
        ),
    ):
        table.put("attention_decode" + suffix, decoding, decoding.flop)
        table.put("attention_prefill" + suffix, prefilling, prefilling.flop)
        whole = decoding + prefilling
        table.put("attention" + suffix, whole, whole.flop)


def _put_small(table: WorkTable, rank: RankShape, sums: StepSums, activation_bytes: float) -> None:
    """Norms, rope, cache writes, activations, embedding: little arithmetic, bytes by tokens times width."""
    model, tokens, executed = rank.model, sums.tokens, sums.executed_tokens
    head = model.qk_rope_head_dim if model.is_mla else model.head_dim
    kv_heads = 1.0 if model.is_mla else rank.kv_heads
    rotated = (rank.heads + kv_heads) * head
    latent = model.q_lora_rank + model.kv_lora_rank
    normed = float(latent) if model.is_mla else (rank.heads + rank.kv_heads) * model.head_dim

    def put(place: str, useful: Work, padded: Work) -> None:
        table.put(place, useful, padded.flop)

    for place, width in (("norm", float(model.hidden)), ("final_norm", float(model.hidden)), ("qk_norm", normed)):
        put(
            place,
            formulas.norm(tokens, width, activation_bytes=activation_bytes),
            formulas.norm(executed, width, activation_bytes=activation_bytes),
        )
    put("rope", *(formulas.rope(each, rotated, activation_bytes=activation_bytes) for each in (tokens, executed)))
    widths = {
        "activation": model.intermediate / rank.tensor_parallel,
        "expert_activation": model.experts_per_token * model.moe_intermediate / rank.tensor_parallel,
        "shared_activation": model.shared_intermediate / rank.tensor_parallel,
    }
    for place, width in widths.items():
        useful, padded = (
            formulas.activation(each, width, gated=model.gated_mlp, activation_bytes=activation_bytes)
            for each in (tokens, executed)
        )
        put(place, useful, padded)
    cache = formulas.kv_write(
        tokens,
        kv_elements=rank.kv_elements,
        activation_bytes=activation_bytes,
        kv_bytes=BYTES_PER_ELEMENT[model.kv_dtype],
    )
    put("kv_write", cache, cache)
    rows = formulas.embedding(tokens, model.hidden, activation_bytes=activation_bytes)
    put("embedding", rows, rows)
    for place, work in _moved(rank, sums, activation_bytes).items():
        put(place, work, work)


def _moved(rank: RankShape, sums: StepSums, activation_bytes: float) -> dict[str, Work]:
    """Kernels that mostly move activations: row gather, quantisation (one byte out), the sum over experts, sampling."""
    model, tokens = rank.model, sums.tokens
    inputs = {
        "quantize": float(model.hidden),
        "quantize_o": rank.heads * (model.v_head_dim if model.is_mla else model.head_dim),
        "quantize_down": model.intermediate / rank.tensor_parallel,
    }
    moved = {place: Work(0.0, activations=tokens * width * (activation_bytes + 1.0)) for place, width in inputs.items()}
    rows = 2.0 * activation_bytes * model.hidden
    moved["row_gather"] = Work(0.0, activations=sums.logits_rows * rows)
    moved["quantize_head"] = Work(0.0, activations=sums.logits_rows * model.hidden * (activation_bytes + 1.0))
    width = model.intermediate / rank.tensor_parallel
    moved["activation_alone"] = formulas.activation(tokens, width, gated=False, activation_bytes=activation_bytes)
    moved["gate_product"] = Work(tokens * width, activations=3.0 * activation_bytes * tokens * width)
    # elements of tables that are passed over; the kernel's name tells the bytes of each
    step_rows = StepRows(tokens, sums.logits_rows)
    moved |= {each.place: Work(0.0, activations=each.elements(model, step_rows)) for each in TABLE_PASSES}
    experts = tokens * model.hidden * activation_bytes
    moved["expert_sum"] = Work(
        tokens * model.hidden * model.experts_per_token, activations=experts * (model.experts_per_token + 1.0)
    )
    return moved
