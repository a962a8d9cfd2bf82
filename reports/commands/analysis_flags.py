"""The options that every analysing command shares, declared once.

``@takes_analysis_options()`` lets a command have one parameter ``options: Options``; on the command line it has the
flags below in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast, get_type_hints

import typer

from ...analysis.records.errors import UsageError

if TYPE_CHECKING:
    from ...analysis.records.options import Options

MAX_RANKS = 4096

FLAGS: dict[str, object] = {
    "gpu": Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="GPU, where the capture does not name it.")
    ],
    "gpu_override": Annotated[
        str | None, typer.Option("--gpu-override", metavar="NAME", help="GPU, even against what the capture says.")
    ],
    "model": Annotated[
        str | None, typer.Option("--model", metavar="NAME|config.json", help="Model name (see `models`) or its config.")
    ],
    "tp": Annotated[int | None, typer.Option("--tp", metavar="N", min=1, max=MAX_RANKS, help="Tensor-parallel size.")],
    "weight_dtype": Annotated[
        str | None, typer.Option("--weight-dtype", metavar="T", help="bf16, fp8, int8, int4, ...")
    ],
    "kv_dtype": Annotated[str | None, typer.Option("--kv-dtype", metavar="T", help="Data type of the KV cache.")],
    "ceilings": Annotated[
        Path | None,
        typer.Option("--ceilings", metavar="FILE.toml", help="Measured ceilings, in place of the specification."),
    ],
    "ncu": Annotated[
        list[Path] | None, typer.Option("--ncu", metavar="FILE", help="Nsight Compute results to join (repeatable).")
    ],
    "window": Annotated[
        str | None,
        typer.Option(
            "--window", metavar="A:B", help="Part to analyse: seconds from session start, or with ns/us/ms/s."
        ),
    ],
    "markers": Annotated[
        Path | None, typer.Option("--markers", metavar="FILE.toml", help="Further NVTX grammars of your own.")
    ],
    "step": Annotated[
        str | None,
        typer.Option(
            "--step", metavar="WHICH", help="median-decode, median-prefill or a step index: kernel by kernel."
        ),
    ],
    "itl_target": Annotated[
        str | None,
        typer.Option("--itl-target", metavar="MS", help="Inter-token target, e.g. 50ms, for the chunk advice."),
    ],
    "dmon": Annotated[Path | None, typer.Option("--dmon", metavar="FILE", help="Log of nvidia-smi dmon -o DT.")],
    "dcgm": Annotated[
        Path | None, typer.Option("--dcgm", metavar="FILE", help="DCGM export: dcgmi dmon or Prometheus.")
    ],
}
_FILES = ("ceilings", "markers", "dmon", "dcgm")
_Command = TypeVar("_Command", bound=Callable[..., None])


def takes_analysis_options(*, without: tuple[str, ...] = ()) -> Callable[[_Command], _Command]:
    """A decorator: the command's parameter ``options`` becomes the flags of ``FLAGS``, but for those in ``without``."""
    flags = {name: annotation for name, annotation in FLAGS.items() if name not in without}

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(**given: object) -> None:
            values = {name: given.pop(name) for name in flags}
            command(**given, options=_options_from(values))

        own = inspect.signature(command).parameters
        hints = get_type_hints(command, localns={"Options": object}, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.items():
            if name == "options":
                parameters += [
                    inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                    for flag, annotation in flags.items()
                ]
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(parameter.replace(kind=kind, annotation=hints[name]))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
        del run.__wrapped__  # typer would read the undecorated annotations
        return cast("_Command", run)

    return decorate


def _options_from(values: dict[str, object]) -> Options:
    """The analysis options of one command line. Raises UsageError for a file that does not exist."""
    from ...analysis.records.options import Options
    from ...ingest.time_units import parse_milliseconds

    ncu = cast("list[Path]", values.pop("ncu", None) or [])
    files = [(f"--{name}", cast("Path | None", values.get(name))) for name in _FILES] + [
        ("--ncu", path) for path in ncu
    ]
    for flag, file in files:
        if file is not None and not file.exists():
            raise UsageError(f"{flag}: no such file: {file}")
    target = cast("str | None", values.pop("itl_target", None))
    milliseconds = None if target is None else parse_milliseconds(target, "--itl-target")
    tensor_parallel = values.pop("tp", None)
    return Options(  # the flags are named as the fields
        **values,  # type: ignore[arg-type]
        tensor_parallel=cast("int | None", tensor_parallel),
        ncu=tuple(ncu),
        itl_target_ms=milliseconds,
    )
