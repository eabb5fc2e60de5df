# SPDX-License-Identifier: Apache-2.0
"""The console script. A host that only trains does not have the packages that the command line needs."""

from __future__ import annotations

import os
import signal
import sys

NEEDED = ("typer", "rich", "click", "shellingham")


def main() -> None:
    """Run the command line `p4reduce`, or say what to install for it."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # commands report failures; gRPC need not log them as well
    if sys.argv[1:2] == ["controller"]:  # its imports take a second: SIGHUP stays blocked until its handler is set
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from p4reduce.commands.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        sys.exit(
            f"p4reduce: the command line needs the package {error.name!r}, and training does not: "
            "pip install 'p4reduce[cli]'"
        )
    run()
