# SPDX-License-Identifier: Apache-2.0
"""A reader of this project's C headers, and a comparison of their declarations with those of ctypes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOST, NATIVE, SIMULATOR = (ROOT / folder / "csrc" for folder in ("hostlib", "targets", "simulator"))

_SCALARS: Mapping[str, Any] = {
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: getattr(ctypes, f"c_{name}") for name in ("int", "long", "float", "double", "size_t", "char")},
    "unsigned": ctypes.c_uint,
    "p4reduce_status": ctypes.c_int,
    "void": None,
}


def text_of(*headers: Path) -> str:
    """Return the text of headers without comments."""
    return "".join(re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.S) for header in headers)


def constants(*headers: Path) -> dict[str, int]:
    """Return the values of enumerators and numeric macros, by name."""
    text = text_of(*headers)
    macros = re.findall(r"^#define (\w+) (.+)$", text, re.M)
    found = {name: _number(value, {}) for name, value in macros if re.match(r"\(?(?:UINT\d+_C\()?\d", value)}
    for body in re.findall(r"\benum\b[^{;()]*\{(.*?)\}", text, re.S):
        value = -1
        for entry in filter(None, map(str.strip, body.split(","))):
            name, _, given = entry.partition("=")
            value = _number(given, found) if given else value + 1
            found[name.strip()] = value
    return found


def _number(expression: str, known: Mapping[str, int]) -> int:
    """Return the value of an integer expression of numbers, operators and known names."""
    plain = re.sub(r"UINT\d+_C\((\w+)\)", r"\1", expression.strip())
    plain = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", plain).replace("/", "//")
    value = eval(plain, {"__builtins__": {}}, dict(known))
    assert isinstance(value, int)
    return value


def structures(*headers: Path) -> dict[str, list[tuple[str, str, int]]]:
    """Return the fields of each typedef'd structure: C type, name, and length (0 if it is no array)."""
    found, known = {}, constants(*headers)
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text_of(*headers), re.S):
        found[name] = [_declaration(part, known) for part in body.split(";") if part.strip()]
    return found


def functions(marker: str, *headers: Path) -> dict[str, tuple[str, list[tuple[str, str, int]]]]:
    """Return the result type and the arguments of each function that the macro `marker` exports."""
    found, known = {}, constants(*headers)
    pattern = rf"^{marker}\s+([^;(]*?)(\w+)\(([^;]*)\);"
    for result, name, arguments in re.findall(pattern, text_of(*headers), re.M):
        parts = [] if arguments.strip() == "void" else arguments.split(",")
        found[name] = (_plain(result), [_declaration(part, known) for part in parts])
    return found


def _declaration(text: str, known: Mapping[str, int]) -> tuple[str, str, int]:
    pointer = re.fullmatch(r"\s*[^(]*\(\*(\w+)\)\(.*\)\s*", text, re.S)
    if pointer:
        return "function *", pointer[1], 0
    match = re.fullmatch(r"\s*(.*?)(\w+)(?:\[(.+)\])?\s*", text, re.S)
    assert match, text
    return _plain(match[1]), match[2], _number(match[3] or "0", known)


def _plain(kind: str) -> str:
    return " ".join(word for word in kind.replace("*", " * ").split() if word not in ("const", "struct"))


def is_declared(kind: str, length: int, declared: Any, structs: Mapping[str, Any]) -> bool:
    """Return whether the ctypes type `declared` matches the C type `kind`, or an array of it.

    length: the length of the array; 0 for no array.
    structs: the ctypes structures by their names in C, and a function type as "function". Pointers to any other
        structure are c_void_p.
    """
    if length:
        return bool(declared is _SCALARS[kind] * length)
    if not kind.endswith("*"):
        return bool(declared is (structs[kind] if kind in structs else _SCALARS[kind]))
    return declared in set(_pointers(kind[:-1].strip(), structs))


def _pointers(pointee: str, structs: Mapping[str, Any]) -> Iterator[Any]:
    if pointee == "function":
        yield structs["function"]
    elif pointee in structs:
        yield ctypes.POINTER(structs[pointee])
    elif pointee in ("char", "uint8_t", "void"):
        yield from (ctypes.c_char_p, ctypes.c_void_p)
    elif pointee.endswith("*"):
        yield from (ctypes.POINTER(inner) for inner in _pointers(pointee[:-1].strip(), structs))
        yield ctypes.c_void_p
    elif pointee in _SCALARS:
        yield from (ctypes.POINTER(_SCALARS[pointee]), ctypes.c_void_p)
    else:
        yield ctypes.c_void_p
