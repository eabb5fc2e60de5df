# SPDX-License-Identifier: Apache-2.0
"""The console script. A host that only trains has none of what the command line is made with."""

from __future__ import annotations

import os
import signal
import sys

NEEDED = ("typer", "rich", "click", "shellingham")


def main() -> None:
    """The command line `p4reduce`, or what to install for it."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # what fails is told in words, and not by gRPC beside them
    if sys.argv[1:2] == ["controller"]:  # what it is made of takes a second to import: SIGHUP waits for its handler
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
