# SPDX-License-Identifier: Apache-2.0
"""A handle of the switch in the C library."""

from __future__ import annotations

import threading
from typing import Any

from p4reduce_targets.native.library import library


class Handle:
    """A switch of the C library, the first argument of all its functions. Close it when nothing uses it any more."""

    def __init__(self, thread_count: int) -> None:
        self._library = library()
        self.outputs = threading.Lock()  # held from a call of `native_process` until its outputs are copied
        self._switch = self._library.native_open(thread_count)
        if not self._switch:
            raise MemoryError("no memory, or no file descriptor, for the native switch")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call native_FUNCTION on the switch."""
        if not self._switch:
            raise ValueError("the native switch is closed")
        return getattr(self._library, f"native_{function}")(self._switch, *arguments)

    @property
    def pointer(self) -> int:
        """The C code's pointer to its `struct native_switch`."""
        return int(self._switch)

    def free(self, plane: int) -> None:
        """Free a plane. This works also after `close`."""
        self._library.native_plane_free(self._switch, plane)

    def close(self) -> None:
        """Stop the switch and free it. Further calls do nothing."""
        if self._switch:
            self.call("close")
            self._switch = None
