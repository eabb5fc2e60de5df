# SPDX-License-Identifier: Apache-2.0
"""p4src/compile.py and tofino.py as modules; they are scripts beside the sources, in no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

P4SRC = Path(__file__).resolve().parents[2] / "p4src"


def script(name: str, p4src: Path = P4SRC) -> ModuleType:
    """The script of this tree of sources, which compiles that tree."""
    if str(P4SRC) not in sys.path:
        sys.path.append(str(P4SRC))  # scripts import one another
    spec = importlib.util.spec_from_file_location(f"p4reduce_{name}", p4src / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def compiler(p4src: Path = P4SRC) -> ModuleType:
    """`compile.py`: the program for BMv2."""
    return script("compile", p4src)
