# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 program for BMv2.

Without options of p4c: the builds that are shipped, one for each MTU, into `p4src/compiled/`. With options such as
-DLANES=1: the build that they describe.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "bmv2" / "p4reduce.p4"
COMPILED = HERE / "compiled"
COMPILER = "p4c-bm2-ss"
CONTAINERS = ("docker", "podman")
IMAGE = "p4lang/p4c:latest"  # the P4 project's own, from the Docker Hub; P4C_IMAGE names another
ANSWER_S = 30  # seconds for Docker or Podman to answer
# Options of p4c for each shipped build, by its folder in COMPILED.
BUILDS = {".": [], "jumbo": ["-DLANES=8", "-DBLOCK_SIZE=256"]}


def without_source_places(node: Any) -> Any:
    """Return the same JSON without p4c's `source_info`, which doubles its size and has paths of this machine."""
    if isinstance(node, dict):
        return {key: without_source_places(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [without_source_places(item) for item in node]
    return node


def one_part_a_line(program: dict[str, Any]) -> str:
    """Return JSON text with one line for each action, table, header ...: small, and a diff is readable."""
    lines = []
    for name, part in program.items():
        items = part if isinstance(part, list) else [part]
        body = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
        lines.append(f"{json.dumps(name)}:" + (f"[\n{body}\n]" if isinstance(part, list) else body))
    return "{" + ",\n".join(lines) + "}\n"


class CompilerMissing(FileNotFoundError):
    """No p4c can run, neither here nor in a container. The message says what to do."""


def find_compiler(where: str) -> None:
    """Raise CompilerMissing. `where`: "" for PATH, or one of CONTAINERS."""
    if not where:
        if shutil.which(COMPILER) is None:
            there = next((one for one in CONTAINERS if shutil.which(one)), None)
            container = f"make p4 P4C={there or 'docker'} (compile.py --p4c {there or 'docker'})"
            raise CompilerMissing(
                f"{COMPILER} is not on PATH. It comes with p4c: install the P4 project's package p4lang-p4c (Ubuntu "
                f"from 20.04, Debian 11), or compile in its container image, with {container}"
                + ("" if there else " where Docker or Podman is installed")
                + ". docs/tutorial/5-p4-program.md has both"
            )
        return
    if shutil.which(where) is None:
        raise CompilerMissing(
            f"{where} is not on PATH, so {COMPILER} cannot run in a container; accepted are the one on PATH (without "
            f"P4C=) and P4C={' and P4C='.join(CONTAINERS)}"
        )
    try:
        done = subprocess.run([where, "info"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        raise CompilerMissing(f"{where} is installed, but cannot run containers here: {why}")


def command_of(where: str, folder: Path) -> list[str]:
    """Return the command that runs p4c. A container sees the sources and the output `folder` under the same paths."""
    if not where:
        return [COMPILER]
    owner = ["--userns=keep-id"] if where == "podman" else ["--user", f"{os.getuid()}:{os.getgid()}"]
    mounts = [f"--volume={HERE}:{HERE}:ro", f"--volume={folder}:{folder}", "--security-opt=label=disable"]
    return [where, "run", "--rm", *owner, *mounts, os.environ.get("P4C_IMAGE") or IMAGE, COMPILER]


def compile_program(to: Path, options: list[str], where: str = "") -> None:
    """Write `p4reduce.json` and `p4info.txtpb` into folder `to`. `where`: see `find_compiler`.

    Raises CompilerMissing, or CalledProcessError when p4c has said what is wrong.
    """
    find_compiler(where)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "p4reduce.json"
        info = Path(folder) / "p4info.txtpb"
        command = [*command_of(where, Path(folder)), "--p4v", "16", "--Werror", *options]
        command += ["--p4runtime-files", str(info), "-o", str(raw), str(SOURCE)]
        subprocess.run(command, check=True)
        program = without_source_places(json.loads(raw.read_text()))
        program.pop("program", None)
        to.mkdir(parents=True, exist_ok=True)
        (to / "p4reduce.json").write_text(one_part_a_line(program))
        (to / "p4info.txtpb").write_text(info.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Options that are not listed here go to p4c, such as -DLANES=8, -DBLOCK_SIZE=256 and -DSLOTS=256. "
        "`p4reduce controller --pipeline FOLDER` installs the program of a folder on its switches.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=COMPILED,
        metavar="FOLDER",
        help=f"folder for the compiled program (default {COMPILED})",
    )
    parser.add_argument(
        "--p4c",
        choices=CONTAINERS,
        default="",
        help=f"run {COMPILER} in a container of the image {IMAGE}, or of the image that P4C_IMAGE names (default: the "
        "one on PATH)",
    )
    arguments, options = parser.parse_known_args()
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out}: must be a folder, and this is a file")
    try:
        for folder, given in BUILDS.items() if not options else [(".", options)]:
            compile_program(arguments.out / folder, given, arguments.p4c)
    except CompilerMissing as error:
        sys.exit(f"compile.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
