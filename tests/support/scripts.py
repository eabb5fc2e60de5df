# SPDX-License-Identifier: Apache-2.0
"""Scripts outside packages, imported as modules: p4src/compile.py, p4src/tofino.py, and the examples."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

P4SRC = Path(__file__).resolve().parents[2] / "p4src"


def load_script(path: Path, beside: Path | None = None) -> ModuleType:
    """Import a script that is in no package. It can import modules from its folder, or from `beside`."""
    folder = str(beside or path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"p4reduce_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def script(name: str, p4src: Path = P4SRC) -> ModuleType:
    """Return the script `name` of a tree of P4 sources, as a module that compiles this tree."""
    return load_script(p4src / f"{name}.py", P4SRC)


def compiler(p4src: Path = P4SRC) -> ModuleType:
    """Return the script that compiles the P4 program for BMv2."""
    return script("compile", p4src)


Build = Callable[[dict[str, int]], Path]
