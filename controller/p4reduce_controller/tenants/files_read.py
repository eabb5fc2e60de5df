# SPDX-License-Identifier: Apache-2.0
"""Files that were read together, so that it is seen when one of them changes."""

from __future__ import annotations

from pathlib import Path


class FilesRead:
    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, ...]] = {}

    def read(self, path: Path) -> bytes:
        """Raises OSError."""
        self._seen[path] = _stamp(path)  # before it is read: what is written meanwhile is a change
        return path.read_bytes()

    @property
    def have_changed(self) -> bool:
        return any(_stamp(path) != seen for path, seen in self._seen.items())


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
