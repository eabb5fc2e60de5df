# SPDX-License-Identifier: Apache-2.0
"""The C code's switch."""

from __future__ import annotations

import threading
from typing import Any

from p4reduce_targets.native.library import library


class Handle:
    """A switch of the C code: the first argument of every function. Close it only when nothing uses it any more."""

    def __init__(self, thread_count: int) -> None:
        self._library = library()
        self.outputs = threading.Lock()  # of those that `native_process` leaves behind
        self._switch = self._library.native_open(thread_count)
        if not self._switch:
            raise MemoryError("no memory, or no file descriptor, for the native switch")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call native_FUNCTION on the switch."""
        if not self._switch:
            raise ValueError("the native switch is closed")
        return getattr(self._library, f"native_{function}")(self._switch, *arguments)

    def free(self, plane: int) -> None:
        """Frees a plane, also after `close`."""
        self._library.native_plane_free(self._switch, plane)

    def close(self) -> None:
        """End it; may be called again."""
        if self._switch:
            self.call("close")
            self._switch = None
