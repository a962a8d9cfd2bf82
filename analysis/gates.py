"""Gates: small, safe expressions over the JSON keys, for continuous integration.

Grammar (nothing else is accepted, nothing is evaluated as code)::

    gate    = path operator number [unit]
    path    = name ("." name | "[" index "]")*        looked up in ``summary`` first, then from the top of the JSON
    operator = "<" | "<=" | ">" | ">=" | "==" | "!="
    unit    = "%" | "ms" | "us" | "s"                 must agree with the key's own unit; "%" for ``delta.*`` and ``*_pct``

Examples: ``decode_step_ms.p95 < 12``, ``decode_mbu_kernel_pct >= 60``, ``stall_ms == 0``,
``devices[0].idle_ns < 1e9``, ``delta.decode_step_ms.p50 < 3%``.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .records.errors import UsageError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_GATE = re.compile(
    r"\s*(?P<path>[A-Za-z_]\w*(?:\.\w+|\[\d+\])*)\s*(?P<operator><=|>=|==|!=|<|>)\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>%|ms|us|s|ns)?\s*"
)
_PART = re.compile(r"(\w+)|\[(\d+)\]")
_UNIT_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Gate:
    """One parsed gate."""

    text: str
    path: str
    operator: str
    number: float


@dataclass(frozen=True)
class GateResult:
    """``passed`` is None where the number could not be determined; ``reason`` says why."""

    gate: Gate
    value: float | None
    passed: bool | None
    reason: str | None = None

    @property
    def sentence(self) -> str:
        """The result as one line: the gate, the number found, passed / failed / could not look."""
        if self.passed is None:
            return f"{self.gate.text}: could not look ({self.reason})"
        return f"{self.gate.text}: {'passed' if self.passed else 'FAILED'} ({self.gate.path} = {self.value:.6g})"


def parse_gate(text: str) -> Gate:
    """Parse one expression. Raises UsageError that shows what is accepted."""
    match = _GATE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--gate: {text!r} is not understood; write KEY OPERATOR NUMBER, e.g. 'decode_step_ms.p95 < 12' or "
            "'decode_mbu_kernel_pct >= 60' (operators < <= > >= == !=; keys as in the JSON)."
        )
    number = _in_key_unit(float(match["number"]), match["unit"], match["path"])
    return Gate(text=text.strip(), path=match["path"], operator=match["operator"], number=number)


def _in_key_unit(number: float, unit: str | None, path: str) -> float:
    """``number`` in the unit that the key carries; a unit that contradicts the key is refused."""
    if unit is None:
        return number
    is_percent = path.startswith("delta.") or re.search(r"_pct\b", path) is not None
    if unit == "%":
        if not is_percent:
            raise UsageError(
                f"--gate: '%' does not fit {path}: keys in percent end in _pct, such as decode_mbu_kernel_pct."
            )
        return number
    key_unit = re.search(r"_(ms|ns|us)(?:\b|_)", path)
    if is_percent or key_unit is None:
        raise UsageError(
            f"--gate: '{unit}' does not fit {path}: keys that are times carry _ms, _us or _ns, such as stall_max_ms."
        )
    return number * _UNIT_MS[unit] / _UNIT_MS[key_unit[1]]


def look_up(result: Mapping[str, object], path: str) -> object:
    """The value at ``path``, from ``result['summary']`` where its first name is there, else from the top.

    Raises UsageError with the nearest keys when the path does not exist.
    """
    parts = [int(index) if index else name for name, index in _PART.findall(path)]
    summary = _object(result.get("summary"))
    here: object = summary if parts[0] in summary else result
    for part in parts:
        if here is None:
            return None
        if isinstance(part, int):
            if not isinstance(here, Sequence) or isinstance(here, str) or part >= len(here):
                raise UsageError(f"--gate: {path} does not exist: there is no element [{part}].")
            here = here[part]
        else:
            if not isinstance(here, Mapping) or part not in here:
                raise UsageError(f"--gate: {path} does not exist{_nearest(str(part), here, summary)}")
            here = here[part]
    return here


def _object(value: object) -> Mapping[str, object]:
    """``value`` where it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _nearest(name: str, here: object, summary: Mapping[str, object]) -> str:
    known = [str(k) for k in here] if isinstance(here, Mapping) else []
    near = difflib.get_close_matches(name, [*known, *map(str, summary)], n=3)
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else "; the keys are those of --format json."


def evaluate(gate: Gate, result: Mapping[str, object]) -> GateResult:
    """Check one gate against a result (the dictionary of ``--format json``, or compare's).

    A null, a non-number and a result that ``could_not_look`` are not determined: neither passed nor failed.
    """
    value = look_up(result, gate.path)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return GateResult(gate, None, None, _why_null(gate.path, result))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return GateResult(gate, None, None, f"{gate.path} is not a number")
    return GateResult(gate, float(value), _OPERATORS[gate.operator](float(value), gate.number))


def _why_null(path: str, result: Mapping[str, object]) -> str:
    reasons = _object(_object(result.get("summary")).get("reasons"))
    names = [name for name, index in _PART.findall(path) if not index]
    for name in reversed(names):
        if name in reasons:
            return str(reasons[name])
    said = result.get("reasons")
    return "the number is null" + (f": {said[0]}" if isinstance(said, Sequence) and said else "")


def evaluate_all(gates: Iterable[Gate], result: Mapping[str, object]) -> list[GateResult]:
    """All gates against one result, in order."""
    return [evaluate(gate, result) for gate in gates]


def exit_code(results: Iterable[GateResult]) -> int:
    """0 all passed, 1 one failed, 3 one could not be determined (3 beats 1)."""
    states = [r.passed for r in results]
    return 3 if None in states else 1 if False in states else 0
