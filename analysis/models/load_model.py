"""The model that ``--model`` means: a name of the table, a config.json, or a folder that holds one."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..records.errors import UsageError
from .find_model import find_model, fold_name, model_names, storage_in_name
from .hf_config import shape_of
from .model_shape import ModelShape

BESIDE = {  # older files that hold what quantization_config lacks
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}


def read_config(path: Path) -> ModelShape:
    """The shape that ``path`` describes; files beside it that hold its quantisation are read too.

    Raises ``UsageError`` for what is no such config, naming the key that is missing or not understood.
    """
    config = _load(path)
    detailed = path.with_name("hf_quant_config.json")
    inner = _load(detailed).get("quantization") if detailed.is_file() else None
    if isinstance(inner, dict) and inner.get("quantized_layers"):  # per module: more than config.json repeats
        config = {**config, "quantization_config": {"quant_method": "modelopt", **inner}}
    if not _has_quantisation(config):
        for name, method in BESIDE.items():
            beside = path.with_name(name)
            if beside.is_file():
                stored = _load(beside)
                config = {**config, "quantization_config": {"quant_method": method, **stored}}
                break
    shape = shape_of(config, file=path.name, name=_name(path, config))
    return shape if _has_quantisation(config) else _with_doubt(shape)


def _with_doubt(shape: ModelShape) -> ModelShape:
    """``shape`` with a note where its name tells a storage that no file beside the config does."""
    said = storage_in_name(shape.name)
    if said is None or said in ("bf16", "fp16"):
        return shape
    note = (
        f"the name {shape.name} says {said}, but no quantization_config does: counted as {shape.weight_dtype}; put "
        "hf_quant_config.json beside config.json, or pass --weight-dtype"
    )
    return replace(shape, notes=(*shape.notes, note))


def _load(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--model {path.name}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--model {path.name} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise UsageError(f"--model {path.name}: a model's config.json is one JSON object, this is not.")
    return config


def _has_quantisation(config: Mapping[str, object]) -> bool:
    return any(isinstance(config.get(key), dict) for key in ("quantization_config", "compression_config"))


def _name(path: Path, config: Mapping[str, object]) -> str:
    """How the model is called in reports: no path gets there, only names that are public or the architecture's."""
    cached = [part for part in path.absolute().parts if part.startswith("models--")]
    if cached:
        return cached[-1].split("--")[-1]
    for candidate in (path.parent.name or path.absolute().parent.name, path.stem):
        if find_model(candidate) is not None:
            return candidate
    said = config.get("_name_or_path")
    if isinstance(said, str) and said.strip("./\\"):
        return re.split(r"[/\\]", said.rstrip("/\\"))[-1]
    kind = config.get("model_type")
    return kind if isinstance(kind, str) and kind else path.stem


def _config_path(name_or_path: str) -> Path:
    path = Path(name_or_path).expanduser()
    return path / "config.json" if path.is_dir() and (path / "config.json").is_file() else path


def files_of_model(name_or_path: str) -> list[Path]:
    """The files that ``load_model`` would read: a config and what may lie beside it; none for a name of the table."""
    path = _config_path(name_or_path)
    if not path.is_file():
        return []
    return [path, *(beside for name in BESIDE if (beside := path.with_name(name)).is_file())]


def load_model(name_or_path: str) -> ModelShape:
    """The model a user named with ``--model``: a ``config.json``, a folder that holds one, or a name of the table.

    Raises ``UsageError`` with the nearest names when there is none, or with the key that a config lacks.
    """
    path = _config_path(name_or_path)
    if path.is_file():
        return read_config(path)
    if path.suffix.lower() == ".json":
        raise UsageError(f"--model {name_or_path}: no such file.")
    model = find_model(name_or_path)
    if model is not None:
        return model
    near = difflib.get_close_matches(fold_name(name_or_path), list(model_names()), n=3, cutoff=0.4)
    nearest = ", ".join(dict.fromkeys(model_names()[each] for each in near))
    hint = f" Did you mean {nearest}?" if nearest else ""
    raise UsageError(
        f"Unknown model {name_or_path!r}.{hint} `trace-analyze models` lists the known ones; "
        "any other: --model path/to/config.json."
    )
