# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 program for Tofino with the public backend of p4c, and tell what each profile takes of the chip.

python p4src/tofino.py [--json] [PROFILE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "tna" / "p4reduce.p4"
COMPILED = HERE / "compiled"


@dataclass(frozen=True)
class Profile:
    """A build for a chip: `tofino` 1 or 2, values a packet, slots, and the number of its CPU port."""

    tofino: int
    block_size: int
    slots: int
    cpu_port: int

    @property
    def stages(self) -> int:
        return {1: 12, 2: 20}[self.tofino]

    def options(self, **others: int) -> list[str]:
        """Options of the compiler; `others` take the place of the profile's."""
        parameters = {"LANES": 1, "BLOCK_SIZE": self.block_size, "SLOTS": self.slots, "CPU_PORT": self.cpu_port, **others}
        return [f"-D{name}={value}" for name, value in parameters.items()]


# The memory of the stages that hold the sums sets the slots: docs/tofino.md has the sum.
PROFILES = {
    "tofino1-64": Profile(tofino=1, block_size=64, slots=8192, cpu_port=64),
    "tofino1-32": Profile(tofino=1, block_size=32, slots=16384, cpu_port=64),
    "tofino2-64": Profile(tofino=2, block_size=64, slots=8192, cpu_port=2),
}


class ToolMissing(RuntimeError):
    """Part of p4c is not installed here; the message names it."""


def find(program: str) -> str:
    """A program of p4c on PATH. Raises ToolMissing."""
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not on PATH: it comes with p4c, https://github.com/p4lang/p4c")
    return path


def includes() -> Path:
    """The folder of the architecture's P4 files. P4C_TOFINO_INCLUDE names it where it is elsewhere than p4c's own."""
    installed = Path(find("p4test")).resolve().parents[1]
    candidates = [os.environ.get("P4C_TOFINO_INCLUDE", ""), installed / "share/p4c/p4include", installed / "build/p4include"]
    for folder in candidates:
        if folder and (Path(folder) / "tna.p4").is_file():
            return Path(folder)
    raise ToolMissing(f"tna.p4 is in none of {', '.join(str(one) for one in candidates if one)}; set P4C_TOFINO_INCLUDE")


def check(profile: Profile, to: Path | None = None, source: Path = SOURCE, **others: int) -> str:
    """Check the types, and write p4c's intermediate representation to `to`; warnings are errors.

    Gives back what p4test said. Raises ToolMissing, or CalledProcessError with what is wrong in `stderr`.
    """
    command = [find("p4test"), "--Werror", f"-I{includes()}", f"-D__TARGET_TOFINO__={profile.tofino}"]
    command += profile.options(**others)
    if to is not None:
        command += ["--validate", "--toJSON", str(to)]
    done = subprocess.run([*command, str(source)], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr
