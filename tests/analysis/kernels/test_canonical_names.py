"""One kernel, three spellings: they must meet."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_analyze.analysis.kernels import canonical_names as names

SAME_KERNEL = [
    (
        "flash attention",
        [
            # Nsight Systems
            "void flash::flash_fwd_kernel<Traits<(int)128, (int)64, (bool)0, cutlass::bfloat16_t>, (bool)1, (bool)0>(T1::Params)",
            # c++filt, PyTorch profiler
            "void flash::flash_fwd_kernel<Traits<128, 64, false, cutlass::bfloat16_t>, true, false>(Traits<128, 64, false, cutlass::bfloat16_t>::Params)",
            # c++filt before C++11
            "void flash::flash_fwd_kernel<Traits<128, 64, false, cutlass::bfloat16_t> , true, false>(Params)",
            # Nsight Compute
            "flash_fwd_kernel<Traits<128, 64, 0, bfloat16_t>, 1, 0>(Params)",
        ],
    ),
    (
        "matrix times vector",
        [
            "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, (bool)0, (bool)1, (int)7, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<const __nv_bfloat16>>>(T13)",
            "enable_if<!T7, void>::type kernel<int, int, __nv_bfloat16, float, 0, 1, 7, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<const __nv_bfloat16>>>(T13)",
        ],
    ),
    (
        "anonymous namespace and unsigned literals",
        [
            "void at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int, (int)3>(char *, T2)",
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 3>(char*, unsigned int)",
            "void unnamed>::CatArrayBatchedCopy_vectorized<unnamed>::OpaqueType<2>, unsigned int, 3>(char *, T2)",
        ],
    ),
    (
        "lambdas and array sizes",
        [
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T1)",
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::X)",
            "void unrolled_elementwise_kernel<direct_copy_kernel_cuda(TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() lambda(float) (instance 1)], array<char *, 2>>(int, T1)",
        ],
    ),
    ("no template", ["kernel_mha(int, float *)", "kernel_mha(int, float*)", "kernel_mha"]),
]


@pytest.mark.parametrize("spellings", [case[1] for case in SAME_KERNEL], ids=[case[0] for case in SAME_KERNEL])
def test_the_spellings_of_one_kernel_meet(spellings):
    assert len({names.normalise(spelling) for spelling in spellings}) == 1


def test_different_kernels_stay_apart():
    keys = {
        names.normalise(name)
        for name in (
            "void norm<float, 4>(float*)",
            "void norm<float, 8>(float*)",
            "void norm<__half, 4>(__half*)",
            "void fused_norm<float, 4>(float*)",
        )
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("void a::b<(int)64, (bool)1>(float *, T1)", "a::b<64, true>"),
        ("void a::b<64u, false, c<8l> >(int)", "a::b<64, false, c<8>>"),
        ("a::b(int)", "a::b"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_SendRecv"),
        ("void k<(flashinfer::MaskMode)1, (int)2>(P)", "k<(flashinfer::MaskMode)1, 2>"),  # an enum keeps its name
        ("void f<void (*)(int)>(int)", "f<void (*)(int)>"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"),
        ("", ""),
        ("(int)", "(int)"),
    ],
)
def test_canonical_spelling(name, canonical):
    assert names.canonical(pl.Series([name])).to_list() == [canonical]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, long)", "rms_norm_kernel"),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "fused_add_rms_norm_kernel",
        ),
        ("(anonymous namespace)::hisparse_gather_kernel(char const*, int)", "hisparse_gather_kernel"),
        ("void cutlass::Kernel2<cutlass_80_tensorop(T1::Params)", "Kernel2"),  # cut off in the middle
        ("fused_moe_kernel", "fused_moe_kernel"),
        ("ampere_sgemm_32x128_tn", "ampere_sgemm_32x128_tn"),
    ],
)
def test_short_name(name, short):
    assert names.short(names.canonical(pl.Series([name]))).to_list() == [short]


@pytest.mark.parametrize(
    ("mangled", "read"),
    [
        ("_Z9!", "!"),  # cut off
        ("_Z9saxpy_gpuPfif", "saxpy_gpu"),
        ("_ZN4vllm6kernelEPfi", "vllm::kernel"),
        ("_ZN4vllm15rms_norm_kernelIfLi8ELb1EEEvPT_", "vllm::rms_norm_kernel<float,8,true>"),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELb0EEEvPT0_PT_",
            "aiter::add_rmsnorm_quant_kernel<__bf16,__bf16,256,false>",
        ),
        ("_ZN1a1bINS_1cELNS_4ModeE2EEEvv", "a::b<c,(Mode)2>"),
    ],
)
def test_mangled_names_become_readable(mangled, read):
    assert names.read_mangled(mangled) == read


@given(st.text(max_size=80))
def test_any_text_survives(text):
    series = pl.Series([text, "_Z" + text], dtype=pl.String)
    canonical = names.canonical(series)
    assert len(canonical) == 2 and canonical.null_count() == 0
    assert names.short(canonical).null_count() == 0
    assert names.join_key(series).null_count() == 0


@given(
    st.lists(
        st.sampled_from(["(int)64", "(bool)1", "float", "ns::T<(bool)0>", "(unsigned int)8"]), min_size=1, max_size=6
    )
)
def test_normalising_twice_changes_nothing(arguments):
    key = names.normalise(f"void ns::kernel<{', '.join(arguments)}>(T1 *)")
    assert names.normalise(key) == key
