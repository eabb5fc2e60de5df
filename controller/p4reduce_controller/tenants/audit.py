# SPDX-License-Identifier: Apache-2.0
"""The audit log: who did what, when, and with what outcome. It is a file of JSON lines without secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from datetime import datetime, timezone
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from p4reduce_controller.base.limits import Bucket
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.tenants.access import Caller

REFUSALS_PER_S = 10.0  # refusals per second of one tenant, so that nobody can fill the disk
LONGEST_TEXT = 500


class Audit:
    """An audit log.

    Without a file, it writes nothing. If the file is moved away, as by logrotate, it begins a new one.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open the file. Raise SettingsError if that fails."""
        self._buckets: dict[str, Bucket] = {}
        self._left_out = 0
        self._file: _File | None = None
        if path is not None:
            try:
                self._file = _File(path)
            except OSError as error:
                raise SettingsError(f"--audit-log {path}: {error.strerror}") from None

    def note(self, caller: Caller, what: str, outcome: str, *, refused: bool = False, **more: Any) -> None:
        """Write an entry. `outcome`: "ok", or why the request failed.

        peer: as gRPC names it, in which the brackets of an IPv6 address are escaped.
        """
        if self._file is None:
            return
        if refused and self._is_too_much(caller.tenant):
            self._left_out += 1
            return
        said = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "who": caller.name,
            "role": caller.role.name.lower(),
            "tenant": caller.tenant,
            "what": what,
            **{key: _short(unquote(value) if key == "peer" else value) for key, value in more.items()},
            "outcome": _short(outcome),
        }
        if self._left_out:
            said["left_out_before"] = self._left_out
            self._left_out = 0
        self._file.write(json.dumps(said))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _is_too_much(self, tenant: str) -> bool:
        now = time.monotonic()
        return self._buckets.setdefault(tenant, Bucket(REFUSALS_PER_S, now)).take(now) > 0


class _File(WatchedFileHandler):
    """A log file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return open(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

    def write(self, line: str) -> None:
        self.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, None, None))


def _short(value: Any) -> Any:
    return f"{value[:LONGEST_TEXT]}..." if isinstance(value, str) and len(value) > LONGEST_TEXT else value
