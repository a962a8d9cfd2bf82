"""vLLM as captured in the field: old and new attention backends, graphs, runners and markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, TypeAlias

from .field_run import Run

Attention: TypeAlias = Callable[[Run, int, Sequence[int], int, int], None]

FA2 = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, (bool)0, (bool)0,"
    " cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)64, (int)128, (int)4, cutlass::bfloat16_t>>, (bool){causal},"
    " (bool)0, (bool)0, (bool)0, (bool)0, (bool)0, (bool){split}, (bool)0>(flash::Flash_fwd_params)"
)
FA2_COMBINE = (
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, (bool)0,"
    " (bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)64, (int)128, (int)4, cutlass::bfloat16_t>>, (int)4,"
    " (int)4, (bool)1>(flash::Flash_fwd_params)"
)
FA2_PLAIN = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0,"
    " cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>, (bool)0,"
    " (bool)1, (bool)0, (bool)0, (bool)0, (bool)1, (bool)0>(flash::Flash_fwd_params)"
)
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<"
    "(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int){m}>,"
    " cute::C<(int)128>, cute::C<(int)128>>, (int)128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, (bool)1, (bool)0,"
    " (bool)0, (bool)1, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)1, (bool)0, (bool)0, cutlass::bfloat16_t>>>>"
    "(T1::Params)"
)
PAGED = (
    "void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, (int)128, (int)16, (int)128,"
    " (vllm::Fp8KVCacheDataType)0, (bool)0, (int)512>(float *, float *, T1 *, const T1 *)"
)
PAGED_REDUCE = (
    "void vllm::paged_attention_v2_reduce_kernel<__nv_bfloat16, (int)128, (int)128, (int)512>(T1 *, const float *)"
)
INFER = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode){mask},"
    " (unsigned int){q}, (unsigned int)1, (unsigned int)4, (unsigned int)8, (unsigned int)8, (unsigned int)1,"
    " (unsigned int)4, (flashinfer::PosEncodingMode)0, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, int,"
    " flashinfer::DefaultAttention<(bool)0, (bool)0, (bool)0, (bool)0>>, PagedParams>(T2)"
)
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(T1 *, const T1 *, const T1 *, float, int, int)"
FUSED_NORM = "std::enable_if<T2>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, T1 *, const T1 *, float, int, int)"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *, int, long, long, int, int, int)"
WRITE = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(const T1 *)"
)
ACT = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)"
SMALL = ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT")
LARGE = ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "nvjet_tst_192x128_64x5_1x2_h_bz_coopB_TNT")
HEAD = "nvjet_tst_384x8_64x4_2x1_v_bz_TNT"
GATHER = (
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)"
)
ARGMAX = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned"
    " int, long, (int)4, (int)4>>(T3)"
)
SOFTMAX = (
    "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float,"
    " at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
)
EXPONENTIAL = (
    "void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, (int)4, exponential_kernel>(long)"
)
FILL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>>(int, T2, T3)"
ELEMENTWISE = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int, T1, T2)"
ALL_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *, vllm::RankSignals)"
NCCL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
EMBED_TP = "triton_poi_fused_bitwise_and_bitwise_not_bitwise_or_embedding_ge_lt_masked_fill_mul_sub_0"


def gemm(run: Run, tokens: int, weight_mb: int, *, names: Sequence[str] | None = None) -> None:
    """A GEMM whose time follows from its weights and tokens."""
    names = names or (SMALL if tokens <= 64 else LARGE)
    run.k(names[int(weight_mb) % len(names)], (132, 1, 1), us=max(weight_mb / 2.6, tokens * weight_mb * 0.0022))


def fa2(run: Run, tokens: int, chunks: Sequence[int], decodes: int, kv: int = 1500) -> None:
    """FlashAttention 2 over paged KV: one call for the whole batch."""
    requests = len(chunks) + decodes
    if not chunks:
        run.k(FA2.format(causal=0, split=1), (1, 4, requests * 8), us=3 + requests * kv * 2e-3)
        run.k(FA2_COMBINE, (requests * 8, 1, 1), us=2)
    else:
        run.k(FA2.format(causal=1, split=0), (ceil(max(chunks) / 64), requests, 32), us=5 + tokens * kv * 3e-5)


def fa3(run: Run, tokens: int, chunks: Sequence[int], decodes: int, kv: int = 1500) -> None:
    """FlashAttention 3, vLLM's fork: one warpgroup while every request has few query rows."""
    most = max([*chunks, 1])
    run.k("flash::prepare_varlen_num_blocks_kernel(int, int, int, const int *)", 1, us=1.5)
    run.k(FA3.format(m=64 if most * 4 <= 64 else 128), (132, 1, 1), us=4 + tokens * kv * 2e-5)


