"""A model's shape from its Hugging Face ``config.json``.

``architectures.toml`` says how each architecture differs from a Llama; an architecture it does not know is read as a
Llama-like decoder, with a note. Multimodal configs are read for their text model. What cannot be understood is a
``UsageError`` that names the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from ..facts.load import load_table
from ..records.errors import UsageError
from .hf_layer_keys import laid_open, text_model
from .hf_layer_kinds import (
    BUILDERS,
    ORDINARY_KINDS,
    STRANGE_KEYS,
    fields_of_parts,
    group_layers,
    layer_types,
    with_indexer,
    with_unknown,
)
from .hf_quantisation import Stored, read_quantisation
from .layer_kinds import LayerGroup, unknown_kinds
from .model_shape import ModelShape, Quantisation, layer_groups, sliding_by_period

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16", "half": "fp16", "bf16": "bf16", "fp16": "fp16"}
_FLAGS = tuple(each.name for each in fields(ModelShape) if each.type == "bool")
MOST_LAYERS = 1000
MOST_UNITS = 10_000_000  # of any count in a config: larger ones are no model's


@cache
def architectures() -> Mapping[str, Any]:
    """``architectures.toml``."""
    return load_table("architectures")


def shape_of(config: Mapping[str, object], *, file: str = "config.json", name: str = "") -> ModelShape:
    """The shape that a parsed config describes; ``file`` is how errors call it."""
    return _Reader.of(config, file).shape(name or str(config.get("model_type", "model")))


@dataclass
class _Reader:
    """One config with the row of its architecture."""

    file: str
    config: dict[str, object]
    row: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object], file: str) -> _Reader:
        if "base_model_name_or_path" in config and "peft_type" in config:
            raise UsageError(f"--model {file} describes a LoRA adapter: give the base model's config.json.")
        notes: list[str] = []
        text, nested = text_model(config)
        if nested:
            notes.append("the language model alone: encoders for images and sound are not counted")
        known = architectures()
        outer, inner = _word(config.get("model_type")), _word(text.get("model_type"))
        kind = inner or outer
        why = known["refused"].get(inner) or known["refused"].get(outer)
        if why is None and (text.get("is_encoder_decoder") is True):
            why = "it is an encoder-decoder"
        if why is not None:
            raise UsageError(
                f"--model {file}: the work of {kind} is not counted: {why}. Run without --model: phases, time and "
                "stalls need none."
            )
        row = known["architecture"].get(kind)
        if row is None:
            said = f"architecture {kind!r} is not known" if kind else "no model_type in the config"
            notes.append(f"{said}: read as a Llama-like decoder")
            row = {**known["architecture"]["llama"], "unknown": True}
        absent = {**row.get("absent", {}), **(row.get("absent_nested", {}) if nested else {})}
        if "about" in row:
            notes.append(row["about"])
        given = {key: value for key, value in text.items() if value is not None}
        return cls(file, {**absent, **laid_open(given)}, row, notes)

    # -- single keys ---------------------------------------------------------------------------------------------------

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number by the keys of field ``name``; ``default`` where none is present, else an error."""
        return self.number(*self.row.get("keys", {}).get(name, ()), *architectures()["keys"][name], default=default)

    def number(self, *keys: str, default: int | None = None) -> int:
        """A whole number by the first of ``keys`` that is present; ``default`` where none is, else an error."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_UNITS:
                raise UsageError(f"--model {self.file}: {key} is {_shown(value)}, a whole number was expected.")
            return value
        if default is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise UsageError(
                f"--model {self.file}: no {keys[0]}{others}: a config.json of a language model has it. "
                "Is this the config.json of the model itself?"
            )
        return default

    def optional(self, key: str, default: float) -> float:
        """A number that only some architectures have; ``default`` where it is absent or no number of use."""
        value = self.config.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6:
            return value
        return default

    def flag(self, name: str) -> bool:
        """A yes-or-no field: fixed by the architecture, or the config key that the architecture names."""
        rule = self.row.get(name, getattr(ModelShape, name, False))
        if isinstance(rule, str):
            negated = rule.startswith("not ")
            return bool(self.config.get(rule.removeprefix("not "), False)) is not negated
        return bool(rule)

    # -- groups of keys ------------------------------------------------------------------------------------------------

    def shape(self, name: str) -> ModelShape:
        if "kinds" in self.row:
            return self._stored(self._of_kinds(name))
        return self._stored(self._with_other_layers(self._ordinary(name)))

    def _of_kinds(self, name: str) -> ModelShape:
        """A model whose layers a function of ``hf_layer_kinds`` makes of the config's own pattern keys."""
        made = BUILDERS[self.row["kinds"]](self)
        hidden = self.whole("hidden")
        if not hidden or not 0 < len(made) <= MOST_LAYERS:
            raise UsageError(f"--model {self.file}: hidden size must be above 0, layers between 1 and {MOST_LAYERS}.")
        groups = group_layers(made)
        tied = bool(self.config.get("tie_word_embeddings", self.config.get("tie_embedding", False)))
        values: dict[str, Any] = {"hidden": hidden, "layers": len(made), "vocab": self.whole("vocab"), "groups": groups}
        self._say_unknown(groups)
        return ModelShape(name=name, tied_embeddings=tied, **{**values, **fields_of_parts(groups)})

    def _say_unknown(self, groups: Sequence[LayerGroup]) -> None:
        for kind, layers in unknown_kinds(tuple(groups)).items():
            self.notes.append(
                f"{kind!r} in {layers} layers is not known: its weights and work are not counted, all else is"
            )

    def _with_other_layers(self, shape: ModelShape) -> ModelShape:
        """``shape`` with the indexer of sparse attention, or with layers of kinds that nobody here knows."""
        kinds = layer_types(self)[: shape.layers]
        strange = sorted({kind for kind in kinds if kind not in ORDINARY_KINDS})
        groups: tuple[LayerGroup, ...] = ()
        if self.row.get("indexer"):
            groups = with_indexer(self, layer_groups(shape), shape.layers)
        elif strange and len(kinds) == shape.layers:
            groups = with_unknown(layer_groups(shape), kinds, strange)
        elif self.row.get("unknown"):  # no list of layers, but numbers that no attention decoder has
            keys = sorted(key for key in self.config if key.startswith(STRANGE_KEYS))
            kind = f"layers with {keys[0]}" if keys else ""
            groups = with_unknown(layer_groups(shape), [kind] * shape.layers, [kind]) if keys else ()
        self._say_unknown(groups)
        return _replaced(shape, {"groups": groups}) if groups else shape

    def _ordinary(self, name: str) -> ModelShape:
        hidden, layers, heads = self.whole("hidden"), self.whole("layers"), self.whole("heads")
        if not hidden or not heads or not 0 < layers <= MOST_LAYERS:
            raise UsageError(
                f"--model {self.file}: hidden size and heads must be above 0, layers between 1 and {MOST_LAYERS}."
            )
        latent = self._latent()
        values: dict[str, Any] = {flag: self.flag(flag) for flag in _FLAGS}
        values |= {"hidden": hidden, "layers": layers, "heads": heads, "vocab": self.whole("vocab"), **latent}
        values |= {"kv_heads": self._kv_heads(heads), "head_dim": self._head_dim(hidden, heads, latent)}
        values["tied_embeddings"] = bool(self.config.get("tie_word_embeddings", False))
        values["norms_per_layer"] = self._norms()
        values |= self._experts(layers)
        values["intermediate"] = self._intermediate(hidden, values.get("moe_intermediate", 0))
        values |= self._window(layers) | self._chunks(layers)
        if "positions" in self.row:
            rule = self.row["positions"]
            values["learned_positions"] = int(self.optional(rule["key"], 0)) + rule["plus"]
        return ModelShape(name=name, **values)

    def _latent(self) -> dict[str, int]:
        rank = self.whole("kv_lora_rank", 0)
        if not rank:
            return {}
        parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {
            "kv_lora_rank": rank,
            "q_lora_rank": self.whole("q_lora_rank", 0),
            **{part: self.whole(part) for part in parts},
        }

    def _kv_heads(self, heads: int) -> int:
        one = self.row.get("multi_query")
        if one is not None and self.config.get(one) and not self.config.get("new_decoder_architecture"):
            return 1
        return self.whole("kv_heads", heads) or heads

    def _head_dim(self, hidden: int, heads: int, latent: Mapping[str, int]) -> int:
        if latent:
            return latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
        size = self.whole("head_dim", 0)
        if size:
            return size
        if hidden % heads:
            raise UsageError(f"--model {self.file}: no head_dim, and {hidden} is no multiple of {heads} heads.")
        return hidden // heads

    def _norms(self) -> int:
        if self.config.get("model_type") == "falcon" or "parallel_attn" in self.config:
            if self.config.get("new_decoder_architecture"):
                return int(self.optional("num_ln_in_parallel_attn", 2)) or 2
            return 1 if self.config.get("parallel_attn") else 2
        return int(self.row.get("norms_per_layer", 2))

    def _intermediate(self, hidden: int, experts: int) -> int:
        default = int(hidden * self.optional("expansion_ratio", self.row.get("times_hidden", 0)))
        return self.whole("intermediate", default or experts or None)

    def _experts(self, layers: int) -> dict[str, Any]:
        experts = self.whole("experts", 0)
        if experts < 2:
            return {}
        width = self.whole("moe_intermediate", 0) or self.whole("intermediate")
        shared = self.whole("shared_intermediate", 0) or self.whole("shared_experts", 0) * width
        values: dict[str, Any] = {
            "experts": experts,
            "experts_per_token": self.whole("experts_per_token"),
            "moe_intermediate": width,
            "shared_intermediate": shared,
            "shared_gate": self.flag("shared_gate") and shared > 0,
            "first_dense_layers": self.whole("first_dense_layers", 0),
        }
        listed, kinds = self.config.get("moe_layer_freq"), self.config.get("mlp_layer_types")
        if isinstance(kinds, list) and kinds:  # 'dense' or 'sparse' per layer
            dense = tuple(layer for layer, kind in enumerate(kinds[:layers]) if kind == "dense")
            leading = next((layer for layer in range(layers) if layer not in dense), layers)
            values |= {"first_dense_layers": leading, "other_dense_layers": dense[leading:]}
        elif isinstance(listed, list):  # one 0 or 1 per layer
            values["other_dense_layers"] = tuple(layer for layer, moe in enumerate(listed[:layers]) if not moe)
        else:
            every = max(1, self.whole("moe_layer_frequency", 1))
            values["moe_layer_frequency"] = every
            values["moe_layer_offset"] = int(self.row.get("moe_layer_offset", 0)) if every > 1 else 0
            alone = self.config.get("mlp_only_layers")
            values["other_dense_layers"] = tuple(alone) if isinstance(alone, list) else ()
        return values

    def _window(self, layers: int) -> dict[str, Any]:
        kinds = self.config.get("layer_types")
        kinds = [str(kind) for kind in kinds[:layers]] if isinstance(kinds, list) else []
        window = self.whole("sliding_window", 0)
        if not window or self.config.get("use_sliding_window") is False:
            return {}
        if kinds:
            sliding = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
        elif self.config.get("use_sliding_window") and "max_window_layers" in self.config:
            sliding = tuple(range(int(self.optional("max_window_layers", layers)), layers))
        else:
            sliding = self._by_pattern(layers)
        return {"sliding_window": window, "sliding_layers": sliding} if sliding else {}

    def _chunks(self, layers: int) -> dict[str, Any]:
        """Llama-4: tokens of most layers see their own chunk; those without rotation see everything."""
        if not self.row.get("chunked"):
            return {}
        size = int(self.optional("attention_chunk_size", 8192))
        listed = self.config.get("no_rope_layers")
        if isinstance(listed, list) and len(listed) >= layers:
            chunked = tuple(layer for layer in range(layers) if listed[layer])
        else:
            chunked = sliding_by_period(layers, int(self.optional("no_rope_layer_interval", 4)))
        return {"attention_chunk": size, "chunked_layers": chunked} if size and chunked else {}

    def _by_pattern(self, layers: int) -> tuple[int, ...]:
        pattern = self.config.get("sliding_window_pattern")
        if isinstance(pattern, str):  # 'LLLG': local, local, local, global
            return tuple(layer for layer in range(layers) if pattern and pattern[layer % len(pattern)] == "L")
        return sliding_by_period(
            layers, int(self.optional("sliding_window_pattern", self.row.get("sliding_period", 0)))
        )

    def _stored(self, shape: ModelShape) -> ModelShape:
        """``shape`` with its data types and quantisation."""
        said = self.config.get("dtype", self.config.get("torch_dtype"))
        kind = DTYPES.get(str(said).removeprefix("torch."), "bf16")
        if str(said).endswith("float32"):
            self.notes.append("stored as float32, counted as 16 bit, as engines load it")
        values: dict[str, Any] = {"activation_dtype": kind, "kv_dtype": kind, "weight_dtype": kind}
        stored = self.config.get("quantization_config", self.config.get("compression_config"))
        if isinstance(stored, dict):
            read: Stored = read_quantisation({"expert_dtype": self.config.get("expert_dtype"), **stored}, shape)
            self.notes += read.notes
            if read.quantisation is not None:
                values |= {"weight_dtype": read.weight_dtype, "quantisation": read.quantisation}
        return _replaced(shape, {**values, "notes": tuple(self.notes)})


def _replaced(shape: ModelShape, values: Mapping[str, Any]) -> ModelShape:
    own = {each.name: getattr(shape, each.name) for each in fields(ModelShape)}
    return ModelShape(**{**own, **values})


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


__all__: Sequence[str] = ("Quantisation", "architectures", "shape_of")
