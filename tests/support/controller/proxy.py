# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that a test can interrupt, in front of a server at a TCP address or a Unix socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class Proxy:
    """A proxy that forwards connections from `address` to `target`, a target in gRPC's notation."""

    def __init__(
        self, target: str, enter: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    ) -> None:
        """Start to forward.

        enter: enters the network namespace of the target. `address` is in the caller's.
        """
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        with enter():  # the thread stays in the namespace in which it was started
            threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """End all connections, and refuse new ones until `mend`."""
        with self._lock:
            self._open.clear()
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def hold(self) -> None:
        """Accept connections, but forward nothing until `mend`."""
        self._passes.clear()

    def mend(self) -> None:
        self._passes.set()
        self._open.set()

    def close(self) -> None:
        # `close` alone does not wake the thread in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = self._connect()
            except OSError:
                near.close()
                continue
            with self._lock:
                if not self._open.is_set():
                    near.close()
                    far.close()
                    continue
                self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _connect(self) -> socket.socket:
        if self._target.startswith("unix:"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target.removeprefix("unix:"))
            return far
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)))

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
