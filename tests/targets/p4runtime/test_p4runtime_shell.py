# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell, the P4 project's own operator's shell, as a foreign client.

It needs an old protobuf, so it runs in an environment of its own: `make test` makes it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.p4runtime_shell import shell_python

HERE = Path(__file__).parent


def test_a_session(address: str) -> None:
    python = shell_python()
    arguments = [address, str(HERE / "conformance.p4info.txtpb"), str(HERE / "conformance.json")]
    done = subprocess.run(
        [python, str(HERE / "shell_session.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout + done.stderr
