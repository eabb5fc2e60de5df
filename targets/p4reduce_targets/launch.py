# SPDX-License-Identifier: Apache-2.0
"""A wrapper that runs a command which the kernel kills when its parent ends: `python launch.py PARENT COMMAND ...`.

It is a program of its own because subprocess's `preexec_fn` runs Python code in a fork of a process that has gRPC
threads, and such a fork may abort.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """Return `command` with a wrapper, so that the kernel kills it when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Set the parent-death signal, then replace this process with the command."""
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
