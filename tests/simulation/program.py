# SPDX-License-Identifier: Apache-2.0
"""The shipped program with few slots, so that jobs compete for them, and each is parsed once."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from p4reduce_controller.p4runtime.program import load_schema
from p4reduce_controller.service import run
from p4reduce_targets.native import program

SLOTS = 16
_COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
_HALVES = 1024  # cells of the shipped program's registers


@lru_cache
def folder() -> Path:
    """Return a folder with the program."""
    made = Path(tempfile.mkdtemp(prefix="p4reduce-simulation-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    info = (_COMPILED / "p4info.txtpb").read_text()
    begin = info.index("\nregisters {")
    (made / "p4info.txtpb").write_text(info[:begin] + info[begin:].replace(f"size: {_HALVES}", f"size: {2 * SLOTS}"))
    config = (_COMPILED / "p4reduce.json").read_text()
    (made / "p4reduce.json").write_text(config.replace(f'"size":{_HALVES},', f'"size":{2 * SLOTS},'))
    return made


_schema = lru_cache(load_schema)
_check = lru_cache(program.check)


def replaced() -> list[tuple[Any, str, Any]]:
    """Return what is replaced, so that no program is parsed twice."""
    return [(run, "load_schema", _schema), (program, "check", _check)]
