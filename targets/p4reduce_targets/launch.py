# SPDX-License-Identifier: Apache-2.0
"""Become another program, which the kernel kills when our parent ends: `python launch.py PARENT COMMAND ...`.

A program of its own, because subprocess's `preexec_fn` would fork a process that has gRPC threads, which may abort.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """`command`, changed so that it does not outlive this process, or rather the thread that starts it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Bind, then become the command."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
