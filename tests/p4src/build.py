# SPDX-License-Identifier: Apache-2.0
"""p4src/compile.py as a module; it is a script beside the sources, in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

P4SRC = Path(__file__).resolve().parents[2] / "p4src"


def compiler(p4src: Path = P4SRC) -> ModuleType:
    """The `compile.py` of this tree of sources, which compiles that tree."""
    spec = importlib.util.spec_from_file_location("p4reduce_compile", p4src / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
