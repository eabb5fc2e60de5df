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
        parameters = {
            "LANES": 1,
            "BLOCK_SIZE": self.block_size,
            "SLOTS": self.slots,
            "CPU_PORT": self.cpu_port,
            **others,
        }
        return [f"-D{name}={value}" for name, value in parameters.items()]


# The memory of the stages that hold the sums sets the slots: docs/tofino.md has the sum.
PROFILES = {
    "tofino1-64": Profile(tofino=1, block_size=64, slots=8192, cpu_port=64),
    "tofino1-32": Profile(tofino=1, block_size=32, slots=16384, cpu_port=64),
    "tofino2-64": Profile(tofino=2, block_size=64, slots=8192, cpu_port=2),
}


# Passes of p4test that would move the program away from its source; copies through stateful ALUs it does not follow.
REWRITES = ("P4::PassRepeated", "GlobalCopyPropagation", "EliminateSwitch", "SynthesizeActions", "MoveActionsToTables")


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
    candidates = [
        os.environ.get("P4C_TOFINO_INCLUDE", ""),
        installed / "share/p4c/p4include",
        installed / "build/p4include",
    ]
    for folder in candidates:
        if folder and (Path(folder) / "tna.p4").is_file():
            return Path(folder)
    raise ToolMissing(
        f"tna.p4 is in none of {', '.join(str(one) for one in candidates if one)}; set P4C_TOFINO_INCLUDE"
    )


def check(profile: Profile, to: Path | None = None, source: Path = SOURCE, **others: int) -> str:
    """Check the types, and write p4c's intermediate representation to `to`; warnings are errors.

    Gives back what p4test said. Raises ToolMissing, or CalledProcessError with what is wrong in `stderr`.
    """
    command = [find("p4test"), "--Werror", f"-I{includes()}", f"-D__TARGET_TOFINO__={profile.tofino}"]
    command += profile.options(**others)
    if to is not None:
        command += ["--excludeMidendPasses", ",".join(REWRITES), "--toJSON", str(to)]
    done = subprocess.run([*command, str(source)], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Figures:
    """What a build takes of the chip, from the reports of the compiler, and its packets."""

    stages: int  # the last one that is used, counted from 1
    stateful_alus: int
    srams: int
    map_rams: int
    tcams: int
    logical_tables: int
    phv_bits: int  # of the containers that the match-action units work on
    phv_containers: int
    header_bytes: int  # Ethernet to keys
    payload_bytes: int
    slots: int


def compile_profile(name: str, to: Path) -> Figures:
    """Compile a profile into folder `to`, with P4Info, and read what it takes. Raises as `check` does."""
    if shutil.which("bfas") is None:
        raise ToolMissing("bfas is not on PATH: it comes with p4c when that is built with -DENABLE_TOFINO=ON")
    profile = PROFILES[name]
    chip = {1: "tofino", 2: "tofino2"}[profile.tofino]
    architecture = {1: "tna", 2: "t2na"}[profile.tofino]
    command = [find("p4c"), "--target", chip, "--arch", architecture, "--std", "p4-16", "-g", "-o", str(to)]
    command += [f"-I{includes()}", *profile.options(), "--p4runtime-force-std-externs"]
    command += ["--p4runtime-files", str(to / "p4info.txtpb"), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return figures(profile, to)


def figures(profile: Profile, folder: Path) -> Figures:
    """Read the reports of a build. Raises FileNotFoundError where one is missing."""
    metrics, resources = (_report(folder, name) for name in ("metrics.json", "resources.json"))
    stages = resources["resources"]["mau"]["mau_stages"]
    used = [stage["stage_number"] for stage in stages if stage["logical_tables"]["ids"]]
    alus = {
        (stage["stage_number"], alu["row"])
        for stage in stages
        for alu in stage["meter_alus"]["meters"]
        if any(usage["used_for"] == "stateful" for usage in alu["usages"])
    }
    working = [*metrics["phv"]["normal"], *metrics["phv"].get("mocha", []), *metrics["phv"].get("dark", [])]
    return Figures(
        stages=max(used) + 1,
        stateful_alus=len(alus),
        srams=metrics["mau"]["srams"],
        map_rams=metrics["mau"]["map_rams"],
        tcams=metrics["mau"]["tcams"],
        logical_tables=metrics["mau"]["logical_tables"],
        phv_bits=sum(kind["bits_occupied"] for kind in working),
        phv_containers=sum(kind["containers_occupied"] for kind in working),
        header_bytes=14 + 20 + 8 + 18 + 4,
        payload_bytes=4 * profile.block_size,
        slots=profile.slots,
    )


def _report(folder: Path, name: str) -> Any:
    found = sorted(folder.rglob(name))
    if not found:
        raise FileNotFoundError(f"the compiler left no {name} in {folder}")
    return json.loads(found[0].read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help=f"by default all: {', '.join(PROFILES)}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    unknown = [name for name in options.profiles if name not in PROFILES]
    if unknown:
        parser.error(f"there is no profile {unknown[0]}, only {', '.join(PROFILES)}")
    found: dict[str, Figures] = {}
    for name in options.profiles or PROFILES:
        print(f"compiling {name}, which takes minutes ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = compile_profile(name, Path(folder))
            info = Path(folder) / "p4info.txtpb"
            (COMPILED / f"{name}.p4info.txtpb").write_text(info.read_text())
    if options.json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}))
        return 0
    rows = [["", *found]]
    rows += [
        [key.replace("_", " "), *(str(asdict(one)[key]) for one in found.values())] for key in Figures.__annotations__
    ]
    for row in rows:
        print(f"{row[0]:<16}" + "".join(f"{cell:>14}" for cell in row[1:]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolMissing as missing:
        sys.exit(str(missing))
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr or error.returncode)
