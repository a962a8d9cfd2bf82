"""Kernel names: every rule in every spelling it can meet, every known name, and what is read out of names."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3

import polars as pl
import pytest

from trace_analyze.analysis.kernels.classify import NAME_FACTS, classify_names, kernel_table
from trace_analyze.analysis.records.tables import OP_CLASSES

TABLE = kernel_table()


def facts(*names: str) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"name_id": pl.Series(range(len(names)), dtype=pl.UInt32), "name": pl.Series(names, dtype=pl.String)}
    )
    return classify_names(frame.with_columns(short_name=pl.col("name")))


def fact(name: str) -> dict:
    return facts(name).row(0, named=True)


# -- rules -------------------------------------------------------------------------------------------------------------


def nsys(name: str) -> str:
    """The way Nsight Systems writes a name of c++filt."""
    name = name.replace("(anonymous namespace)::", "<unnamed>::").replace("> >", ">>")
    name = re.sub(r"(?<=[<,] )(-?\d+)u(?=[,>])|(?<=<)(-?\d+)u(?=[,>])", lambda m: f"(unsigned int){m[1] or m[2]}", name)
    name = re.sub(r"(?<=[<,] )(-?\d+)l(?=[,>])|(?<=<)(-?\d+)l(?=[,>])", lambda m: f"(long){m[1] or m[2]}", name)
    name = re.sub(r"(?<=, )(-?\d+)(?=[,>])|(?<=<)(-?\d+)(?=[,>])", lambda m: f"(int){m[1] or m[2]}", name)
    return re.sub(r"\b(true|false)\b", lambda m: f"(bool){int(m[1] == 'true')}", name)


def filt(name: str) -> str:
    """The way c++filt writes a name of Nsight Systems."""
    name = name.replace("<unnamed>::", "(anonymous namespace)::")
    name = re.sub(r"\(bool\)([01])", lambda m: ("false", "true")[int(m[1])], name)
    name = re.sub(
        r"\((unsigned int|unsigned long|long|int)\)(-?\d+)",
        lambda m: m[2] + {"unsigned int": "u", "unsigned long": "ul", "long": "l", "int": ""}[m[1]],
        name,
    )
    return name.replace(">>", "> >")


def ncu(name: str) -> str:
    """The way Nsight Compute writes it: no namespaces, no casts, bools as numbers."""
    name = filt(name).replace("(anonymous namespace)::", "").replace("> >", ">>")
    name = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", name))
    return re.sub(r"\b(?:\w+::)+", "", name)


EXAMPLES = [(rule, example) for rule in TABLE.rules for example in rule.examples]


def test_every_rule_has_an_example_and_a_known_op_class():
    assert [rule.pattern for rule in TABLE.rules if not rule.examples] == []
    classes = set(OP_CLASSES.categories)
    assert {rule.op_class for rule in TABLE.rules} <= classes
    assert {rule.fused_with for rule in TABLE.rules} - {""} <= classes
    assert {rule.phase for rule in TABLE.rules} <= {None, "prefill", "decode", "prefill_or_mixed", "mixed"}
    assert all((rule.phase is None) == (rule.strength is None) for rule in TABLE.rules)
    assert {rule.strength for rule in TABLE.rules} <= {None, "sure", "likely"}
    assert {rule.tokens_from for rule in TABLE.rules} <= {None, "grid_x", "grid_x_approx"}


@pytest.mark.parametrize("spell", [str, nsys, filt], ids=["as written", "Nsight Systems", "c++filt"])
def test_every_rule_is_reached_in_each_spelling(spell):
    found = facts(*(spell(example) for _, example in EXAMPLES))["rule"]
    wrong = [
        (rule.order, order, spell(example))
        for (rule, example), order in zip(EXAMPLES, found, strict=True)
        if order != rule.order
    ]
    assert wrong == []


def test_rules_that_need_no_namespace_are_reached_in_nsight_compute_spelling():
    wanted = [
        (rule, example)
        for rule, example in EXAMPLES
        if "::" not in rule.pattern and not example.startswith("_Z") and "(anonymous namespace)::" not in rule.pattern
    ]
    found = facts(*(ncu(example) for _, example in wanted))["op_class"]
    wrong = [
        (rule.order, rule.op_class, op_class, ncu(example))
        for (rule, example), op_class in zip(wanted, found, strict=True)
        if op_class != rule.op_class
    ]
    assert wrong == []


def test_spellings_give_the_same_facts():
    columns = [column for column in NAME_FACTS if column not in {"name_id"}]
    templated = [example for _, example in EXAMPLES if not example.startswith("_Z")]
    one, two = facts(*map(nsys, templated)).select(columns), facts(*map(filt, templated)).select(columns)
    differing = [
        (name, {c: (a[c], b[c]) for c in columns if a[c] != b[c]})
        for name, a, b in zip(templated, one.iter_rows(named=True), two.iter_rows(named=True), strict=True)
        if a != b
    ]
    assert differing == []


# -- meanings ----------------------------------------------------------------------------------------------------------

FA2 = "Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >"
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<{m}>, cute::C<128>, cute::C<128> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, {causal}, false, false, true, true, false, false, true, true, true, "
    "{split}, false>, E, S> > >(P)"
)
MEANINGS = [
    ("split KV without causal mask: one query token", f"void flash::flash_fwd_splitkv_kernel<{FA2}, false, false, false, false, true, false, true, false>(P)", {"op_class": "attention", "phase_hint": "decode", "hint_strength": "sure", "is_causal": False, "split_kv": True, "head_dim": 128, "attention_tile_q": 64, "dtype": "bf16"}),
    ("split KV with causal mask", f"void flash::flash_fwd_splitkv_kernel<{FA2}, true, false, false, false, true, false, false, false>(P)", {"phase_hint": "prefill_or_mixed", "hint_strength": "sure", "is_causal": True, "split_kv": False}),
    ("sliding window says nothing", f"void flash::flash_fwd_splitkv_kernel<{FA2}, false, true, false, false, true, false, false, false>(P)", {"op_class": "attention", "phase_hint": None}),
    ("PyTorch's copy without mask: may be an encoder", f"void pytorch_flash::flash_fwd_splitkv_kernel<{FA2}, false, false, false, false, true, false, true, false>(P)", {"op_class": "attention", "phase_hint": None}),
    ("contiguous KV, causal", f"void flash::flash_fwd_kernel<{FA2}, false, true, false, false, true, true, false>(P)", {"phase_hint": "prefill", "hint_strength": "sure", "is_causal": True}),
    ("contiguous KV, not causal: encoder, diffusion", f"void flash::flash_fwd_kernel<{FA2}, false, false, false, false, true, true, false>(P)", {"op_class": "attention", "phase_hint": None, "is_causal": False}),
    ("FA3 with one warpgroup", FA3.format(m=64, causal="true", split="true"), {"phase_hint": "decode", "hint_strength": "sure", "attention_tile_q": 64, "split_kv": True, "head_dim": 128}),
    ("FA3 with a large tile", FA3.format(m=128, causal="true", split="false"), {"phase_hint": "prefill_or_mixed", "hint_strength": "likely", "attention_tile_q": 128, "is_causal": True}),
    ("FlashInfer causal", "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u>, P>(P)", {"phase_hint": "prefill_or_mixed", "is_causal": True, "attention_tile_q": 128}),
    ("FlashInfer tensor-core decode", "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u, 1u>, P>(P)", {"phase_hint": "decode", "hint_strength": "sure", "is_causal": False, "attention_tile_q": 16}),
    ("trtllm-gen generation", "fmhaSm100aKernel_QE4m3KvE2m1OE4m3H128PagedKvDenseP16VarSeqQ8Kv128PersistentSwapsAbForGen", {"phase_hint": "decode", "dtype": "fp8", "head_dim": 128, "attention_tile_q": 8}),
    ("trtllm-gen context", "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", {"phase_hint": "prefill", "is_causal": True}),
    ("FlashMLA prefill namespace beats the decode word", "void legacy::sm100::prefill::sparse_fwd_for_small_topk::head128::flash_fwd_splitkv_mla_fp8_sparse_kernel<K>(P)", {"op_class": "attention", "phase_hint": "prefill"}),
    ("FlashMLA combine", "void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, 512, 8, 32, 256>(DecodingParams)", {"op_class": "attention_combine", "phase_hint": "decode"}),
    ("llama.cpp, three columns are three tokens", "void mul_mat_vec_q<(ggml_type)12, 3, false>(void const*)", {"op_class": "gemm", "tokens_in_name": 3, "weight_dtype": "int4", "dtype": "int8", "phase_hint": "decode"}),
    ("nvjet: second tile runs along tokens", "nvjet_tst_384x8_64x4_2x1_v_bz_TNT", {"op_class": "gemm", "dtype": "bf16", "tile_m": 384, "tile_n": 8, "tile_k": 64, "token_tile": 8, "phase_hint": None}),
    ("nvjet: first tile runs along tokens", "nvjet_hsh_32x64_64x16_1x2_h_bz_TNN", {"dtype": "fp16", "token_tile": 32}),
    ("nvjet in fp8 and fp4", "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", {"dtype": "fp8", "weight_dtype": None}),
    ("nvjet fp4", "nvjet_sm100_ootst_128x256_256x6_2x1_2cta_v_bz_TNT", {"dtype": "fp4"}),
    ("xmma bf16", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x256x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", {"dtype": "bf16", "tile_m": 64, "tile_n": 256, "tile_k": 64}),
    ("xmma fp32 on CUDA cores", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas", {"dtype": "fp32"}),
    ("xmma tf32", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage3_warpsize2x2x1_tensor16x8x8_kernel", {"dtype": "tf32"}),
    ("xmma fp8", "sm89_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32_execute_kernel", {"dtype": "fp8"}),
    ("cuBLAS legacy bf16", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", {"dtype": "bf16", "tile_m": 128, "tile_n": 64, "tile_k": 64, "token_tile": 64}),
    ("cuBLAS sgemm", "ampere_sgemm_32x128_tn", {"dtype": "fp32", "tile_m": 32, "tile_n": 128}),
    ("cuBLAS hgemm on tensor cores", "volta_h884gemm_256x128_ldg8_tn", {"dtype": "fp16"}),
    ("CUTLASS 2 in cuBLAS", "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)", {"dtype": "bf16", "tile_m": 256, "tile_n": 128, "tile_k": 32, "short_name": "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8"}),
    ("CUTLASS 3 in cuBLASLt", "cutlass3x_sm100_tensorop_s64x128x32gemm_e4m3_e5m2_f32_bf16_e5m2_64x128x128_1x1x1_0_tnn_align4_1sm_bias_bf16", {"dtype": "fp8", "tile_m": 64, "tile_n": 128, "tile_k": 128}),
    ("DeepGEMM: N and K are exact", "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 7168u, 2048u, 1u, 64u, 128u, 128u, 128u, 128u, 128u, 5u, 128u, 128u, 1u, true, 132u, (deep_gemm::GemmType)0, E>(float*)", {"op_class": "gemm", "dtype": "fp8", "shape_n": 7168, "shape_k": 2048, "tile_m": 64, "tile_n": 128, "tile_k": 128, "token_tile": 64}),
    ("DeepGEMM masked: experts", "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 7168u, 256u, 64u, 128u, 128u, 128u, 128u, 128u, 5u, 128u, 128u, 1u, true, 132u, (deep_gemm::GemmType)2, E>(float*)", {"op_class": "moe_gemm", "shape_n": 4096, "shape_k": 7168}),
    ("router GEMM: 10 tokens, 384 experts", "void router_gemm_kernel_bf16_output<__nv_bfloat16, 128, 8, 10, 384, 7168>(__nv_bfloat16*, __nv_bfloat16 const*)", {"op_class": "gemm", "tokens_in_name": 10, "shape_n": 384, "shape_k": 7168, "phase_hint": None}),
    ("small-batch GEMM: the first number is no token count", "void fused_a_gemm_kernel<1, 2112, 7168, 16, 8, 256, 16>(__nv_bfloat16*)", {"op_class": "gemm", "tokens_in_name": None, "shape_n": 2112, "shape_k": 7168, "token_tile": 8, "hint_strength": "likely"}),
    ("Marlin: bf16 activations, 4-bit weights, 32 rows", "void marlin::Marlin<1125899906909960l, 1125899906843648l, 1125899906909960l, 1125899906909960l, 128, 2, 4, 8, false, 4, 2, false>(int4 const*)", {"op_class": "gemm", "dtype": "bf16", "weight_dtype": "int4", "tile_m": 32, "tile_n": 64, "tile_k": 128, "token_tile": 32}),
    ("Marlin, older template", "void marlin::Marlin<__half, 1125899907892224l, 256, 1, 8, 8, true, 4, 8, false>(int4 const*)", {"dtype": "fp16", "weight_dtype": "int4", "tile_m": 16}),
    ("Marlin with fp8 weights", "void marlin::Marlin<__nv_bfloat16, 2814749767172868l, 256, 3, 16, 4, false, 4, 1, false>(int4 const*)", {"dtype": "bf16", "weight_dtype": "fp8"}),
    ("Machete", "void cutlass::device_kernel<machete::MacheteKernelTemplate<cutlass::bfloat16_t, cutlass::integer_subbyte<4, false>, cutlass::bfloat16_t, float> >(P)", {"op_class": "gemm", "dtype": "bf16", "weight_dtype": "int4"}),
    ("AWQ", "void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*, int*)", {"op_class": "gemm", "dtype": "fp16", "weight_dtype": "int4"}),
    ("GPTQ", "vllm::gptq::gemm_half_q_half_gptq_3bit_kernel<true, 6>(__half const*)", {"dtype": "fp16", "weight_dtype": "int3", "phase_hint": "decode", "hint_strength": "likely"}),
    ("trtllm-gen expert GEMM: fp4 weights, fp8 activations, 16 tokens", "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f", {"op_class": "moe_gemm", "dtype": "fp8", "weight_dtype": "fp4", "tile_m": 128, "tile_n": 16, "tile_k": 256, "token_tile": 16}),
    ("OpenAI triton_kernels", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", {"op_class": "moe_gemm", "dtype": "bf16", "weight_dtype": "fp4", "tile_m": 16, "tile_n": 128, "tile_k": 256}),
    ("Tensile", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN_LDSB1", {"op_class": "gemm", "dtype": "bf16", "tile_m": 64, "tile_n": 32, "tile_k": 256, "token_tile": 32, "short_name": "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV MT64x32x256"}),
    ("a matrix times a vector is decode only likely", "std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, float, float, true, true, false, false, 5, false, cublasGemvParamsEx<int> >(P)", {"op_class": "gemm", "phase_hint": "decode", "hint_strength": "likely", "dtype": "bf16", "short_name": "gemvx::kernel"}),
    ("doubles are no serving", "void gemv2T_kernel_val<int, int, double, double, double, double, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int> >(P)", {"op_class": "gemm", "phase_hint": None, "dtype": "fp64"}),
    ("norm: one block per token", "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)", {"op_class": "norm", "tokens_from": "grid_x", "dtype": "bf16"}),
    ("norm over heads: not a token count", "void vllm::rms_norm_kernel<c10::BFloat16, 8, 3>(c10::BFloat16*)", {"op_class": "norm", "tokens_from": None}),
    ("norm backward: not a token count", "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(float const*)", {"op_class": "norm", "tokens_from": None, "phase_hint": None}),
    ("torch SiLU is flattened", "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int)", {"op_class": "activation", "tokens_from": None}),
    ("vLLM SiLU: one block per row", "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*)", {"op_class": "activation", "tokens_from": "grid_x"}),
    ("rope", "void vllm::rotary_embedding_kernel<c10::Half, true>(long const*)", {"op_class": "rope", "tokens_from": "grid_x"}),
    ("KV write", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)", {"op_class": "kv_write", "tokens_from": "grid_x"}),
    ("short softmax is no sampler", "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*)", {"op_class": "reduce"}),
    ("noise is no sampler", "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, void at::native::templates::cuda::normal_and_transform<float, float> >(long)", {"op_class": "elementwise"}),
    ("argmax samples", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >(P)", {"op_class": "sampling", "short_name": "reduce_kernel ArgMaxOps"}),
    ("convolution has no place in a layer", "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4_warpsize4x1x1_g1_tensor16x8x16_execute_kernel__5x_cudnn", {"op_class": "convolution", "library": "cuDNN, CK, MIOpen"}),
    ("training attention has no phase", "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2, 2, 2> > > >(P)", {"op_class": "attention", "phase_hint": None}),
    ("load time", "void marlin::gptq_marlin_repack_kernel<256, 8, false>(unsigned int const*)", {"op_class": "load_time", "load_time": True}),
    ("all-reduce with norm", "void turbomind::comm::AllreduceResidualBiasRMSnormV_NVLS<__nv_bfloat16, 8, 1024, 1>(P)", {"op_class": "collective", "fused_with": "norm"}),
    ("NCCL names its type", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {"op_class": "collective", "dtype": "bf16", "library": "NCCL"}),
    ("embedding fused with the first norm opens a step", "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", {"op_class": "embedding", "fused_with": "norm"}),
    ("torch.compile norm", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1", {"op_class": "norm", "tokens_from": None}),
    ("unknown", "nussinov_gpu(unsigned char *, unsigned int *)", {"op_class": "other", "rule": -1, "short_name": "nussinov_gpu", "library": ""}),
    ("a user's own GEMM", "tiled_gemm(float *, float *, float *, int, int, int)", {"op_class": "gemm", "library": "unknown", "dtype": None}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), [row[1:] for row in MEANINGS], ids=[row[0] for row in MEANINGS])
def test_what_a_name_says(name, expected):
    found = fact(name)
    assert {column: found[column] for column in expected} == expected


def test_columns_rows_and_order_follow_the_names():
    found = facts("b", "void vllm::rms_norm_kernel<float, 8, 2>(float*)", "b", "")
    assert dict(found.schema) == dict(NAME_FACTS)
    assert found["name_id"].to_list() == [0, 1, 2, 3]
    assert found["op_class"].to_list() == ["other", "norm", "other", "other"]


def test_no_names():
    assert facts().height == 0


def test_a_mangled_name_gets_a_readable_short_name():
    name = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"
    assert fact(name)["short_name"] == "add_rmsnorm_quant_kernel"
    cutlass = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13CollectiveMmaINS1_31MainloopSm120TmaWarpSpecializedILi2ELi2EEEEEEEEEvNT_6ParamsE"
    assert fact(cutlass)["short_name"] == "GemmUniversal"


def test_short_names_hold_no_template_noise():
    short = facts(*(example for _, example in EXAMPLES))["short_name"]
    assert short.str.contains(r"[<>(]|^_Z").sum() == 0
    assert short.str.len_chars().min() > 0


# -- names seen elsewhere ----------------------------------------------------------------------------------------------

UNKNOWN_ALLOWED = {  # op classes 'other' that are right: they are no part of a served model
    "timestep", "trsm",
}  # fmt: skip


def test_known_serving_kernels_have_a_class(shared_traces):
    table = shared_traces.parent / "facts" / "real_kernel_names.tsv"
    if not table.is_file():
        pytest.skip("no table of real kernel names beside the captures")
    with table.open(encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    assert len(names) > 700
    found = facts(*names).with_columns(name=pl.Series(names))
    unknown = found.filter(pl.col("op_class") == "other")["name"].to_list()
    assert [name for name in unknown if not any(word in name for word in UNKNOWN_ALLOWED)] == []
    gemms = found.filter(pl.col("op_class") == "gemm")
    assert gemms["dtype"].null_count() <= 0.1 * gemms.height


def kernel_names(folder) -> dict[str, set[str]]:
    """Distinct kernel names per file of the captures made by others."""
    names: dict[str, set[str]] = {}
    for path in sorted((folder / "nsys").glob("*.sqlite")):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            query = "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
            names[path.name] = {row[0] for row in connection.execute(query)}
        connection.close()
    for path in sorted((folder / "kineto").glob("*.json.gz")):
        with gzip.open(path) as file:
            names[path.name] = {e["name"] for e in json.load(file)["traceEvents"] if e.get("cat") == "kernel"}
    return names


def test_captures_by_others_are_classified(shared_traces):
    by_file = kernel_names(shared_traces)
    assert len(by_file) >= 18
    for file, names in by_file.items():
        found = facts(*sorted(names))
        assert found["short_name"].str.contains(r"[<>]|^_Z").sum() == 0, file
        if any(engine in file for engine in ("vllm", "sglang", "dit", "text-encoder")):
            assert found.filter(pl.col("op_class") == "other").height == 0, file
    encoder = next(names for file, names in by_file.items() if "text-encoder" in file)
    diffusion = next(names for file, names in by_file.items() if "dit" in file)
    assert facts(*sorted(encoder | diffusion))["phase_hint"].null_count() == len(encoder | diffusion)
