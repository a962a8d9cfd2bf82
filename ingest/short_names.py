"""The readable core of a kernel's demangled name, for sources that do not record one."""

from __future__ import annotations

_ANONYMOUS = (("(anonymous namespace)", "anonymous"), ("<unnamed>", "unnamed"), ("operator<<", "operator_shift"))


def short_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template arguments or parameters.

    ``void ns::gemm<64, (bool)1>(int*)`` -> ``gemm``; a name that is no C++ signature stays as it is.
    """
    plain = name
    for written, replacement in _ANONYMOUS:
        plain = plain.replace(written, replacement)
    kept, depth = [], 0
    for letter in plain:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif depth == 0:
            if letter in "([{,":
                break
            kept.append(letter)
    words = "".join(kept).split()
    return words[-1].rsplit("::", 1)[-1] or name if words else name
