"""Serving options from a recorded command line: an allow-list; nothing that is not listed here is kept."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ..trace import ServingFacts

# engine -> words that start it (program, module or script name without folder and suffix), in order of precedence
ENGINES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (engine, re.compile(pattern, re.IGNORECASE))
    for engine, pattern in (
        ("sglang", r"^sglang([._-]|$)"),
        ("tensorrt_llm", r"^(trtllm[-_].*|tensorrt_llm([._-].*)?|tritonserver)$"),
        ("lmdeploy", r"^lmdeploy([._-]|$)"),
        ("tgi", r"^text[-_]generation[-_](launcher|server|router)"),
        (
            "llama.cpp",
            r"^(llama[-_](server|cli|bench|batched|parallel|run|simple|speculative|perplexity).*|llama\.cpp.*)$",
        ),
        ("vllm", r"^vllm([._-]|$)"),
        ("transformers", r"^transformers([._-]|$)"),
    )
)


def last_part(text: str) -> str:
    """The last component of a path or model id: 'meta-llama/Llama-3.1-8B' -> 'Llama-3.1-8B'."""
    text = text.rstrip("/\\")
    part = PureWindowsPath(text).name if "\\" in text else PurePosixPath(text).name
    return part


def _model(text: str) -> str | None:
    """A model's own name; a snapshot folder of the Hugging Face cache is named by its repository."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+?)[/\\]snapshots", text)
    name = cached[2] if cached else last_part(text)
    return name if re.fullmatch(r"[\w.+:@-]{1,120}", name) else None


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _word(text: str) -> str | None:
    return text.lower() if re.fullmatch(r"[A-Za-z][\w.+-]{0,40}", text) else None


def _yes(text: str) -> bool | None:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())


# option (dashes and underscores alike) -> field of ServingFacts, how its value is read
VALUED: dict[str, tuple[str, Callable[[str], Any]]] = {
    option: (name, read)
    for options, name, read in (
        ("model model-path model-id model-name model_name_or_path hf-model hf-repo", "model", _model),
        ("tensor-parallel-size tp tp-size tensor-parallelism num-shard tensor_parallel", "tensor_parallel", _count),
        ("pipeline-parallel-size pp pp-size", "pipeline_parallel", _count),
        ("data-parallel-size dp dp-size", "data_parallel", _count),
        ("dtype torch-dtype", "dtype", _word),
        ("quantization quantize quant", "quantization", _word),
        ("kv-cache-dtype kv_cache_dtype cache-type-k ctk kv_dtype", "kv_cache_dtype", _word),
        (
            "max-num-batched-tokens max-prefill-tokens max-batch-prefill-tokens max-num-tokens",
            "max_batched_tokens",
            _count,
        ),
        ("chunked-prefill-size", "max_batched_tokens", _count),
        ("max-num-seqs max-running-requests max-batch-size max-concurrent-requests", "max_num_seqs", _count),
        ("speculative-algorithm speculative-algo", "speculative", _word),
        ("enable-chunked-prefill", "chunked_prefill", _yes),
    )
    for option in options.replace("_", "-").split()
}
SWITCHES: dict[str, tuple[str, bool]] = {
    "enable-chunked-prefill": ("chunked_prefill", True),
    "no-enable-chunked-prefill": ("chunked_prefill", False),
    "disable-chunked-prefill": ("chunked_prefill", False),
}
SHORT_OPTIONS = {"-m": "model", "-tp": "tp", "-pp": "pp", "-dp": "dp", "-q": "quantization", "-ctk": "cache-type-k"}


def serving_facts(command_lines: Sequence[Sequence[str]]) -> ServingFacts:
    """The serving options of the first command line that names an engine or sets an option; empty where none does."""
    for words in command_lines:
        facts = _of_one(_flattened(words))
        if facts != ServingFacts():
            return facts
    return ServingFacts()


def _flattened(words: Sequence[str]) -> list[str]:
    """The words, with the argument of ``bash -c`` split into its own."""
    flat: list[str] = []
    for place, word in enumerate(words):
        if place and " " in word and words[place - 1] in {"-c", "-lc", "-ic"}:
            try:
                flat.extend(shlex.split(word))
            except ValueError:
                flat.extend(word.split())
        else:
            flat.append(word)
    return flat


def _engine(words: Sequence[str]) -> str | None:
    for word in words:
        if word.startswith("-"):
            continue
        name = last_part(word)
        for engine, pattern in ENGINES:
            if pattern.match(name) and not word.endswith((".json", ".yaml", ".yml", ".txt", ".log")):
                return engine
    return None


def _of_one(words: list[str]) -> ServingFacts:
    engine = _engine(words)
    found: dict[str, Any] = {}
    place = 0
    while place < len(words):
        place += _take(words, place, engine, found)
    if engine is None and "model" in found and len(found) == 1:
        found.clear()  # `train.py --model resnet50` is no serving run
    if "model" not in found and engine in {"vllm", "lmdeploy", "tensorrt_llm"}:
        served = _positional_model(words)
        if served:
            found["model"] = served
    return ServingFacts(engine=engine, **found)


def _take(words: list[str], place: int, engine: str | None, found: dict[str, Any]) -> int:
    """Read the option at ``place`` into ``found``; how many words it took."""
    word = words[place]
    if not word.startswith("-"):
        return 1
    flag, has_value, value = word.partition("=")
    option = SHORT_OPTIONS.get(flag, flag.lstrip("-").replace("_", "-").lower())
    if flag == "-m" and (engine != "llama.cpp"):
        return 1  # python -m module
    following = words[place + 1] if place + 1 < len(words) else ""
    if not has_value and following and not following.startswith("-") and option in VALUED:
        read = VALUED[option][1](following)
        if read is not None:
            found.setdefault(VALUED[option][0], read)
            return 2
    if has_value and option in VALUED:
        read = VALUED[option][1](value)
        if read is not None:
            found.setdefault(VALUED[option][0], read)
    elif option in SWITCHES:
        found.setdefault(*SWITCHES[option])
    return 1


def _positional_model(words: Sequence[str]) -> str | None:
    """The model of ``vllm serve MODEL`` and ``lmdeploy serve api_server MODEL``."""
    verbs = {"serve", "api_server", "api-server"}
    for place, word in enumerate(words):
        if word in verbs and place + 1 < len(words) and words[place + 1] not in verbs:
            following = words[place + 1]
            return None if following.startswith("-") else _model(following)
    return None
