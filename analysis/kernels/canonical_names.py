"""One spelling for kernel names, whatever tool wrote them.

Nsight Systems writes ``foo<(int)64, (bool)1, T<x>>(T1 *, <unnamed>::P)``, ``c++filt`` and the PyTorch profiler
``void foo<64, true, T<x> >(float*, (anonymous namespace)::P)``, Nsight Compute ``foo<64, 1, T<x>>(...)`` without
namespaces, and some compilers leave ``_ZN3fooI...`` as it is. The functions here work on whole columns of distinct
names; the three forms they give are

* ``canonical``: template arguments kept, casts and return type gone, parameter list dropped. Rules match on it.
* ``join_key``: what is left when namespaces, spaces and the way of writing a bool are dropped as well. Two tools that
  saw the same kernel give the same key.
* ``short``: the bare function name, for people.
"""

from __future__ import annotations

import re

import polars as pl

# Order matters: enum casts such as "(flashinfer::MaskMode)1" are kept, their name tells what the number means.
_CANONICAL: tuple[tuple[str, str], ...] = (
    (r"\(anonymous namespace\)|\{anonymous\}", "<unnamed>"),
    (r"(\w)<unnamed>::", "$1<"),  # Nsight Compute: the bracket opens a template, the name's own one is gone
    (r"<?unnamed>::", ""),
    (r"\(bool\)0\b", "false"),
    (r"\(bool\)1\b", "true"),
    (r"\((?:unsigned |signed )?(?:int|long long|long|short|char|__int128)\)(-?\d)", "$1"),
    (r"\b(\d+)(?:ull|ul|ll|u|l)\b", "$1"),
    (r"\s+>", ">"),
    (r"\[lambda(\([^)]*\)) \(instance (\d+)\)\]", "{lambda$1#$2}"),
    (r"operator \(\)", "operator()"),
    (r"\s+([*&])", "$1"),
    (r"\bconst ([\w:]+)([*&])", "$1 const$2"),
)
# The parameter list: the last balanced "(...)" at the end, three levels deep, with what a compiler may add behind it.
_PARAMETERS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const)?(?:\s*\[[^\]]*\]|\s*\(\.\w+\))*$"
_RETURN_TYPE = r"^(?:void|std::enable_if<.*?>::type|enable_if<.*?>::type) "

_KEY: tuple[tuple[str, str], ...] = (
    (r"\b(?:\w+::)+", ""),
    (r"[{}\[\]]|::", ""),
    (r"\btrue\b", "1"),
    (r"\bfalse\b", "0"),
    (r"\(instance (\d+)\)", "#$1"),
    (r"\bconst\b", ""),
    (r"\s+", ""),
)


def canonical(names: pl.Series) -> pl.Series:
    """The common spelling of each name; mangled names are read first."""
    text = _replace(pl.col("text"), _CANONICAL)
    bare = text.str.replace(_PARAMETERS, "").str.replace(_RETURN_TYPE, "").str.strip_chars()
    frame = pl.DataFrame({"text": _read_mangled(names)}).with_columns(bare=bare)
    return frame.select(pl.when(pl.col("bare") != "").then("bare").otherwise("text")).to_series().rename(names.name)


def join_key(names: pl.Series) -> pl.Series:
    """The key under which names from different tools meet (Nsight Compute drops namespaces and casts)."""
    return (
        pl.DataFrame({"text": canonical(names)}).select(_replace(pl.col("text"), _KEY)).to_series().rename(names.name)
    )


def normalise(name: str) -> str:
    """``join_key`` of a single name."""
    return str(join_key(pl.Series("name", [name], dtype=pl.String))[0])


def short(canonical_names: pl.Series) -> pl.Series:
    """The bare function name of each canonical name: no template arguments, no namespaces.

    ``cutlass::device_kernel<...>`` becomes ``device_kernel``; what such a wrapper runs is told by the rules.
    """
    text = canonical_names.str.replace_all(r"operator(?:\(\)|<|>|->)", "operator")
    for pattern in (r"<[^<>]*>", r"\([^()]*\)"):
        text = _until_stable(text, pattern)
    text = text.str.replace(r"[<(].*$", "").str.strip_chars()  # a name cut off in the middle
    text = text.str.replace(r"^.* ", "").str.replace(r"^.*::", "")
    return text.zip_with(text.str.len_bytes() > 0, canonical_names.str.slice(0, 60))


