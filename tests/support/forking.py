# SPDX-License-Identifier: Apache-2.0
"""Work in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def said_by_child(work: Callable[[], object]) -> str:
    """Return the result of the work in a child of this process, as text; or its error, after the error's type."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends the process
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
