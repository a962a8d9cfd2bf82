"""Plain PyTorch programs: Hugging Face generate, encoders, diffusion, training, Whisper; and TurboMind."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from . import field_vllm as vllm
from .field_run import Run

VECTOR = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}>(int, T2, T3)"
UNROLLED = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int, T1, T2)"
STRIDED = "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::{}>>(int, T3)"
MUL = "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>"
MEAN = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float,"
    " float>, unsigned int, float, (int)4, (int)4>>(T3)"
)
CAT = (
    "void at::native::<unnamed>::CatArrayBatchedCopy_aligned16_contig<at::native::<unnamed>::OpaqueType<(unsigned int)2>,"
    " unsigned int, (int)4, (int)64, (int)64>(T1 *)"
)
LOOKUP = (
    "void at::native::<unnamed>::indexSelect{}Index<c10::BFloat16, long, unsigned int, (int)2, (int)2, (int)-2>(T1)"
)
GEMV = (
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, (int)128, (int)16, (int)4,"
    " (int)4, (bool)0, (bool)0, cublasGemvParamsEx<int>>(T11, T4, T4)"
)
SKINNY = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)"
BIG = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_{}"
TRAITS = (
    "pytorch_flash::Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t,"
    " pytorch_flash::Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>"
)
SDPA = f"void pytorch_flash::flash_fwd_kernel<{TRAITS}, (bool)0, (bool){{causal}}, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0>(pytorch_flash::Flash_fwd_params)"
SDPA_SPLIT = f"void pytorch_flash::flash_fwd_splitkv_kernel<{TRAITS}, (bool)0, (bool)0, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0>(pytorch_flash::Flash_fwd_params)"
SDPA_COMBINE = f"void pytorch_flash::flash_fwd_splitkv_combine_kernel<{TRAITS}, (int)4, (int)4, (bool)1>(pytorch_flash::Flash_fwd_params)"
EFFICIENT = (
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t,"
    " cutlass::arch::Sm80, (bool)1, (int)64, (int)128, (int)128, (bool)1, (bool)1>::Params)"
)
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)0, (bool)0>(T2 *, const T1 *, int, int, int)"
LAYER_NORM = "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, T2, const T1 *, T1 *)"
GELU = VECTOR.format("GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]")
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, (int)2, (bool)0>(T1)"


def generate(
    run: Run,
    prompts: Sequence[int] = (700, 300),
    new: int = 8,
    batch: int = 1,
    *,
    attention: str = "flash",
    count: int = 6,
    graph: int | None = None,
    sample: bool = False,
) -> None:
    """Hugging Face generate: norms, rotations and caches are elementwise kernels; one pass per token."""
    for prompt in prompts:
        _pass(run, prompt, batch, decode=False, attention=attention, count=count, graph=None, sample=sample)
        for _ in range(new):
            _pass(run, prompt, batch, decode=True, attention=attention, count=count, graph=graph, sample=sample)
        run.cpu += 60_000_000


def _pass(
    run: Run, prompt: int, batch: int, *, decode: bool, attention: str, count: int, graph: int | None, sample: bool
) -> None:
    tokens = batch if decode else prompt * batch
    run.begin("decode" if decode else "prefill", 0 if decode else tokens, batch if decode else 0, 0 if decode else batch,
              batch if decode else 0)  # fmt: skip
    run.k(VECTOR.format("CUDAFunctorOnSelf_add<long>"), 1, us=1.5)
    run.k(VECTOR.format("FillFunctor<long>"), 1, us=1)

    def model() -> None:
        run.k(LOOKUP.format("Large" if tokens > 16 else "Small"), tokens * 8 if tokens > 16 else 32, us=3)
        for _ in range(count):
            _norm(run, tokens)
            for mb in (33, 8, 8):
                _matmul(run, tokens, mb)
            _rotate(run, tokens)
            run.k(CAT, (32, 2, 1), us=4)
            run.k(CAT, (32, 2, 1), us=4)
            _attend(run, tokens, prompt, batch, decode, attention)
            run.k(UNROLLED, tokens * 8, us=2)
            _matmul(run, tokens, 33)
            run.k(VECTOR.format("CUDAFunctor_add<c10::BFloat16>"), tokens * 8, us=2)
            _norm(run, tokens)
            _matmul(run, tokens, 117)
            run.k(VECTOR.format("silu_kernel"), tokens * 14, us=3)
            _matmul(run, tokens, 117)
            run.k(VECTOR.format(MUL), tokens * 14, us=3)
            _matmul(run, tokens, 117)
            run.k(VECTOR.format("CUDAFunctor_add<c10::BFloat16>"), tokens * 8, us=2)
        _norm(run, tokens)
        run.k(GEMV if batch == 1 else SKINNY, 4000, us=500)

    if graph is None:
        model()
    else:
        with run.graph(graph):
            model()
    run.k(UNROLLED, 500 * batch, us=3)
    if sample:
        run.k(TOPK, batch, us=60)
        run.k(vllm.SOFTMAX, batch, us=20)
        run.k(vllm.EXPONENTIAL, 500, us=5)
    run.k(vllm.ARGMAX, batch, us=20)
    run.k(VECTOR.format("bitwise_or"), 1, us=1)
    run.copy("d2h", 1)
    run.sync(500)


def _norm(run: Run, tokens: int) -> None:
    run.k(UNROLLED, tokens * 4, us=2 + tokens * 0.004)
    run.k(VECTOR.format("pow_tensor_scalar_kernel_impl"), tokens * 4, us=2 + tokens * 0.004)
    run.k(MEAN, tokens, us=3 + tokens * 0.003)
    run.k(VECTOR.format("rsqrt_kernel_cuda"), 1, us=1.5)
    run.k(STRIDED.format(MUL), tokens * 8, us=2 + tokens * 0.005)


def _rotate(run: Run, tokens: int) -> None:
    for _ in range(2):
        run.k(STRIDED.format(MUL), tokens * 8, us=2 + tokens * 0.004)
        run.k(STRIDED.format("neg_kernel_cuda"), tokens * 4, us=2)
        run.k(CAT, (tokens, 2, 1), us=2)
        run.k(VECTOR.format("CUDAFunctor_add<c10::BFloat16>"), tokens * 8, us=2 + tokens * 0.004)


def _matmul(run: Run, tokens: int, mb: int) -> None:
    if tokens == 1:
        run.k(GEMV, mb * 20, us=mb / 1.2)
    elif tokens < 64:
        run.k(SKINNY, mb, us=mb / 1.2)
    else:
        run.k(BIG.format("tn"), (ceil(tokens / 128), mb, 1), us=max(mb / 1.2, tokens * mb * 0.006))


def _attend(run: Run, tokens: int, prompt: int, batch: int, decode: bool, attention: str) -> None:
    if attention == "flash" and decode:
        run.k(SDPA_SPLIT, (1, 4, batch * 8), us=9)
        run.k(SDPA_COMBINE, batch * 8, us=2)
    elif attention == "flash":
        run.k(SDPA.format(causal=1), (ceil(prompt / 128), batch, 32), us=6 + tokens * 0.05)
    elif attention == "efficient":
        run.k(EFFICIENT, (ceil((1 if decode else prompt) / 64), 32, batch), us=9 + tokens * 0.05)
    else:
        scores = "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, float>(T1)"
        run.k(scores if decode else BIG.format("tn"), 32, us=8 + tokens * 0.02)
        run.k(SOFTMAX, tokens * 8, us=4 + tokens * 0.02)
        run.k(UNROLLED, tokens * 8, us=3)
        run.k(scores if decode else BIG.format("nn"), 32, us=8 + tokens * 0.02)


BIDIRECTIONAL = SDPA.format(causal=0)


def encoder_layer(run: Run, tokens: int, batch: int, attention: str = BIDIRECTIONAL) -> None:
    run.k(LAYER_NORM, tokens, us=5)
    run.k(BIG.format("tn"), (ceil(tokens / 128), 24, 1), us=40)
    run.k(attention, (ceil(tokens / batch / 128), batch, 16), us=20)
    run.k(BIG.format("tn"), (ceil(tokens / 128), 8, 1), us=20)
    run.k(LAYER_NORM, tokens, us=5)
    run.k(BIG.format("tn"), (ceil(tokens / 128), 32, 1), us=60)
    run.k(GELU, tokens * 8, us=5)
    run.k(BIG.format("tn"), (ceil(tokens / 128), 8, 1), us=60)


def classify(run: Run, batches: Sequence[int], *, labels: bool = True) -> None:
    """BERT over batches of sentences; with labels, each ends in a softmax and an argmax."""
    run.outside()
    for batch in batches:
        run.k(LOOKUP.format("Large"), batch * 128, us=5)
        for _ in range(12):
            encoder_layer(run, batch * 128, batch)
        run.k(BIG.format("tn"), 4, us=10)
        if labels:
            run.k(vllm.SOFTMAX, batch, us=5)
            run.k(vllm.ARGMAX, batch, us=5)
        run.copy("d2h", batch * 4)
        run.sync(300)


def diffuse(run: Run, steps: int = 12) -> None:
    """A text encoder, then as many equal passes of a diffusion transformer as there are steps."""
    run.outside()
    run.k(LOOKUP.format("Large"), 77, us=3)
    for _ in range(12):
        encoder_layer(run, 77, 1)
    plain = vllm.FA3.format(m=128).replace("cutlass::arch::Sm90, (bool)1", "cutlass::arch::Sm90, (bool)0")
    for _ in range(steps):
        run.k("void timestep_embedding_kernel(float *)", 1, us=2)
        for _ in range(10):
            encoder_layer(run, 4096, 2, plain)
        run.k(BIG.format("tn"), (32, 2, 1), us=10)
        run.sync(100)


def train(run: Run, steps: int = 4) -> None:
    """Forward and backward passes with an optimiser behind them."""
    run.outside()
    for _ in range(steps):
        run.k(LOOKUP.format("Large"), 8192, us=20)
        for _ in range(8):
            encoder_layer(run, 8192, 4, vllm.FA2_PLAIN)
        run.k(BIG.format("tn"), (64, 250, 1), us=900)
        run.k(vllm.SOFTMAX, 8192, us=300)
        for _ in range(8):
            for _ in range(8):
                run.k(BIG.format("nn"), (64, 24, 1), us=50)
            run.k(
                "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<(int)128>>(T1)",
                (64, 4, 32),
                us=200,
            )
        run.k("void at::native::<unnamed>::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T1)", 300, us=300)
        run.sync(100)


LINEAR = (
    "void turbomind::attention_kernel<turbomind::AttentionUniversal<turbomind::arch::Sm80,"
    " turbomind::attention::Mainloop<turbomind::arch::Sm80, turbomind::attention::Impl<turbomind::attention::MMA_16816,"
    " __half, __half, (int)1, (int)64, (int)64>>, turbomind::LinearIteratorFactory<__half, (int)64, (int)128>,"
    " turbomind::attention::AttentionCtaMap>>(T1)"
)
BLOCK = LINEAR.replace(
    "LinearIteratorFactory<__half, (int)64, (int)128>, turbomind::attention::AttentionCtaMap",
    "BlockIteratorFactory<__half, __half, turbomind::block::Config<__half, __half, (int)64>, (int)64>,"
    " turbomind::attention::DecodingCtaMap",
)
RESIDUAL = "void turbomind::kernel::BiasResidualRMSNormKernel<__half, float, (int)8>(T1 *)"


def turbomind(
    run: Run, chunks: Sequence[int] = (), decodes: int = 0, *, two_streams: bool = True, count: int = 6
) -> None:
    """One TurboMind step: prompts and decoding requests attend on two streams of one layer."""
    tokens, requests = sum(chunks) + decodes, len(chunks) + decodes
    phase = "mixed" if chunks and decodes else "prefill" if chunks else "decode"
    run.begin(phase, sum(chunks), decodes, len(chunks), decodes)

    def gemm(mb: int) -> None:
        run.k(
            "void turbomind::gemm::gemm_kernel<turbomind::gemm::GemmUniversal<Sm80>>(T1)",
            100,
            us=max(mb / 1.3, tokens * mb * 0.005),
        )

    run.copy("h2d", 4 * tokens)
    run.k("void turbomind::embeddingLookupKernel<__half>(T1 *, const T1 *)", tokens, us=3)
    for _ in range(count):
        run.k(RESIDUAL, tokens, us=3)
        gemm(15)
        apart = run.stream + 2 if two_streams and chunks else run.stream
        if chunks:
            run.k(
                "void turbomind::ProcessKV_v2<(int)32, __half, __half, (int)128>(T1)",
                (ceil(max(chunks) / 32), 8, len(chunks)),
                us=4,
            )
            run.wait_stream(run.stream, apart)
            run.k(LINEAR, (ceil(max(chunks) / 64), 32, len(chunks)), us=10 + sum(chunks) * 0.02, own="prefill")
        if decodes:
            run.k(BLOCK, (8, decodes, 4), us=8 + decodes, own="decode", stream=apart)
            run.k("void turbomind::attention::reduce_kernel<turbomind::attention::Reduce<__half, (int)1>, (bool)1>(T1)", (32, decodes, 1), us=2, own="decode", stream=apart)  # fmt: skip
            run.wait_stream(apart, run.stream)
        gemm(9)
        run.k(RESIDUAL, tokens, us=3)
        gemm(60)
        run.k("void turbomind::activation_kernel<(int)4, __half, turbomind::SiluActivation>(T1)", tokens, us=3)
        gemm(30)
    run.k(RESIDUAL, tokens, us=3)
    run.k("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", 2000, us=600)
    run.k("void turbomind::softmax_kernel<float>(T1)", requests, us=10)
    run.k("void turbomind::sampling<float>(T1)", requests, us=10)
    run.copy("d2h", requests * 4)
    run.sync(100)