def _until_stable(text: pl.Series, pattern: str, rounds: int = 40) -> pl.Series:
    """Remove innermost matches until none is left; templates nest about a dozen deep."""
    for _ in range(rounds):
        if not text.str.contains(pattern).any():
            break
        text = text.str.replace_all(pattern, "")
    return text


def _replace(text: pl.Expr, table: tuple[tuple[str, str], ...]) -> pl.Expr:
    for pattern, replacement in table:
        text = text.str.replace_all(pattern, replacement)
    return text


def _read_mangled(names: pl.Series) -> pl.Series:
    mangled = names.str.starts_with("_Z")
    if not mangled.any():
        return names
    read = pl.Series([read_mangled(name) for name in names.filter(mangled)], dtype=pl.String)
    positions = mangled.arg_true()
    return names.scatter(positions, read) if len(read) else names


# -- mangled names ---------------------------------------------------------------------------------------------------

_BUILTIN = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "f": "float", "d": "double", "DF16b": "__bf16", "DF16_": "_Float16", "Dh": "__half",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<length>\d+)|L(?P<kind>[a-z])(?P<value>n?\d+)E|(?P<substitution>S[\dA-Z]*_|S[absiod]|St|T[\d]*_)"
    r"|(?P<template>I)|(?P<pack>J)|(?P<nest>N[rVK]*[RO]?)|(?P<close>E)|(?P<external>L_Z)|(?P<enum>L)"
    r"|(?P<expression>X(?:ad)?)|(?P<function>F)"
    r"|(?P<builtin>DF16b|DF16_|Dh|[vbcahstijlmxyfd])|(?P<other>.)",
    re.DOTALL,
)
_OPENING = {"template": "<", "pack": "", "nest": "", "enum": ",(", "expression": "", "function": "", "external": ",&"}
_TIDY = ((r"([<,(])[,:]+", r"\1"), (r",+(?=[>),<])|,+$", ""), (r"^[,:]+", ""), (r",::", "::"))


def read_mangled(name: str) -> str:
    """A readable rendering of an Itanium-mangled name: nested names, template arguments and literals.

    It is no demangler: a type that repeats an earlier one (``S1_``) becomes ``_`` and the parameters are left out. It
    shows the function and the types and sizes in its template arguments, which is what the rules look for.
    """
    code, position = name[2:], 0
    text: list[str] = []
    open_brackets: list[str] = []
    fresh_nest = joined = False  # just behind an "N"; the next identifier continues a qualified name
    while (token := _TOKEN.match(code, position)) is not None:
        position, group = token.end(), token.lastgroup
        if group == "length" and open_brackets[-1:] == ["enum"]:
            text.append(f"){token['length']}")
        elif group == "length":
            end = position + int(token["length"])
            text.append(("::" if joined else ",") + code[position:end])
            position = end
            joined, fresh_nest = True, False
            if not open_brackets and code[position : position + 1] != "I":
                break  # a plain function: only its parameters follow
            continue
        elif group == "close":
            if not open_brackets:
                break
            text.append(">" if open_brackets.pop() == "template" else "")
            joined = False
            if not open_brackets:
                break
            continue
        elif group in _OPENING:
            open_brackets.append(group)
            text.append(_OPENING[group])
        elif group == "value":
            value = token["value"].replace("n", "-")
            text.append("," + (("false", "true")[value != "0"] if token["kind"] == "b" else value))
        elif group == "builtin":
            text.append("," + _BUILTIN[token["builtin"]])
        elif group == "substitution" and not fresh_nest:
            text.append(",_")
        joined = group == "external" or (group == "nest" and joined)  # the address of a function: "&::silu<...>"
        fresh_nest = group == "nest"
    readable = "".join(text)
    for pattern, replacement in _TIDY:
        readable = re.sub(pattern, replacement, readable)
    return readable or name
