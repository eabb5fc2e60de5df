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
from dataclasses import asdict, dataclass, fields
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
    "tofino1-64": Profile(tofino=1, block_size=64, slots=10240, cpu_port=64),
    "tofino1-32": Profile(tofino=1, block_size=32, slots=16384, cpu_port=64),
    "tofino2-64": Profile(tofino=2, block_size=64, slots=14336, cpu_port=2),
}


# Passes of p4test that would move the program away from its source; copies through stateful ALUs it does not follow.
REWRITES = ("P4::PassRepeated", "GlobalCopyPropagation", "EliminateSwitch", "SynthesizeActions", "MoveActionsToTables")


class ToolMissing(RuntimeError):
    """Part of p4c is not installed here; the message names it."""


def p4info(name: str) -> Path:
    """The P4Info of a profile, as the backend writes it."""
    return COMPILED / f"{name}.p4info.txtpb"


def find(program: str, origin: str = "it comes with p4c, https://github.com/p4lang/p4c") -> str:
    """A program of p4c on PATH. Raises ToolMissing."""
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not on PATH: {origin}")
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
    logical_tables: int
    stateful_alus: int
    srams: int
    map_rams: int
    tcams: int
    phv_containers: int  # that the match-action units work on
    phv_bits: int  # of fields in those containers
    header_bytes: int  # Ethernet to keys
    payload_bytes: int
    slots: int


BACKEND = "it comes with p4c when that is built with -DENABLE_TOFINO=ON"

# Warnings that are not about these sources: of states that the compiler itself adds to the egress parser, and of the
# annotation that P4Runtime has for the headers of packet-in and packet-out.
EXPECTED = "min_parse_depth_accept_loop"
DISABLED = "unknown"


def compile_profile(name: str, to: Path) -> Figures:
    """Compile a profile into folder `to`: binary, P4Info, reports. Gives what it takes of the chip.

    Raises ToolMissing, CalledProcessError with what is wrong in `stderr`, or RuntimeError for a warning.
    """
    profile = PROFILES[name]
    chip, architecture = {1: ("tofino", "tna"), 2: ("tofino2", "t2na")}[profile.tofino]
    compiler, assembler = (find(program, BACKEND) for program in ("p4c-barefoot", "bfas"))
    command = [compiler, "--std", "p4-16", "--target", chip, "--arch", architecture, "-g"]
    command += [f"-D__TARGET_TOFINO__={profile.tofino}", f"-I{includes()}", *profile.options()]
    command += ["--Wdisable=" + DISABLED, "--p4runtime-force-std-externs"]
    if profile.tofino > 1:
        command += ["--no-clot"]  # the assembler of p4c 1.2.5.16 rejects the CLOTs of its compiler
    command += ["--p4runtime-files", str(to / "p4info.txtpb"), "-o", str(to), str(SOURCE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    if any("warning:" in line and EXPECTED not in line for line in done.stderr.splitlines()):
        raise RuntimeError(f"the compiler warns about {name}: {done.stderr}")
    pipe = to / "pipe"
    command = [assembler, "--no-warn", "--target", chip, "-o", str(pipe), str(pipe / f"{SOURCE.stem}.bfa")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return figures(profile, pipe)


def figures(profile: Profile, pipe: Path) -> Figures:
    """Read the reports in the folder of a build's pipe. Raises FileNotFoundError where one is missing."""
    resources, phv = (json.loads((pipe / "logs" / name).read_text()) for name in ("resources.json", "phv.json"))
    stages = resources["resources"]["mau"]["mau_stages"]
    alus = [alu for stage in stages for alu in stage["meter_alus"]["meters"]]
    containers = [one for one in phv["containers"] if one["container_type"] != "tagalong"]
    return Figures(
        stages=1 + max(stage["stage_number"] for stage in stages if stage["logical_tables"]["ids"]),
        logical_tables=sum(len(stage["logical_tables"]["ids"]) for stage in stages),
        stateful_alus=sum(any(usage["used_for"] == "stateful_ram" for usage in alu["usages"]) for alu in alus),
        srams=sum(len(stage["rams"]["srams"]) for stage in stages),
        map_rams=sum(len(stage["map_rams"]["maprams"]) for stage in stages),
        tcams=sum(len(stage["tcams"]["tcams"]) for stage in stages),
        phv_containers=len(containers),
        phv_bits=sum(_bits_used(one["slices"]) for one in containers),
        header_bytes=14 + 20 + 8 + 18 + 4,
        payload_bytes=4 * profile.block_size,
        slots=profile.slots,
    )


def _bits_used(slices: list[dict[str, Any]]) -> int:
    """Bits of a container in which there is ever a field."""
    places = (one["slice_info"] for one in slices)
    return len({bit for place in places for bit in range(place["lsb"], place["msb"] + 1)})


def table(found: dict[str, Figures]) -> list[list[str]]:
    """Rows of text: a head with the profiles, then a figure each, as they stand in docs/tofino.md."""
    names = [field.name for field in fields(Figures)]
    rows = [[name.replace("_", " "), *(f"{getattr(one, name):,}" for one in found.values())] for name in names]
    return [["", *found], *rows]


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
            p4info(name).write_text(info.read_text())
    if options.json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}))
        return 0
    for row in table(found):
        print(f"{row[0]:<16}" + "".join(f"{cell:>14}" for cell in row[1:]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr or error.returncode)