def paged(run: Run, tokens: int, chunks: Sequence[int], decodes: int, kv: int = 1500) -> None:
    """vLLM V0: prompts by flash_fwd on contiguous KV, decoding by paged attention, in steps of their own."""
    if chunks:
        run.k(FA2_PLAIN, (ceil(max(chunks) / 128), len(chunks), 32), us=5 + tokens * max(chunks) * 2e-5, own="prefill")
    if decodes:
        run.k(PAGED, (32, decodes, ceil(kv / 512)), us=3 + decodes * kv * 2e-3, own="decode")
        run.k(PAGED_REDUCE, (32, decodes, 1), us=2, own="decode")


def infer(run: Run, tokens: int, chunks: Sequence[int], decodes: int, kv: int = 1500) -> None:
    """FlashInfer: decoding requests and prompts in calls of their own."""
    if decodes:
        run.k(INFER.format(mask=0, q=16), (132, 1, 8), us=3 + decodes * kv * 2e-3, own="decode" if chunks else None)
    if chunks:
        run.k(INFER.format(mask=1, q=64), (264, 1, 8), us=5 + tokens * kv * 2e-5, own="prefill" if decodes else None)


def unified(run: Run, tokens: int, chunks: Sequence[int], decodes: int, kv: int = 1500) -> None:
    """Triton unified attention of recent releases: one name for everything."""
    requests = len(chunks) + decodes
    run.k("kernel_unified_attention", (ceil(tokens / 16) + requests, 8, 1), us=5 + tokens * kv * 2e-5)


def layers(  # noqa: PLR0913 (a run is stated by keywords)
    run: Run,
    count: int,
    tokens: int,
    attention: Attention,
    chunks: Sequence[int],
    decodes: int,
    *,
    compiled: bool = False,
    reduce: str | None = None,
    kv: int = 1500,
    pieces: int | None = None,
    real: int | None = None,
) -> None:
    """The decoder layers. ``compiled``: torch.compile names only; ``pieces``: base graph number of piecewise graphs."""

    def opening(first: bool) -> None:
        if compiled:
            run.k("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1" if not first else
                  "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", (tokens, 1, 1), us=2 + tokens * 0.004)  # fmt: skip
        else:
            run.k(NORM if first else FUSED_NORM, tokens, us=2 + tokens * 0.004)
        gemm(run, tokens, 50)
        if compiled:
            run.k("triton_poi_fused_cat_index_select_split_3", (ceil(tokens * 32 / 4), 1, 1), us=2 + tokens * 0.004)
        else:
            run.k(ROPE, tokens, us=2 + tokens * 0.003)

    def closing() -> None:
        gemm(run, tokens, 33)
        if reduce:
            run.k(reduce, 36, us=6)
        run.k(
            "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2" if compiled else FUSED_NORM,
            tokens,
            us=2 + tokens * 0.004,
        )
        gemm(run, tokens, 235)
        run.k(
            "triton_poi_fused_mul_silu_2" if compiled else ACT,
            (tokens * 14, 1, 1) if compiled else tokens,
            us=2 + tokens * 0.01,
        )
        gemm(run, tokens, 117)
        if reduce:
            run.k(reduce, 36, us=6)

    def attend() -> None:
        run.k(WRITE, real or tokens, us=2 + tokens * 0.002)  # slot mapping is not padded where it runs eagerly
        attention(run, tokens, chunks, decodes, kv)

    if pieces is None:
        for layer in range(count):
            opening(layer == 0)
            attend()
            closing()
        return
    with run.graph(pieces):
        opening(True)
    for layer in range(count):
        attend()
        with run.graph(pieces + 1 + layer):
            closing()
            if layer + 1 < count:
                opening(False)
            else:
                run.k(FUSED_NORM, tokens, us=2)


