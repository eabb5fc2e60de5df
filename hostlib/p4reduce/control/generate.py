# SPDX-License-Identifier: Apache-2.0
"""Regenerates the stubs beside jobs.proto: `make proto`, which has grpcio-tools in an environment of its own.

The committed stubs come from grpcio-tools 1.62.3. What it writes runs with protobuf 3.20.3 to 7, and with any grpcio
from 1.49 on; newer tools write code that asks for protobuf and grpcio as new as themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROTO = "p4reduce/control/jobs.proto"
STUBS = ("jobs_pb2.py", "jobs_pb2.pyi", "jobs_pb2_grpc.py")
ROOT = Path(__file__).parents[2]


def generate(directory: Path = ROOT) -> list[Path]:
    """Writes the stubs under `directory`/p4reduce/control and returns their paths."""
    from grpc_tools import protoc  # type: ignore[import-not-found,import-untyped,unused-ignore]

    # The proto is named by its path from ROOT, so that the stubs import each other as p4reduce.control.*.
    options = [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
    status = protoc.main(["protoc", f"--proto_path={ROOT}", *options, PROTO])
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status} on {ROOT / PROTO}")
    return [directory / "p4reduce" / "control" / name for name in STUBS]


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT):
        print(path)
