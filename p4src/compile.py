# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 program for BMv2: as shipped, each build for its MTU, into `p4src/compiled/`; or, with options of p4c
such as -DLANES=1, the one of those."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "bmv2" / "p4reduce.p4"
COMPILED = HERE / "compiled"
# As shipped, by their folders in it.
BUILDS = {".": [], "jumbo": ["-DLANES=8", "-DBLOCK_SIZE=256"]}


def without_source_places(node: Any) -> Any:
    """The same JSON without p4c's notes on where in the source each part stands: half the size, and free of paths."""
    if isinstance(node, dict):
        return {key: without_source_places(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [without_source_places(item) for item in node]
    return node


def one_part_a_line(program: dict[str, Any]) -> str:
    """JSON text with one line for each action, table, header ...: small, and a diff still reads."""
    lines = []
    for name, part in program.items():
        items = part if isinstance(part, list) else [part]
        body = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
        lines.append(f"{json.dumps(name)}:" + (f"[\n{body}\n]" if isinstance(part, list) else body))
    return "{" + ",\n".join(lines) + "}\n"


def compile_program(to: Path, options: list[str]) -> None:
    """Write `p4reduce.json` and `p4info.txtpb` into folder `to`. Raises FileNotFoundError where p4c is missing."""
    if shutil.which("p4c-bm2-ss") is None:
        raise FileNotFoundError("p4c-bm2-ss is not on PATH: it comes with p4c, https://github.com/p4lang/p4c")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "p4reduce.json"
        info = Path(folder) / "p4info.txtpb"
        command = ["p4c-bm2-ss", "--p4v", "16", "--Werror", *options, "--p4runtime-files", str(info), "-o", str(raw)]
        subprocess.run([*command, str(SOURCE)], check=True)
        program = without_source_places(json.loads(raw.read_text()))
        program.pop("program", None)
        to.mkdir(parents=True, exist_ok=True)
        (to / "p4reduce.json").write_text(one_part_a_line(program))
        (to / "p4info.txtpb").write_text(info.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="What is not listed here is handed to p4c, as -DLANES=8, -DBLOCK_SIZE=256 and -DSLOTS=256. A switch "
        "gets the program of a folder by `p4reduce controller --pipeline FOLDER`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o", "--out", type=Path, default=COMPILED, metavar="FOLDER", help=f"where it goes (default {COMPILED})"
    )
    arguments, options = parser.parse_known_args()
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out}: a folder is accepted, and this is a file")
    try:
        for folder, given in BUILDS.items() if not options else [(".", options)]:
            compile_program(arguments.out / folder, given)
    except FileNotFoundError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
