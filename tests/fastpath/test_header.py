# SPDX-License-Identifier: Apache-2.0
"""Python's declarations of the C library agree with its headers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from p4reduce.fastpath import library
from p4reduce.fastpath import structures as c
from tests.support import c_library
from tests.support.c_headers import HOST, constants, functions, is_declared, structures

HEADERS = sorted((HOST / "include").glob("*.h"))
STRUCTURES = {
    f"p4reduce_{structure.__name__.lower()}": structure
    for structure in (c.Error, c.Membership, c.Timing, c.Stats, c.Held, c.Request, c.Options, c_library.Payload)
} | {"p4reduce_local_options": c.LocalOptions}
KINDS = {**STRUCTURES, "function": c.OnEnd}


def test_every_structure_is_there() -> None:
    assert structures(*HEADERS).keys() == STRUCTURES.keys()


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields(name: str) -> None:
    fields, declared = structures(*HEADERS)[name], STRUCTURES[name]._fields_
    assert [field for _, field, _ in fields] == [field[0] for field in declared]
    for (kind, field, length), (_, python) in zip(fields, declared, strict=True):
        assert is_declared(kind, length, python, KINDS), f"{name}.{field} is {kind}, not {python}"


def test_sizes_and_offsets(tmp_path: Path) -> None:
    """Structures have the sizes and offsets that a C compiler gives them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs cc")
    wanted, lines = {}, []
    for name, structure in STRUCTURES.items():
        wanted[name] = (0, ctypes.sizeof(structure))
        lines.append(f'printf("{name} 0 %zu\\n", sizeof({name}));')
        for field in structure._fields_:
            at = getattr(structure, field[0])
            wanted[f"{name}.{field[0]}"] = (at.offset, at.size)
            offset_and_size = f"offsetof({name}, {field[0]}), sizeof((({name} *)0)->{field[0]})"
            lines.append(f'printf("{name}.{field[0]} %zu %zu\\n", {offset_and_size});')
    source = tmp_path / "layout.c"
    includes = "".join(f'#include "{header.name}"\n' for header in HEADERS)
    source.write_text(f"#include <stdio.h>\n{includes}int main(void) {{ {' '.join(lines)} return 0; }}\n")
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{HOST / 'include'}", source, "-o", program], check=True, timeout=60)
    output = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout
    found = {name: (int(at), int(size)) for name, at, size in map(str.split, output.splitlines())}
    assert found == wanted


def test_functions() -> None:
    there = functions("P4REDUCE_API", *HEADERS)
    for name, (result, arguments) in (library._FUNCTIONS | c_library.FUNCTIONS).items():
        c_result, c_arguments = there[name]
        assert is_declared(c_result, 0, result, KINDS), f"{name} returns {c_result}, not {result}"
        assert len(arguments) == len(c_arguments), name
        for (kind, argument, length), python in zip(c_arguments, arguments, strict=True):
            assert is_declared(kind, length, python, KINDS), f"{argument} of {name} is {kind}, not {python}"


def test_codes() -> None:
    there = {name.removeprefix("P4REDUCE_"): value for name, value in constants(*HEADERS).items()}
    types = {name.upper(): value for name, value in c.TYPES.items()}
    types |= {f"WIRE_{name.upper()}": value for name, value in c.WIRES.items()}
    types |= {f"ZEROS_{name.upper()}": value for name, value in c.ZEROS.items()}
    assert there == {name: types[name] if name in types else getattr(c, name) for name in there}
    assert len(there) == 24
