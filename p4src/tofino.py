# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 program for Tofino with the public backend of p4c, and report the resources that each profile uses.

python p4src/tofino.py [--json] [--out FOLDER] [--cpu-port N] [--recirculation-port N] [PROFILE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tofino_parsers

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "tna" / "p4reduce.p4"
COMPILED = HERE / "compiled"


@dataclass(frozen=True)
class Profile:
    """A build for a chip: `tofino` 1 or 2, values a packet, slots, and the numbers of two of its ports."""

    tofino: int
    block_size: int
    slots: int
    cpu_port: int
    recirculation_port: int = 68  # within a pipe: the low 7 bits of a port's number

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_port < 512:
            raise ValueError(f"CPU port {self.cpu_port}: accepted are 0 to 511")
        if not 0 <= self.recirculation_port < 128:
            raise ValueError(f"recirculation port {self.recirculation_port}: accepted are 0 to 127, of each pipe")
        if self.has_second_pass and self.cpu_port & 0x7F == self.recirculation_port:
            raise ValueError(
                f"CPU port {self.cpu_port} and recirculation port {self.recirculation_port} are one port of a pipe"
            )

    @property
    def has_second_pass(self) -> bool:
        return self.tofino == 1 and self.block_size == 64

    @property
    def can_be_leaf(self) -> bool:
        """Return whether the program can run below another switch (tna/profile.p4)."""
        return not self.has_second_pass

    @property
    def stages(self) -> int:
        return {1: 12, 2: 20}[self.tofino]

    def options(self, **others: int) -> list[str]:
        """Return the compiler's options; `others` replace those of the profile."""
        parameters = {
            "LANES": 1,
            "BLOCK_SIZE": self.block_size,
            "SLOTS": self.slots,
            "CPU_PORT": self.cpu_port,
            "RECIRCULATION_PORT": self.recirculation_port,
            **others,
        }
        return [f"-D{name}={value}" for name, value in parameters.items()]


# The memory of the stages that hold the sums sets the slots: docs/tofino.md has the sum.
PROFILES = {
    "tofino1-64": Profile(tofino=1, block_size=64, slots=10240, cpu_port=64),
    "tofino1-32": Profile(tofino=1, block_size=32, slots=12288, cpu_port=64),
    "tofino2-64": Profile(tofino=2, block_size=64, slots=14336, cpu_port=2),
}


# Passes of p4test that are left out: they rewrite the program, and are wrong about values through stateful ALUs.
REWRITES = ("P4::PassRepeated", "GlobalCopyPropagation", "EliminateSwitch", "SynthesizeActions", "MoveActionsToTables")


class ToolMissing(RuntimeError):
    """Part of p4c is not installed here; the message names it."""


def p4info(name: str) -> Path:
    """Return the P4Info of a profile, as the backend writes it."""
    return COMPILED / f"{name}.p4info.txtpb"


def find(program: str, origin: str = "it comes with p4c, https://github.com/p4lang/p4c") -> str:
    """Return a program of p4c on PATH. Raises ToolMissing."""
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not on PATH: {origin}")
    return path


def includes() -> Path:
    """Return the folder of the architecture's P4 files: P4C_TOFINO_INCLUDE, or p4c's own."""
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

    Returns the output of p4test. Raises ToolMissing, or CalledProcessError with what is wrong in `stderr`.
    """
    command = [find("p4test"), "--Werror", f"-I{includes()}", f"-D__TARGET_TOFINO__={profile.tofino}"]
    command += profile.options(**others)
    if to is not None:
        command += ["--excludeMidendPasses", ",".join(REWRITES), "--toJSON", str(to)]
    done = subprocess.run([*command, str(source)], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Figures:
    """Resources of the chip that a build uses, from the compiler's reports, and the sizes of its packets."""

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
# Warnings of the assembler that do not change what the binary does, as patterns. Any other fails the build, unless the
# caller names it.
ASSEMBLER_EXPECTED = (
    # The compiler puts tables into one hash group. The assembler has checked that they use different columns of it, and
    # merges them; otherwise this is an error (InputXbar::can_merge).
    r"Input xbar hash group \d+ mergeable conflict in stage \d+",
    "conflicting hash group definition here",  # the other table of the pair
    # A table that uses a hash twice names its hash group twice, both times with the same content.
    r"duplicate hash group \d+, will merge with",
    "previous definition here",
    # The description of a table for the driver looks for the hash tables that its merged group has from other tables.
    r"exact hashtable \d+ does not exist in table",
    # The compiler names a bus for the meter of HELLOs, which needs none.
    "meter table should not have bus:, will be ignored",
)


class WarningsFound(RuntimeError):
    """A compiler or an assembler gave a warning that is not known to be harmless. The message has its words."""


# Names in the compiler's output: of the program, and of its package's only pipeline.
PROGRAM, PIPELINE = SOURCE.stem, "pipe"
# The pipes of a chip that run the program. The driver leaves out those that a chip with fewer pipes lacks.
PIPES = range(4)


def compile_profile(name: str, to: Path, profile: Profile | None = None, allowed: tuple[str, ...] = ()) -> Figures:
    """Compile a profile into folder `to`, and return the resources it uses.

    The folder then has what controllers and switches load (docs/tofino.md lists it), and in `build/` the compiler's
    output and reports. `profile` takes the place of the one that is called so. `allowed`: patterns of more warnings
    that do not count.

    Raises ToolMissing, WarningsFound, `tofino_parsers.BranchesLost` where the binary would act on no packet, or
    CalledProcessError with what is wrong in `stderr`.
    """
    profile = profile or PROFILES[name]
    chip, architecture = {1: ("tofino", "tna"), 2: ("tofino2", "t2na")}[profile.tofino]
    compiler, assembler = (find(program, BACKEND) for program in ("p4c-barefoot", "bfas"))
    preprocessor = find("cpp", "it comes with GCC, and p4c needs it as well")
    command = [compiler, "--std", "p4-16", "--target", chip, "--arch", architecture, "-g"]
    defines = [f"-D__TARGET_TOFINO__={profile.tofino}", *profile.options()]
    command += [f"-I{includes()}", *defines]
    command += ["--Wdisable=" + DISABLED, "--p4runtime-force-std-externs"]
    build, pipe = to / "build", to / "build" / PIPELINE
    pipe.mkdir(parents=True, exist_ok=True)
    command += ["--p4runtime-files", str(build / "p4info.txtpb"), "--bf-rt-schema", str(build / "bf-rt.json")]
    command += ["-o", str(build), str(SOURCE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    check_warnings(f"the compiler, of {name}", done.stderr, (EXPECTED, *allowed))
    assembly = pipe / f"{PROGRAM}.bfa"
    try:
        tofino_parsers.check(assembly.read_text(), SOURCE, defines, preprocessor)
    except tofino_parsers.BranchesLost as error:
        raise tofino_parsers.BranchesLost(f"{name}: {error}") from None
    command = [assembler, "--target", chip, "-o", str(pipe), str(assembly)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    check_warnings(f"the assembler, of {name}", done.stdout + done.stderr, (*ASSEMBLER_EXPECTED, *allowed))
    pack(name, chip, build, to)
    return figures(profile, pipe)


def pack(name: str, chip: str, build: Path, to: Path) -> None:
    """Move a build's files from folder `build` to `to`, and add the device config and bf_switchd's configuration."""
    (to / PIPELINE).mkdir(exist_ok=True)
    _, schema, context, binary = (
        (build / file).replace(to / file)
        for file in ("p4info.txtpb", "bf-rt.json", f"{PIPELINE}/context.json", f"{PIPELINE}/{chip}.bin")
    )
    config = device_config(schema.read_bytes(), context.read_bytes(), binary.read_bytes())
    (to / f"{PROGRAM}.bin").write_bytes(config)
    (to / f"{PROGRAM}.conf").write_text(json.dumps(driver_conf(name, chip), indent=4) + "\n")


def device_config(schema: bytes, context: bytes, binary: bytes) -> bytes:
    """Return the P4Runtime device config: a serialized ForwardingPipelineConfig of BF Runtime (bfruntime.proto).

    Stratum's message BfPipelineConfig has the same fields with the same numbers. This script runs without protobuf,
    which a machine with p4c need not have.
    """
    profile = _field(1, PIPELINE.encode()) + _field(2, context) + _field(3, binary) + _field(4, bytes(PIPES))
    return _field(1, PROGRAM.encode()) + _field(2, schema) + _field(3, profile)


def _field(number: int, content: bytes) -> bytes:
    """Return a field as protobuf encodes strings, bytes, messages and packed integers: key, length, content."""
    length, rest = bytearray(), len(content)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + content


def driver_conf(name: str, chip: str) -> dict[str, Any]:
    """Return the configuration of bf_switchd that loads a profile. Paths are relative to its option --install-dir."""
    folder = f"share/{PROGRAM}/{name}"
    pipeline = {
        "p4_pipeline_name": PIPELINE,
        "context": f"{folder}/{PIPELINE}/context.json",
        "config": f"{folder}/{PIPELINE}/{chip}.bin",
        "pipe_scope": list(PIPES),
    }
    program = {"program-name": PROGRAM, "bfrt-config": f"{folder}/bf-rt.json", "p4_pipelines": [pipeline]}
    return {
        "chip_list": [{"chip_family": chip, "instance": 0}],
        "p4_devices": [{"device-id": 0, "p4_programs": [program], "agent0": "lib/libpltfm_mgr.so"}],
    }


def check_warnings(who: str, said: str, expected: tuple[str, ...]) -> None:
    """Raise WarningsFound for a line with a warning that matches none of the patterns `expected`."""
    lines = [line for line in said.splitlines() if re.search(r"\bwarning:", line, re.IGNORECASE)]
    if unexpected := [line for line in lines if not any(re.search(pattern, line) for pattern in expected)]:
        raise WarningsFound(
            f"warnings by {who} that are not known to be harmless (--allow-warning PATTERN accepts one):\n"
            + "\n".join(unexpected)
        )


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
        header_bytes=14 + 20 + 8 + 18 + 4,  # Ethernet, IPv4, UDP, the protocol's header, a key
        payload_bytes=4 * profile.block_size,
        slots=profile.slots,
    )


def _bits_used(slices: list[dict[str, Any]]) -> int:
    """Return the bits of a container that hold a field at some time."""
    places = (one["slice_info"] for one in slices)
    return len({bit for place in places for bit in range(place["lsb"], place["msb"] + 1)})


def table(found: dict[str, Figures]) -> list[list[str]]:
    """Return rows of text, as in docs/tofino.md: a head with the profiles, then one row for each figure."""
    names = [field.name for field in fields(Figures)]
    rows = [[name.replace("_", " "), *(f"{getattr(one, name):,}" for one in found.values())] for name in names]
    return [["", *found], *rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "profiles",
        nargs="*",
        metavar="PROFILE",
        help=f"profiles to build; default: all, which are {', '.join(PROFILES)}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to keep the builds in, as FOLDER/PROFILE, for `p4reduce switch --program`, `p4reduce controller "
        "--pipeline` and bf_switchd; without it, only P4Info is kept, in p4src/compiled/",
    )
    ports = "64, and 2 on Tofino 2"
    parser.add_argument(
        "--cpu-port", type=int, metavar="N", help=f"port for packet-in and packet-out (default {ports})"
    )
    parser.add_argument(
        "--recirculation-port", type=int, metavar="N", help="port of each pipe for second passes: 0 to 127 (default 68)"
    )
    parser.add_argument(
        "--allow-warning",
        action="append",
        default=[],
        metavar="PATTERN",
        help="accept warnings of compiler and assembler that match this regular expression; may be repeated",
    )
    options = parser.parse_args()
    unknown = [name for name in options.profiles if name not in PROFILES]
    if unknown:
        parser.error(f"there is no profile {unknown[0]}, only {', '.join(PROFILES)}")
    given = {"cpu_port": options.cpu_port, "recirculation_port": options.recirculation_port}
    changes = {name: port for name, port in given.items() if port is not None}
    try:
        chosen = {name: replace(PROFILES[name], **changes) for name in options.profiles or PROFILES}
    except ValueError as error:
        parser.error(str(error))
    if options.recirculation_port is not None and not any(one.has_second_pass for one in chosen.values()):
        second = ", ".join(name for name, one in PROFILES.items() if one.has_second_pass)
        parser.error(f"--recirculation-port is for profiles with a second pass, {second}, and none of them is built")
    for program in ("p4c-barefoot", "bfas"):
        find(program, BACKEND)  # before anything that takes minutes
    found: dict[str, Figures] = {}
    for name, profile in chosen.items():
        print(f"compiling {name}, which takes minutes ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) if options.out is None else options.out / name
            found[name] = compile_profile(name, to, profile, tuple(options.allow_warning))
            if options.out is None:
                p4info(name).write_text((to / "p4info.txtpb").read_text())
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
