# SPDX-License-Identifier: Apache-2.0
"""A function call in a forked child process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def said_by_child(work: Callable[[], object]) -> str:
    """Call `work` in a forked child, and return its result as text. An exception is returned as "TYPE: MESSAGE"."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # kills the child if it hangs
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said
