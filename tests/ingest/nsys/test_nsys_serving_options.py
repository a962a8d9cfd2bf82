"""Serving options read from recorded command lines, and what must never be read from them."""

import shlex
from dataclasses import asdict

import pytest

from trace_analyze.ingest.nsys.serving_options import serving_facts


def facts(command: str) -> dict[str, object]:
    """The options found on a command line, without the silent ones."""
    return {name: value for name, value in asdict(serving_facts([shlex.split(command)])).items() if value is not None}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --max-num-batched-tokens 8192 "
            "--kv-cache-dtype fp8 --enable-chunked-prefill --max-num-seqs=256",
            {
                "engine": "vllm",
                "model": "Llama-3.1-8B-Instruct",
                "tensor_parallel": 2,
                "max_batched_tokens": 8192,
                "kv_cache_dtype": "fp8",
                "chunked_prefill": True,
                "max_num_seqs": 256,
            },
        ),
        (
            "/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model /data/models/Qwen3-8B/ -tp 4 --dtype bfloat16",
            {"engine": "vllm", "model": "Qwen3-8B", "tensor_parallel": 4, "dtype": "bfloat16"},
        ),
        (
            "vllm serve Qwen/Qwen3-32B-AWQ -q awq_marlin --max_num_batched_tokens=8k --no-enable-chunked-prefill "
            '--speculative-config \'{"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}\'',
            {
                "engine": "vllm",
                "model": "Qwen3-32B-AWQ",
                "quantization": "awq_marlin",
                "max_batched_tokens": 8000,
                "chunked_prefill": False,
                "speculative": "eagle3",
            },
        ),
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp-size 8 "
            "--chunked-prefill-size 4096 --max-running-requests 128 --speculative-algorithm EAGLE",
            {
                "engine": "sglang",
                "model": "DeepSeek-V3",
                "tensor_parallel": 8,
                "data_parallel": 8,
                "max_batched_tokens": 4096,
                "chunked_prefill": True,
                "max_num_seqs": 128,
                "speculative": "eagle",
            },
        ),
        (
            "python -m sglang.launch_server --model-path m --chunked-prefill-size -1",
            {"engine": "sglang", "model": "m", "chunked_prefill": False},
        ),
        (
            "trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --tp_size 4 --pp_size 2 --max_num_tokens 16384 "
            "--max_batch_size 64",
            {
                "engine": "tensorrt_llm",
                "model": "Llama-3.3-70B-Instruct-FP8",
                "tensor_parallel": 4,
                "pipeline_parallel": 2,
                "max_batched_tokens": 16384,
                "max_num_seqs": 64,
            },
        ),
        (
            "./llama-server -m /home/someone/models/qwen2.5-7b-q4_k_m.gguf -ub 512 -np 8 -ctk q8_0",
            {
                "engine": "llama.cpp",
                "model": "qwen2.5-7b-q4_k_m.gguf",
                "max_batched_tokens": 512,
                "max_num_seqs": 8,
                "kv_cache_dtype": "q8_0",
            },
        ),
        (
            "text-generation-launcher --model-id mistralai/Mistral-7B-v0.1 --num-shard 2 --quantize gptq "
            "--max-batch-prefill-tokens 4096",
            {
                "engine": "tgi",
                "model": "Mistral-7B-v0.1",
                "tensor_parallel": 2,
                "quantization": "gptq",
                "max_batched_tokens": 4096,
            },
        ),
        (
            "lmdeploy serve api_server internlm/internlm3-8b-instruct --tp 1",
            {"engine": "lmdeploy", "model": "internlm3-8b-instruct", "tensor_parallel": 1},
        ),
        (
            'bash -lc "cd /srv && vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 > log 2>&1"',
            {"engine": "vllm", "model": "Qwen3-8B", "tensor_parallel": 2},
        ),
        (
            "python /workspace/vllm/examples/offline_inference/basic.py --model facebook/opt-1.3b",
            {"engine": "vllm", "model": "opt-1.3b"},
        ),
        (
            "vllm bench throughput --model "
            "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",
            {"engine": "vllm", "model": "Llama-3.1-8B"},
        ),
        ("python serve.py", {}),
        ("./nussinov synthetic/synthetic_sequences.txt", {}),
        ("torchrun --nnodes=1 --nproc_per_node=2 --master_port=29506 /tmp/fv_mfu_training.py", {}),
        ("vllm", {"engine": "vllm"}),
        ("", {}),
    ],
)
def test_command_lines(command: str, expected: dict[str, object]):
    assert facts(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m --api-key SECRET --hf-token=SECRET --served-model-name SECRET",
        "vllm serve m --dtype SECRET --quantization=SECRET --kv-cache-dtype SECRET",
        "vllm serve m --max-num-seqs SECRET --tensor-parallel-size=SECRET",
        'vllm serve m --speculative-config \'{"method": "SECRET"}\' --chat-template /home/SECRET/x',
        "env HF_TOKEN=SECRET vllm serve m",
        "vllm serve 'https://user:SECRET@host/model?sig=SECRET'",
        "vllm serve /home/SECRET/models/m --download-dir /SECRET",
        "python SECRET.py --model 'm && echo SECRET'",
    ],
)
def test_nothing_else_is_kept(command: str):
    assert "SECRET" not in repr(serving_facts([shlex.split(command)]))


def test_the_first_command_line_that_says_something():
    assert serving_facts([["bash"], ["vllm", "serve", "a/b"], ["vllm", "serve", "c/d"]]).model == "b"
