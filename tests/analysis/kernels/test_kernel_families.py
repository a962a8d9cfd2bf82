"""Kernel families of 2025 and 2026: real names and what they say, and shares over everything collected by others."""

from __future__ import annotations

import csv
import re

import polars as pl
import pytest

import trace_analyze as ta
from trace_analyze.analysis.kernels.classify import classify_names

from ...conftest import REPOSITORY

LARGEST_UNKNOWN_NAMES = 0.03
LARGEST_UNKNOWN_TIME = 0.02
LANGUAGE_MODELS = (  # of the captures by others; a graph capture at start-up is refused and not among them
    *("kineto/vllm-mixed", "kineto/vllm-decode", "kineto/sglang", "kineto/vllm-tp8", "nsys-stats/dsocr"),
    "nsys/2026.2.1-h100x2-text-encoder",
)


def facts(*names: str) -> pl.DataFrame:
    columns = {"name_id": pl.Series(range(len(names)), dtype=pl.UInt32), "name": names, "short_name": names}
    return classify_names(pl.DataFrame(columns))


MAJORS = "(cute::UMMA::Major)0, (cute::UMMA::Major)0"
BLACKWELL = (
    "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<" + MAJORS + ", {scales}0u, {n}u, {k}u, 64u, 128u, 128u, 1u, 128u, "
    "128u, 128u, 6u, 128u, 128u, 2u, true, 148u, true, (deep_gemm::GemmType){kind}, false, cutlass::float_e4m3_t, "
    "{weights}, cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>(int*, unsigned int)"
)
FP4 = "cutlass::detail::float_e2m1_unpacksmem_t"
FP8 = "cutlass::float_e4m3_t"
DOWN = "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_Ab32_Bb32_t128x32x256_s4_et128x32_m256x32x32_c2x1x1_rM_TN_transOut_schPd2x1x2x3_bN_clmp_dynB_sm100f"

