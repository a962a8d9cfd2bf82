"""Other engines as captured in the field: SGLang, TensorRT-LLM, llama.cpp, Hugging Face, TurboMind, MLC, Megatron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from . import field_vllm as vllm
from .field_run import Run

F_NORM = "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)"
F_ADD_NORM = "void flashinfer::norm::FusedAddRMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *, unsigned int, float, float)"
F_ROPE = "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedHeadParallelismKernel<(bool)0, (unsigned int)128, (unsigned int)8>(T1)"
F_ACT = "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float>>(T1 *, const T1 *, int)"
F_RAGGED = vllm.INFER.format(mask=1, q=128).replace("Paged", "Ragged")
F_DECODE = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2, (unsigned int)4,"
    " (unsigned int)8, (unsigned int)16, (unsigned int)1, (unsigned int)8, flashinfer::DefaultAttention<(bool)0>, Params>(T9)"
)
F_MERGE = "void flashinfer::PersistentVariableLengthMergeStatesKernel<(unsigned int)8, (unsigned int)16, (unsigned int)8, (unsigned int)4>(T5 *)"
STORE = "void <unnamed>::store_kvcache<(unsigned long)2048, (bool)0, long>(StoreKVCacheParam)"
TOPP = (
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<(unsigned int)1024, (cub::BlockScanAlgorithm)2>(float *)"
)
SOFT = "void flashinfer::sampling::OnlineSoftmaxFusedKernel<(unsigned int)1024, (unsigned int)4, float>(T3 *)"


def forward(run: Run, body: Callable[[], None], graph: int | None, requests: int) -> None:
    """The layers, replayed with lm_head inside where ``graph`` is given, else launched with lm_head behind them."""
    if graph is not None:
        with run.graph(graph):
            body()
    else:
        body()
        run.k(vllm.GATHER, (requests, 2, 1), us=2)
        vllm.gemm(run, requests, 1050, names=(vllm.HEAD,))


def _attend(run: Run, rows: int, kind: str, chunks: Sequence[int], decodes: int, kv: int) -> None:
    """Attention of one layer: FlashInfer, FlashAttention 3 or Triton."""
    if kind == "infer":
        if chunks:
            run.k(vllm.INFER.format(mask=1, q=128), (264, 1, 8), us=5 + rows * kv * 2e-5)
        else:
            run.k(F_DECODE, (rows, 8, 1), us=4 + rows * kv * 2e-3)
            run.k(F_MERGE, 264, us=2)
    elif kind == "fa3":
        vllm.fa3(run, rows, chunks, decodes, kv)
    else:
        run.k(
            "_fwd_kernel" if chunks else "_fwd_grouped_kernel_stage1",
            (len(chunks) + decodes, 8, 8),
            us=4 + rows * kv * 2e-5,
        )
        if not chunks:
            run.k("_fwd_kernel_stage2", (len(chunks) + decodes, 32, 1), us=2)


def _experts(run: Run, rows: int, kind: str, *, decodes_only: bool) -> None:
    """The experts of one layer: exchanged by DeepEP, or in fused Triton kernels."""
    run.k("void moe_fused_gate_kernel<__nv_bfloat16>(T1 *)", ceil(rows / 4), us=3)
    if kind == "deepep":
        low = "internode_ll" if decodes_only else "intranode"
        run.k(f"void deep_ep::{low}::dispatch<(bool)1, (int)7168>(T1)", (24, 1, 1), us=30)
        run.k("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, (unsigned int)0, (unsigned int)4096, (unsigned int)7168, (unsigned int)32, (unsigned int)64, (unsigned int)128, (unsigned int)128, (deep_gemm::GemmType)2>(T1)", 132, us=60 + rows * 0.5)  # fmt: skip
        run.k("_silu_and_mul_post_quant_kernel", (32, rows, 1), us=8)
        run.k("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, (unsigned int)0, (unsigned int)7168, (unsigned int)2048, (unsigned int)32, (unsigned int)64, (unsigned int)128, (unsigned int)128, (deep_gemm::GemmType)2>(T1)", 132, us=40 + rows * 0.3)  # fmt: skip
        run.k(f"void deep_ep::{low}::combine<(bool)1, (int)7168>(T1)", (24, 1, 1), us=30)
    else:
        run.k("void moe_align_block_size_kernel<int>(T1 *)", 1, us=4)
        run.k("fused_moe_kernel", 500, us=40 + rows * 0.4)
        run.k(F_ACT, rows * 8, us=4)
        run.k("fused_moe_kernel", 500, us=30 + rows * 0.3)
        run.k("void moe_sum_reduce_kernel<__nv_bfloat16>(T1 *)", rows, us=4)


def sglang(  # noqa: PLR0913 (a run is stated by keywords)
    run: Run,
    chunks: Sequence[int] = (),
    decodes: int = 0,
    *,
    attention: str = "infer",
    count: int = 6,
    graph: int | None = None,
    padded: int | None = None,
    marker: str | None = None,
    overlap: bool = True,
    sampler: str | None = "top_p",
    moe: str | None = None,
    names: bool = True,
    kv: int = 1500,
) -> None:
    """One SGLang step: extend or decode (both only with ``mixed``)."""
    tokens, requests = sum(chunks) + decodes, len(chunks) + decodes
    rows = padded or tokens
    run.begin(
        "mixed" if chunks and decodes else "prefill" if chunks else "decode", sum(chunks), decodes, len(chunks), decodes
    )
    scope = run.range(marker) if marker else None
    if scope:
        scope.__enter__()
    if names:
        run.k("alloc_extend_kernel" if chunks else "alloc_decode_kernel", requests, us=2)
        if chunks:
            run.k("write_req_to_token_pool_triton", requests, us=2)
    run.k("create_flashinfer_kv_indices_triton" if attention == "infer" else "compute_position_kernel", requests, us=2)
    run.copy("h2d", 4 * requests)

    def layer(first: bool) -> None:
        run.k(F_NORM if first else F_ADD_NORM, rows, us=2 + rows * 0.004)
        vllm.gemm(run, rows, 50)
        run.k(F_ROPE, (ceil(rows / 4), 40, 1), us=2 + rows * 0.003)
        run.k(STORE, (ceil(rows / 8), 1, 1), us=2)
        _attend(run, rows, attention, chunks, decodes, kv)
        vllm.gemm(run, rows, 33)
        run.k(F_ADD_NORM, rows, us=2 + rows * 0.004)
        if moe:
            _experts(run, rows, moe, decodes_only=not chunks)
        else:
            vllm.gemm(run, rows, 235)
            run.k(F_ACT, rows, us=2 + rows * 0.01)
            vllm.gemm(run, rows, 117)

    def body() -> None:
        run.k(vllm.GATHER, rows, us=2 + rows * 0.004)
        for number in range(count):
            layer(number == 0)
        run.k(F_ADD_NORM, rows, us=2)
        if graph is not None:
            vllm.gemm(run, rows, 1050, names=(vllm.HEAD,))

    forward(run, body, graph, requests)
    if sampler == "top_p":
        run.k(SOFT, requests, us=6)
        run.k(TOPP, requests, us=9)
    else:
        run.k(vllm.ARGMAX, (requests, 1, 1), us=9)
    run.copy("d2h", 8 * requests)
    if scope:
        scope.__exit__(None, None, None)
    if not overlap:
        run.sync(150)
    else:
        run.cpu = max(run.cpu, max(run.busy.values()) - 400_000)


T_NORM = "void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, (bool)0>(const T1 *, T1 *)"
T_FMHA = "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_tma_ws_sm90_kernel"
T_UPDATE = (
    "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, __nv_bfloat16, (int)128, (bool){gen}>(T1)"
)


def trtllm(  # noqa: PLR0913 (a run is stated by keywords)
    run: Run,
    chunks: Sequence[int] = (),
    decodes: int = 0,
    *,
    count: int = 6,
    graph: int | None = None,
    padded: int | None = None,
    marker: str | None = None,
    twice: bool = False,
    kv: int = 1500,
    xqa: bool = True,
    reduce: str | None = None,
    sampler: str | None = "argmax",
    nosync: bool = True,
) -> None:
    """One TensorRT-LLM iteration; ``twice``: the overlap loop closes its scope and opens it again for the sampler."""
    tokens, requests = sum(chunks) + decodes, len(chunks) + decodes
    rows = padded or tokens
    run.begin(
        "mixed" if chunks and decodes else "prefill" if chunks else "decode", sum(chunks), decodes, len(chunks), decodes
    )
    scope = run.range(marker, domain="TensorRT-LLM", registered=True) if marker else None
    if scope:
        scope.__enter__()
    run.copy("h2d", 8 * tokens)

    def body() -> None:
        run.k(vllm.GATHER, rows, us=2)
        for number in range(count):
            run.k(F_NORM if number == 0 else F_ADD_NORM, rows, us=2 + rows * 0.004)
            vllm.gemm(run, rows, 50)
            if chunks:
                run.k(
                    "void tensorrt_llm::kernels::computeSeqAndPaddingOffsets<__nv_bfloat16, (int)256>(T1)",
                    len(chunks),
                    us=2,
                )
                run.k(T_UPDATE.format(gen=0), (32, len(chunks), 1), us=3, own="prefill")
                run.k(T_FMHA, (132, 1, 1), us=6 + sum(chunks) * kv * 2e-5, own="prefill")
            if decodes:
                batch = rows if graph is not None else decodes
                run.k(T_UPDATE.format(gen=1), (batch, 8, 1), us=3, own="decode")
                if xqa:
                    run.k("kernel_mha", (4, 8, batch), us=4 + decodes * kv * 2e-3, own="decode")
                else:
                    run.k("void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short, (int)128>(T1)", (32, batch, 1), us=4 + decodes * kv * 2e-3, own="decode")  # fmt: skip
            vllm.gemm(run, rows, 33)
            if reduce:
                run.k(
                    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)0, __nv_bfloat16, (int)2>(T1)",
                    24,
                    us=8,
                )
            else:
                run.k(F_ADD_NORM, rows, us=2 + rows * 0.004)
            vllm.gemm(run, rows, 235)
            run.k(
                "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float>>(T1 *, const T1 *, int)",
                rows,
                us=2 + rows * 0.01,
            )
            vllm.gemm(run, rows, 117)
        run.k(F_ADD_NORM, rows, us=2)
        if graph is not None:
            vllm.gemm(run, rows, 1050, names=(vllm.HEAD,))

    forward(run, body, graph, requests)
    if scope:
        scope.__exit__(None, None, None)
    scope = run.range(marker, domain="TensorRT-LLM", registered=True) if marker and twice else None
    if scope:
        scope.__enter__()
    run.k(vllm.ARGMAX if sampler == "argmax" else "fast_greedy_sample_kernel", (requests, 1, 1), us=9)
    run.copy("d2h", 8 * requests)
    if scope:
        scope.__exit__(None, None, None)
    if not nosync:
        run.sync(100)
    else:
        run.cpu = max(run.cpu, max(run.busy.values()) - 300_000)


L_NORM = "void rms_norm_f32<(int)1024, (bool)1, (bool)0>(const float *, float *, int, long, long, long, float)"
L_Q8 = "quantize_q8_1(const float *, void *, long, long, long, long, long, unsigned int, unsigned int)"
L_MMQ8 = "void quantize_mmq_q8_1<(mmq_q8_1_ds_layout)1>(const float *, const int *, void *, long)"
L_VEC = "void mul_mat_vec_q<(ggml_type)12, (int){n}, (bool)0, (bool)0>(const void *, const void *, const int *)"
L_MMQ = "void mul_mat_q<(ggml_type)12, (int){j}, (bool)0>(const char *, const int *, const int *)"
L_ROPE = "void rope_neox<(bool)1, (bool)0, float, float>(const T3 *, T4 *, int)"
L_SET = "void k_set_rows<float, __half, long>(const T1 *, const T3 *, T2 *)"
L_FAVEC = "void flash_attn_ext_vec<(int)128, (int)1, (ggml_type)1, (ggml_type)1, (bool)0>(const char *)"
L_FAF16 = "void flash_attn_ext_f16<(int)128, (int)128, (int){a}, (int){b}, (int)4, (bool)0, (bool)0>(const char *)"
L_COMBINE = "void flash_attn_combine_results<(int)128>(const float *, const float2 *, float *, int)"


def llama(run: Run, chunks: Sequence[int] = (), decodes: int = 0, *, count: int = 6, graph: int | None = None) -> None:
    """One llama.cpp ubatch: decoding slots and prompts may share it."""
    tokens, requests = sum(chunks) + decodes, len(chunks) + decodes
    run.begin(
        "mixed" if chunks and decodes else "prefill" if chunks else "decode", sum(chunks), decodes, len(chunks), decodes
    )
    run.copy("h2d", 4096 * tokens)

    def mul(rows: int, mb: int) -> None:
        if rows <= 8:
            run.k(L_Q8, (16, rows, 1), us=2)
            run.k(L_VEC.format(n=rows), (mb * 40, 1, 1), us=mb / 0.9)
        else:
            run.k(L_MMQ8, (rows, 8, 1), us=2 + rows * 0.004)
            run.k(
                L_MMQ.format(j=min(128, -(-rows // 8) * 8)),
                (mb * 2, ceil(rows / 128), 1),
                us=max(mb / 0.9, rows * mb * 0.006),
            )

    def body() -> None:
        for number in range(count):
            out = requests if number == count - 1 else tokens
            run.k(L_NORM, tokens, us=3 + tokens * 0.004)
            for mb in (9, 2, 2):
                mul(tokens, mb)
            run.k(L_ROPE, (tokens * 32, 1, 1), us=3)
            run.k(L_ROPE, (tokens * 8, 1, 1), us=2)
            run.k(L_SET, (tokens * 4, 1, 1), us=2)
            run.k(L_SET, (tokens * 4, 1, 1), us=2)
            if tokens <= 2:
                run.k(L_FAVEC, (1, 4, 32), us=8)
                run.k(L_COMBINE, (tokens, 32, 1), us=2)
            else:
                wide = 64 if tokens > 8 else 8
                run.k(
                    L_FAF16.format(a=wide // 8 if wide == 64 else 2, b=8 if wide == 64 else 4),
                    (128, 1, 1),
                    us=10 + tokens * 0.2,
                )
            mul(tokens, 9)
            if number == count - 1 and chunks and out != tokens:
                run.k("void k_get_rows_float<float, float>(const T1 *, const int *, T2 *)", (out, 16, 1), us=2)
                run.k("void k_get_rows_float<float, float>(const T1 *, const int *, T2 *)", (out, 16, 1), us=2)
            run.k("void k_bin_bcast<&op_add, float, float, float>(const T2 *)", (16, out, 1), us=2)
            run.k(L_NORM, out, us=3)
            mul(out, 32)
            if out > 8:
                mul(out, 32)
                run.k("void unary_gated_op_kernel<&op_silu, float>(const T2 *)", out * 14, us=3)
            mul(out, 32)
            run.k("void k_bin_bcast<&op_add, float, float, float>(const T2 *)", (16, out, 1), us=2)
        run.k(L_NORM, requests, us=3)
        mul(requests, 290)

    if graph is not None:
        with run.graph(graph):
            body()
    else:
        body()
    run.copy("d2h", requests * 512_000, us=20)
    run.sync(400)
