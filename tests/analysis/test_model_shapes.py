"""Parameter counts and cache sizes of models.toml against published ones."""

from __future__ import annotations

import pytest

from trace_analyze.analysis.models import (
    find_model,
    known_models,
    kv_bytes_per_token,
    load_model,
    parameters_active,
    parameters_total,
)
from trace_analyze.ingest.errors import UsageError

# Exact where the checkpoint's own count is public; else the published size to its last printed digit.
PUBLISHED = {
    "Llama-3.1-8B": (8_030_261_248, 8_030_261_248, 131072),
    "Llama-3.1-70B": (70_553_706_496, 70_553_706_496, 327680),
    "Llama-3.2-1B": (1_235_814_400, 1_235_814_400, 32768),
    "Llama-2-7B": (6_738_415_616, 6_738_415_616, 524288),
    "Mistral-7B": (7_241_732_096, 7_241_732_096, 131072),
    "Qwen3-8B": (8_190_735_360, 8_190_735_360, 147456),
    "Qwen3-30B-A3B": (30_532_122_624, 3.353e9, 98304),
    "Mixtral-8x7B": (46_702_792_704, 12.88e9, 131072),
    "DeepSeek-V2-Lite": (15_706_484_224, None, 31104),
    "DeepSeek-V3": (671.03e9, 37.55e9, 70272),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    total, active, per_token = PUBLISHED[name]
    model = load_model(name)
    within = 0 if isinstance(total, int) else 1e-4
    assert parameters_total(model) == pytest.approx(total, rel=within)
    if active is not None:
        assert parameters_active(model) == pytest.approx(active, rel=1e-3)
    assert kv_bytes_per_token(model) == per_token


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Meta-Llama-3.1-70B-Instruct", "Llama-3.1-70B"),
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "Mistral-7B"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("llama-3.1-8b-Q4_K_M.gguf", "Llama-3.1-8B"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "Llama-3.1-70B"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "Llama-3.1-8B"),
    ],
)
def test_names_people_type(typed, meant):
    assert load_model(typed).name == meant


def test_unknown_names_are_refused_with_the_nearest():
    assert find_model("no-such-model") is None
    with pytest.raises(UsageError, match="Qwen3-8B"):
        load_model("qwen3-9b")


def test_every_row_is_consistent():
    for name, model in known_models().items():
        assert model.name == name
        assert model.heads % model.kv_heads == 0
        assert 0 <= model.moe_layers <= model.layers
        assert parameters_active(model) <= parameters_total(model)
