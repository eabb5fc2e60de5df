# SPDX-License-Identifier: Apache-2.0
"""A `p4reduce switch` process, whose options may set a certificate for its P4Runtime server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def switch(*options: str, target: str = "sim") -> Iterator[str]:
    """Run a switch during the block, and yield the address of its P4Runtime server."""
    command = [sys.executable, "-m", "p4reduce", "switch", "--target", target, "--grpc", "127.0.0.1:0", "--json"]
    command += ["--port", "1=udp:127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["grpc"]
        finally:
            process.kill()