def step(  # noqa: PLR0913 (a run is stated by keywords)
    run: Run, chunks: Sequence[int] = (), decodes: int = 0, *, attention: Attention = fa2, count: int = 6, graph: int | None = None, padded: int | None = None, marker: bool = False, sampler: str | None = "greedy",
    asynchronous: bool = False, late: bool = False, compiled: bool = False, reduce: str | None = None, kv: int = 1500, pieces: int | None = None, head: bool = True, embed: bool = True,
    prepare: bool = True, width: int = 1,
) -> None:  # fmt: skip
    """One engine step: ``chunks`` are prompt tokens per request, ``decodes`` requests with ``width`` tokens each.

    ``late``: lm_head and sampler run after the marker's range (the V2 runner).
    """
    tokens, requests = sum(chunks) + decodes * width, len(chunks) + decodes
    rows = padded or tokens
    phase = "mixed" if chunks and decodes else "prefill" if chunks else "decode"
    run.begin(phase, sum(chunks), decodes * width, len(chunks), decodes)
    text = f"execute_context_{len(chunks)}({sum(chunks)})_generation_{decodes}({decodes * width})"
    scope = run.range(text) if marker else None
    if scope:
        scope.__enter__()
    if prepare:
        run.copy("h2d", 4 * tokens)
        run.k(FILL, 1, us=1.2)
        run.k("_compute_slot_mapping_kernel", (requests + 1, 1, 1), us=1.8)

    def body() -> None:
        if embed and not compiled:
            run.k(EMBED_TP if reduce else GATHER, rows, us=2 + rows * 0.004)
        if compiled and reduce:
            run.k(EMBED_TP, (rows * 16, 1, 1), us=2)
        layers(
            run,
            count,
            rows,
            attention,
            chunks,
            decodes,
            compiled=compiled,
            reduce=reduce,
            kv=kv,
            pieces=pieces,
            real=tokens if graph is None else None,
        )
        if pieces is None:
            run.k("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_9" if compiled else FUSED_NORM, rows, us=2)

    if graph is not None:
        with run.graph(graph):
            body()
    else:
        body()
    if scope and late:
        scope.__exit__(None, None, None)
    if head:
        run.k(GATHER, (requests, 2, 1), us=2)
        gemm(run, requests, 1050, names=(HEAD,) if requests <= 64 else LARGE)
    if sampler == "greedy":
        run.k(ARGMAX, (requests, 1, 1), us=9)
    elif sampler == "random":
        run.k(SOFTMAX, (requests, 1, 1), us=8)
        run.k(EXPONENTIAL, (1056, 1, 1), us=8)
        run.k(ARGMAX, (requests, 1, 1), us=9)
    elif sampler == "gumbel":
        run.k("_temperature_kernel", (requests, 16, 1), us=4)
        run.k("_gumbel_sample_kernel", (requests, 16, 1), us=6)
        run.k(
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>>>(T3)",
            1,
            us=3,
        )
    if sampler:
        run.copy("d2h", 8 * requests)
    if scope and not late:
        scope.__exit__(None, None, None)
    if not asynchronous:
        run.sync(120)


SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
REJECT = "rejection_greedy_sample_kernel"


def captured_size(requests: int) -> int:
    """The captured batch that serves ``requests``."""
    sizes: list[int] = [1, 2, 4, *range(8, 257, 8)]
    return next(size for size in sizes if size >= requests)


def decode(run: Run, requests: int, **options: Any) -> None:
    """A decode step from a full graph, padded to its captured size."""
    size = captured_size(requests)
    step(run, decodes=requests, graph=300 + size, padded=size, **options)


def piecewise(run: Run, chunks: Sequence[int] = (), decodes: int = 0, **options: Any) -> None:
    """A step in piecewise graphs where one is large enough, else eager."""
    tokens = sum(chunks) + decodes
    size = captured_size(tokens) if tokens <= 128 else None
    step(run, chunks, decodes, padded=size, pieces=100 * size if size else None, **options)


def drafts(run: Run, requests: int, attention: Attention, passes: int, tokens: int) -> None:
    """Passes of a one-layer draft model behind a verified batch; the first sees all ``tokens``."""
    for number in range(passes):
        layers(run, 1, requests if number else tokens, attention, (), requests)
        gemm(run, requests, 1050, names=(HEAD,))
        run.k(ARGMAX, requests, us=9)


def verify(
    run: Run,
    chunks: tuple[int, ...],
    requests: int,
    *,
    attention: Attention = fa2,
    width: int = 4,
    graph: bool = False,
    inside: str | None = None,
    count: int = 6,
) -> None:
    """A speculative step: ``width`` tokens per decoding request, then drafts. ``inside``: a range around all of it."""
    tokens = sum(chunks) + requests * width
    every = chunks + (width,) * requests
    run.begin("mixed" if chunks else "decode", sum(chunks), requests * width, len(chunks), requests)
    scope = run.range(inside) if inside else None
    if scope:
        scope.__enter__()
    run.copy("h2d", 4 * tokens)
    run.k("_compute_slot_mapping_kernel", len(every) + 1, us=1.8)

    def body() -> None:
        run.k(GATHER, tokens, us=2)
        layers(run, count, tokens, attention, every, 0)
        run.k(FUSED_NORM, tokens, us=2)

    if graph and not chunks:
        with run.graph(300 + requests):
            body()
    else:
        body()
    rows = requests * width + len(chunks)
    run.k(GATHER, (rows, 2, 1), us=2)
    gemm(run, rows, 1050, names=(HEAD,))
    run.k(ARGMAX, rows, us=9)
    run.k(REJECT, len(every), us=3)
    if scope:
        drafts(run, len(every), attention, width - 1, tokens)
        scope.__exit__(None, None, None)
    else:
        for number in range(width - 1):
            run.begin("other")
            drafts(run, len(every), attention, 1, tokens if number == 0 else len(every))
    run.copy("d2h", 64)
    run.sync(100)