# (what it shows, name, facts)
FAMILIES = [
    ("prefill_kernel holds fill_kernel", "_sparse_mla_prefill_kernel", {"op_class": "attention", "phase_hint": "prefill"}),
    ("a fill is a copy", "_fill_kernel", {"op_class": "copy"}),
    ("gemma holds gemm", "_gemma_routing_post_topk_kernel", {"op_class": "moe_routing"}),
    ("a norm of Gemma", "_grouped_gemma_rmsnorm_kernel", {"op_class": "norm"}),
    ("dcp in a table's name", "transform_index_page_table_dcp_kernel", {"op_class": "step_metadata"}),
    ("DeepGEMM, granularities are no shapes", BLACKWELL.format(scales="128u, 128u, ", n=4096, k=7168, kind=0, weights=FP8), {"op_class": "gemm", "shape_n": 4096, "shape_k": 7168, "tile_m": 64, "tile_n": 128, "tile_k": 128, "dtype": "fp8", "weight_dtype": None}),
    ("DeepGEMM with an alignment", BLACKWELL.format(scales="128u, 32u, 128u, ", n=4096, k=7168, kind=0, weights=FP4), {"shape_n": 4096, "shape_k": 7168, "tile_m": 64, "dtype": "fp8", "weight_dtype": "fp4"}),
    ("DeepGEMM, shapes not compiled in", BLACKWELL.format(scales="128u, 128u, ", n=0, k=0, kind=2, weights=FP8), {"op_class": "moe_gemm", "shape_n": None, "shape_k": None, "tile_m": 64, "weight_dtype": None}),
    ("DeepGEMM, batched is no expert", BLACKWELL.format(scales="128u, 128u, ", n=512, k=128, kind=4, weights=FP8), {"op_class": "gemm", "shape_n": 512}),
    ("DeepGEMM, before granularities", "void deep_gemm::sm100_fp8_gemm_1d1d_impl<" + MAJORS + ", 0u, 4096u, 7168u, 128u, 192u, 64u, 1u, 128u, 128u, 128u, 6u, 128u, 128u, 2u, false, 150u, (deep_gemm::GemmType)0, false, cutlass::bfloat16_t, E>(P)", {"shape_n": 4096, "shape_k": 7168, "tile_m": 128, "tile_n": 192, "tile_k": 64, "dtype": "fp8"}),
    ("DeepGEMM, cut off: fp8 until told otherwise", "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 128u, 128u", {"op_class": "gemm", "dtype": "fp8", "weight_dtype": None, "shape_n": None, "tile_m": None}),
    ("DeepGEMM, experts and exchange in one", "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<512u, 7168u, 2048u, 256u, 8u, 32u>(P)", {"op_class": "moe_gemm", "dtype": "fp8", "weight_dtype": "fp4"}),
    ("mixing of residual streams is no GEMM", "void deep_gemm::sm100_mega_mhc_impl<5120u, 40u, 148u, true, true, false, 0u>(P)", {"op_class": "elementwise"}),
    ("blanking of indexer logits", "void deep_gemm::smxx_clean_logits<1u, 1024u, 4u>(unsigned int, float*)", {"op_class": "attention", "phase_hint": None}),
    ("trtllm-gen, whole: A is the weights", DOWN, {"op_class": "moe_gemm", "dtype": "fp8", "weight_dtype": "fp4", "token_tile": 32}),
    ("trtllm-gen, cut off: the order is not known", DOWN[:90], {"op_class": "moe_gemm", "dtype": None, "weight_dtype": None, "token_tile": None, "tile_m": 128, "tile_n": 32}),
    ("trtllm-gen, cut off, but alike", "bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x16x512u2_s5_et128x16_m128x16", {"op_class": "moe_gemm", "dtype": "fp4", "weight_dtype": None}),
    ("Blackwell nvjet", "nvjet_sm100_tst_512x24_64x3_4x1_v_bz_TNT", {"op_class": "gemm", "dtype": "bf16", "token_tile": 24}),
    ("OpenAI triton_kernels, persistent", "_p_matmul_ogs_NNT_fp8e5xfp8e5xmxfp4_16x256x128x1", {"op_class": "moe_gemm", "dtype": "fp8", "weight_dtype": "fp4"}),
    ("AITER experts with their activation", "mfma_moe1_silu_mul_afp8_wfp4_fp8_t32x128x256_pm1_fp8q_sort_async_gui_xcd4_situv2", {"op_class": "moe_gemm", "dtype": "fp8", "weight_dtype": "fp4"}),
    ("AITER experts, second product", "gemm2_a4w4_port_hmax8192_imax8192_bm32_bn128_bk128_atomic_a8_g2ks2_bhoist_apf", {"op_class": "moe_gemm", "dtype": "fp4"}),
    ("CuTe DSL experts", "kernel_cutlass_kernel_flashinferfused_moecute_dslMoEDynamicKernel_object_at__tensorptri32gmemo1", {"op_class": "moe_gemm"}),
    ("CuTe DSL small GEMM", "kernel_cutlass_kernel_vllmcute_dslLLBf16SplitK_object_at__tensorptrbf16gmem", {"op_class": "gemm"}),
    ("FlashAttention 4", "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptr", {"op_class": "attention"}),
    ("early FlashAttention 3", "void flash::compute_attn_ws<Flash_fwd_kernel_traits<128, 128, 128, 12, 2, false, 1, cutlass::bfloat16_t>, true, flash::StaticPersistentTileScheduler>(flash::Params)", {"op_class": "attention", "phase_hint": None, "dtype": "bf16"}),
    ("SageAttention", "void qk_int_sv_f8_attn_kernel<128u, 64u, 32u, 64u, 128u, (DataType)0>(signed char*)", {"op_class": "attention"}),
    ("FlashAttention 2, cut off", "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false", {"op_class": "attention", "phase_hint": None}),
    ("FlashMLA, sparse: SGLang's prompts too", "void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<K<64> >(P)", {"op_class": "attention", "phase_hint": "decode", "hint_strength": "likely"}),
    ("FlashMLA, dense", "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, cutlass::bfloat16_t, 512> >(P)", {"phase_hint": "decode", "hint_strength": "sure"}),
    ("DSA logits", "void deep_gemm::sm100_paged_mqa_logits<1u, 32u, 128u, 64u, true, true>(P)", {"op_class": "attention"}),
    ("DSA top-k", "void vllm::cooperative::cooperative_topk_cs2<512u>(vllm::cooperative::CooperativeTopKParams<512u>)", {"op_class": "attention", "phase_hint": None}),
    ("vLLM's top-k samples", "void vllm::topk_kernel<float>(float*, int)", {"op_class": "sampling"}),
    ("SGLang's top-k indexes", "<unnamed>::topk_kernel(<unnamed>::FastTopKParams)", {"op_class": "attention"}),
    ("latent attention of CuTe DSL", "kernel_cutlass_split_kv_kernel_tokenspeed_mlamla_decode_fp8BlackwellMultiHeadLatentAttention_object_at__tensorptr", {"op_class": "attention", "phase_hint": "decode"}),
    ("rotation and cache write", "void rotary_embedding_with_kv_cache_kernel<__nv_bfloat16, 8>(__nv_bfloat16*)", {"op_class": "kv_write", "fused_with": "rope"}),
    ("AITER's rotation and cache write", "_fused_qk_rope_cat_and_cache_mla_kernel", {"op_class": "kv_write", "fused_with": "rope"}),
    ("TensorRT-LLM's rotation and cache write", "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, __nv_bfloat16, 256, 128>(P)", {"op_class": "kv_write", "fused_with": "rope"}),
    ("a table of sines is no cache", "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u, 8u, 16u, __nv_bfloat16, long>(__nv_bfloat16*)", {"op_class": "rope"}),
    ("a gather reads the cache", "void vllm::cp_gather_cache<unsigned char>(unsigned char const*)", {"op_class": "copy"}),
    ("q and k, norm and rotation", "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(__nv_bfloat16*)", {"op_class": "rope", "fused_with": "norm"}),
    ("Mamba, decode", "_selective_scan_update_kernel", {"op_class": "attention", "phase_hint": "decode", "hint_strength": "likely"}),
    ("Mamba, prefill", "_chunk_state_fwd_kernel", {"op_class": "attention", "phase_hint": "prefill", "hint_strength": "likely"}),
    ("DeltaNet, decode", "fused_recurrent_gated_delta_rule_packed_decode_kernel", {"op_class": "attention", "phase_hint": "decode", "hint_strength": "likely"}),
    ("DeltaNet, prefill", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", {"op_class": "attention", "phase_hint": "prefill", "hint_strength": "likely"}),
    ("DeltaNet on Blackwell", "kernel_cutlass_kernel_gdn_blackwellSm100ChunkHKernel_object_at__tensorptrbf16gmem", {"op_class": "attention", "phase_hint": "prefill"}),
    ("DeepSeek gate", "void tile_kernels::top2_sum_gate_kernel<8, 256>(float const*, int)", {"op_class": "moe_routing"}),
    ("DeepSeek, to the experts", "expand_to_fused_with_sf_kernel", {"op_class": "moe_routing"}),
    ("DeepSeek, back from the experts", "reduce_fused_kernel", {"op_class": "moe_routing"}),
    ("an all-reduce that is fused", "inkling_two_shot_all_reduce_fused_kernel", {"op_class": "collective"}),
    ("DeepSeek, cast", "per_token_cast_to_fp8_kernel", {"op_class": "quantize"}),
    ("DeepSeek, sampler", "void vllm::mask_top_p_kernel<float>(float*)", {"op_class": "sampling"}),
    ("DeepSeek, penalty", "apply_penalty_kernel", {"op_class": "sampling"}),
    ("TensorRT-LLM, sampler", "void tensorrt_llm::kernels::topKStage1<float, (int)128, (int)8>(const float *)", {"op_class": "sampling"}),
    ("TensorRT-LLM, sampler's end", "void tensorrt_llm::kernels::topKStage2Sampling<float, 256, 128>(int const*)", {"op_class": "sampling"}),
    ("TensorRT-LLM, softmax of logits", "void tensorrt_llm::kernels::addBiasSoftMax<float>(float*)", {"op_class": "sampling"}),
    ("TensorRT-LLM, length", "tensorrt_llm::kernels::lengthCriterion(tensorrt_llm::kernels::FinishedState*)", {"op_class": "sampling"}),
    ("TensorRT-LLM, ids of the next step", "tensorrt_llm::kernels::copyNextStepIds(int*, int*)", {"op_class": "step_metadata"}),
    ("TensorRT-LLM, beams", "void tensorrt_llm::kernels::beamStage1Kernel<float, 4, 128>(float const*)", {"op_class": "sampling"}),
    ("TensorRT-LLM, random states of new requests", "void tensorrt_llm::kernels::curandInitialize(curandStateXORWOW*, int const*)", {"op_class": "step_metadata"}),
    ("MoRI, exchange between experts", "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(P)", {"op_class": "collective"}),
    ("DeepSeek, activation with cast", "swiglu_forward_and_per_token_cast_kernel", {"op_class": "activation", "fused_with": "quantize"}),
    ("AITER's rotation", "void aiter::kn_entry_2c_sbhd_cached_indirect_inplace<aiter::OpCachedFwd, 0>(P)", {"op_class": "rope"}),
    ("CK attention", "void ck::kernel_batched_gemm_softmax_gemm_xdl_cshuffle_v1<ck::X>(P)", {"op_class": "attention"}),
    ("DeepEP, low latency", "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", {"op_class": "collective"}),
    ("DeepEP, second version", "void deep_ep::elastic::combine_reduce_epilogue_impl<7168, 8>(void*)", {"op_class": "collective"}),
    ("SGLang's own all-reduce", "void sglang::all_reduce_pull_res_kernel<8u, false, true>(P)", {"op_class": "collective"}),
    ("adapter", "_lora_shrink_kernel", {"op_class": "lora"}),
    ("adapter, Punica", "void bgmv_kernel<32, 4096, __half, float, __half>(__half*)", {"op_class": "lora"}),
    ("adapter, finalisation of experts", "_finalize_lora_kernel", {"op_class": "moe_routing"}),
    ("cuDNN convolution", "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128_32x3_nhwc_align8>(P)", {"op_class": "convolution"}),
    ("CK convolution", "void ck::tensor_operation::device::(anonymous namespace)::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<ck::GridwiseGroupedConvFwd<1> >(P)", {"op_class": "convolution"}),
    ("batch norm", "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(float)", {"op_class": "norm", "tokens_from": None}),
    ("a function as template argument, mangled", "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i", {"short_name": "act_and_mul_kernel", "op_class": "activation", "dtype": "bf16", "tokens_from": "grid_x"}),
    ("the same in a namespace", "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_ZNS_4siluIS2_EES3_S5_EEEEvPS3_PS4_i", {"short_name": "act_and_mul_kernel", "op_class": "activation"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), [row[1:] for row in FAMILIES], ids=[row[0] for row in FAMILIES])
def test_what_a_family_says(name, expected):
    found = facts(name).row(0, named=True)
    assert {column: found[column] for column in expected} == expected


def collected(shared_traces) -> list[dict[str, str]]:
    table = shared_traces.parent / "facts" / "kernel_names_2026.tsv"
    if not table.is_file():
        pytest.skip("no table of the names of 2025 and 2026 beside the captures")
    with table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_names_of_2025_and_2026_have_a_class(shared_traces):
    rows = collected(shared_traces)
    assert len(rows) > 1_600
    unknown = facts(*(row["name"] for row in rows)).filter(pl.col("op_class") == "other")
    assert unknown.height <= LARGEST_UNKNOWN_NAMES * len(rows)


def judged_otherwise() -> list[tuple[str, str, str]]:
    """The rows of the page: (pattern of names, class proposed, class given)."""
    page = (REPOSITORY / "docs" / "kernel_classes.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `(\w+)` \| `(\w+)` \| \S", page, flags=re.MULTILINE)
    return [(pattern.replace("\\|", "|"), proposed, given) for pattern, proposed, given in rows]


def test_every_class_that_differs_from_the_proposal_is_explained(shared_traces):
    rows, listed = collected(shared_traces), judged_otherwise()
    given = facts(*(row["name"] for row in rows))["op_class"]
    unexplained, used = [], set()
    for row, own in zip(rows, given, strict=True):
        if own == row["op_class"]:
            continue
        reasons = [
            entry for entry in listed if entry[1:] == (row["op_class"], own) and re.search(entry[0], row["name"])
        ]
        used.update(reasons)
        if not reasons:
            unexplained.append((row["name"], row["op_class"], own))
    assert unexplained == []
    assert set(listed) == used  # no reason without a name


def test_captures_of_language_models_hold_little_unknown_time(shared_traces):
    folders = [path for folder in shared_traces.iterdir() if folder.is_dir() for path in folder.iterdir()]
    seen = 0
    for path in sorted(folders):
        if not f"{path.parent.name}/{path.name}".startswith(LANGUAGE_MODELS):
            continue
        run = ta.open_trace(path)
        classes = classify_names(run.names).select("name_id", "op_class")
        length = pl.col("end_ns") - pl.col("start_ns")
        kernels = run.kernels.select("name_id", ns=length).join(classes, on="name_id")
        unknown = kernels.filter(pl.col("op_class") == "other")["ns"].sum()
        assert unknown <= LARGEST_UNKNOWN_TIME * kernels["ns"].sum(), path.name
        seen += 1
    assert seen >= 7


def test_a_sampler_named_like_an_indexer_changes_no_phase(shared_traces):
    cases = shared_traces.parent / "cases"
    if not cases.is_dir():
        pytest.skip("no small cases beside the captures")
    tables = []
    for sampler in ("argmax", "topk"):
        result = ta.analyze(ta.open_trace(cases / f"mla_{sampler}.json.gz"), gpu="h100")
        tables.append(result.steps.select("index", "phase", "start_ns", "kernel_count"))
    assert tables[0].height == 6
    assert tables[0].equals(tables[1])
