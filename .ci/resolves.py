#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `pip install p4reduce` resolve beside what training hosts have? Needs uv and an index; downloads metadata alone.

    python .ci/resolves.py [--python 3.12] [NAME ...]

It builds a wheel of Python alone, and has uv resolve it together with each package in turn, with that one's own pins.
It prints a table: what was asked for, and which protobuf and grpcio came of it. The exit status is 1 where one does
not resolve.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = [f"torch=={version}" for version in (
    "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0",
)]  # fmt: skip
# Each row is what is installed together; the last ones are what pins protobuf the hardest.
BESIDE = [
    *([torch] for torch in TORCH),
    ["ray[default,train]"],
    ["ray[default,train]==2.40.0"],
    ["deepspeed", "torch"],
    ["lightning", "torch"],
    ["transformers[sentencepiece]", "torch"],
    ["accelerate", "transformers", "torch"],
    ["tensorflow"],
    ["tensorflow==2.20.0"],
    ["tensorflow==2.19.1"],
    ["tensorflow==2.18.1"],
    ["tensorflow==2.17.1"],
    ["tensorboard", "wandb", "mlflow", "torch"],
    ["onnx", "torch"],
    ["protobuf==3.20.3"],
]
TIMEOUT = 600.0


def wheel(uv: str, folder: Path) -> Path:
    """Of the working tree, without its C libraries, which change nothing of what it needs."""
    command = [uv, "build", "--wheel", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "P4REDUCE_PURE": "1"}, capture_output=True)
    return next(folder.glob("p4reduce-*.whl"))


def resolved(uv: str, made: Path, beside: list[str], python: str) -> tuple[bool, str]:
    """Whether it resolves, and which versions of note come of it, or why not."""
    asked = "\n".join([f"p4reduce @ {made.as_uri()}", *beside])
    command = [uv, "pip", "compile", "--no-header", "--no-annotate", "--python-version", python, "-"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if done.returncode:
        return False, " ".join(done.stderr.split())[-300:]
    found = re.findall(r"^((?:protobuf|grpcio|numpy|torch|tensorflow|ray)==\S+)", done.stdout, re.MULTILINE)
    return True, ", ".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="for which Python (default %(default)s)")
    parser.add_argument("names", nargs="*", help="only rows that have one of these in them")
    arguments = parser.parse_args()
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not on PATH: pip install uv")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        made = wheel(uv, Path(folder))
        for beside in BESIDE:
            if arguments.names and not any(name in one for name in arguments.names for one in beside):
                continue
            good, found = resolved(uv, made, beside, arguments.python)
            failed += not good
            print(f"| {' '.join(beside)} | {'resolves' if good else 'DOES NOT RESOLVE'} | {found} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
