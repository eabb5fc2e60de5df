# SPDX-License-Identifier: Apache-2.0
"""A disk in virtual time, under the state file of a controller: what is not synced is lost when the power fails.

The files are real ones in a folder of the world. The disk remembers what a power failure would leave of them: the
contents of a file at its last sync, and the name that a folder had for it at the folder's last sync. A failure keeps
any beginning of what was not synced.
"""

from __future__ import annotations

import errno
import os
import types
from pathlib import Path
from typing import Any

from p4reduce_controller.store import state
from tests.simulation import threads

_real = types.SimpleNamespace(open=os.open, fsync=os.fsync, replace=os.replace)


class Disk:
    """The disk of one host.

    `slow`: seconds that a sync takes. `broken`: whether writes fail.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slow = 0.0
        self.broken = False
        self.locked: Any = None  # the process that holds the lock
        self._durable: dict[str, bytes | None] = {}  # what each name has after a power failure
        self._synced: dict[int, bytes] = {}  # contents by inode
        self._renamed: list[tuple[str, int]] = []  # renames that are not synced: the name, and the inode it has now

    def sync(self, descriptor: int) -> None:
        """Sync a file or the folder."""
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        if self.slow:
            process = threads.here()
            process.stalled_until = max(process.stalled_until, process.world.now) + self.slow
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self.folder:
            for name, inode in self._renamed:
                self._durable[name] = self._synced.get(inode, b"")
            self._renamed = []
        else:
            self._synced[path.stat().st_ino] = path.read_bytes()

    def replace(self, new: str, path: Path) -> None:
        if self.broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._renamed.append((str(path), os.stat(new).st_ino))
        _real.replace(new, path)

    def fail_power(self, random: Any) -> None:
        """Lose what was not synced, or some of it."""
        for name, inode in self._renamed[: random.randint(0, len(self._renamed))]:
            synced = self._synced.get(inode)
            # The name may be on the disk before the contents are.
            self._durable[name] = synced if synced is not None else Path(name).read_bytes()[: random.randint(0, 99)]
        self._renamed = []
        for path in self.folder.iterdir():
            if not path.name.endswith(".lock") and str(path) not in self._durable:
                path.unlink()
        for name, contents in self._durable.items():
            if contents is not None:
                Path(name).write_bytes(contents)
                Path(name).chmod(0o600)


def _disk() -> Disk:
    found: Disk = threads.here().world.net.disks[threads.here().host]
    return found


def _fsync(descriptor: int) -> None:
    _disk().sync(descriptor)


def _replace(new: str, path: Path) -> None:
    _disk().replace(new, path)


def _flock(_: Any, __: int) -> None:
    disk, process = _disk(), threads.here()
    if disk.locked is not None and disk.locked.alive and disk.locked is not process:
        raise BlockingIOError(errno.EAGAIN, "locked")
    disk.locked = process


def replaced() -> list[tuple[Any, str, Any]]:
    """Return what is replaced in the module of the state file."""
    functions = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
    machine = types.SimpleNamespace(**{**functions, "fsync": _fsync, "replace": _replace})
    locks = types.SimpleNamespace(flock=_flock, LOCK_EX=2, LOCK_NB=4)
    return [(state, "os", machine), (state, "fcntl", locks)]
