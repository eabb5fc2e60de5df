# SPDX-License-Identifier: Apache-2.0
"""The users file: the users, the quotas of tenants, and the reservations."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.toml import read_toml
from p4reduce_controller.tenants.access import LONGEST_NAME, Caller, Role, Unauthenticated
from p4reduce_controller.tenants.jwt_tokens import JwtError, JwtTokens, jwt_tokens
from p4reduce_controller.tenants.quotas import Policy, Quota, Reservation

log = logging.getLogger(__name__)

_PRIORITIES = 1000


@dataclass(frozen=True)
class Book:
    """The contents of the users file. `callers`: by the digest of their token."""

    callers: Mapping[str, Caller] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    jwt: JwtTokens | None = None

    def caller(self, token: str) -> Caller:
        """Return the caller with this token. Raises Unauthenticated."""
        found = self.callers.get(digest(token))
        if found is not None:
            return found
        if self.jwt is None or token.count(".") != 2:
            raise Unauthenticated("the token is wrong")
        return self.jwt.caller(token)


class FilesRead:
    """Files that were read together. It can tell when one of them has changed."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, ...]] = {}

    def read(self, path: Path) -> bytes:
        """Return the contents of a file. Raise OSError if it cannot be read."""
        self._seen[path] = _stamp(path)  # before reading, so that a write meanwhile counts as a change
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


class UsersFile:
    """The users file, read again when it changes. `book`: the latest contents without an error."""

    def __init__(self, path: Path, operators_token: str | None = None) -> None:
        """Read the file. Raises SettingsError. `operators_token`: of one more operator, who is not in the file."""
        self.path = path
        self._operators_token = operators_token
        self._files = FilesRead()
        self.book = read_users(path, self._files)

    def refresh(self) -> bool:
        """Read the file again if it or the provider's keys have changed. Return whether `book` is new.

        An error in the file is logged, and changes nothing.
        """
        if not self._files.have_changed:
            return False
        self._files = FilesRead()
        try:
            self.book = read_users(self.path, self._files)
        except SettingsError as error:
            log.error("the version read before stays in force: %s", error)
            return False
        return True

    def caller(self, token: str) -> Caller:
        """Return the caller with this token. Raise Unauthenticated if there is none."""
        one = self._operators_token
        if one is not None and hmac.compare_digest(digest(one), digest(token)):
            return Caller("operator", Role.OPERATOR, "operator")
        return self.book.caller(token)


def digest(token: str) -> str:
    """Return the digest of a token, which is kept in its place.

    Tokens are long random texts, so a fast hash suffices.
    """
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def read_users(path: Path, files: FilesRead | None = None) -> Book:
    """Return the contents of the users file. Raises SettingsError, which says what in the file is not accepted.

    `files`: records what was read, even after an error.
    """
    files = files or FilesRead()
    root = read_toml("--users", path, files.read)
    try:
        return _book(_Table("the file", root), path.parent, files.read)
    except ValueError as error:
        raise SettingsError(f"--users {path}: {error}") from None


def _book(root: _Table, folder: Path, read: Callable[[Path], bytes]) -> Book:
    root.only("users", "tenants", "quotas", "reservations", "jwt")
    callers: dict[str, Caller] = {}
    for name, user in root.tables("users"):
        token, caller = _user(name, user)
        if token in callers:
            raise ValueError(
                f"users.{name}: it has the same token as {callers[token].name}; each user needs a token of its own"
            )
        callers[token] = caller
    default = _quota(root.table("quotas"), Quota())
    reservations = tuple(_reservation(one) for one in root.list_of_tables("reservations"))
    quotas = {_name(name): _quota(table, default) for name, table in root.tables("tenants")}
    try:
        jwt = jwt_tokens(root.table("jwt").values, folder, read) if "jwt" in root.values else None
    except JwtError as error:
        raise ValueError(f"jwt: {error}") from None
    if not callers and jwt is None:
        raise ValueError("it has neither [users.NAME] nor [jwt], so no one could use the controller")
    return Book(callers, Policy(default, quotas, reservations), jwt)


def _user(name: str, user: _Table) -> tuple[str, Caller]:
    """Return the digest of the token, and the caller."""
    user.only("token_sha256", "role", "tenant")
    kept = user.values.get("token_sha256")
    if not isinstance(kept, str) or not re.fullmatch("[0-9a-f]{64}", kept):
        raise ValueError(
            f"{user.name}: token_sha256 is not 64 hexadecimal digits; `p4reduce token {name}` makes a token and that"
        )
    try:
        role = Role.named(user.values.get("role", "user"))
    except ValueError as error:
        raise ValueError(f"{user.name}: {error}") from None
    tenant = user.values.get("tenant", "" if role is Role.VIEWER else name)
    return kept, Caller(_name(name), role, tenant if tenant == "" and role is Role.VIEWER else _name(tenant))


def _quota(table: _Table, default: Quota) -> Quota:
    table.only(*(one.name for one in fields(Quota)))
    return Quota(
        slots=table.number("slots", default.slots, 1),
        jobs=table.number("jobs", default.jobs, 1),
        slot_hours=table.number("slot_hours", default.slot_hours, 0, whole=False),
        priority=int(table.number("priority", default.priority, -_PRIORITIES, _PRIORITIES)),
        queued=table.number("queued", default.queued, 0),
        ranks=table.number("ranks", default.ranks, 1),
        joins_per_s=table.number("joins_per_s", default.joins_per_s, 0.01, whole=False),
        calls_per_s=table.number("calls_per_s", default.calls_per_s, 0.1, whole=False),
        messages_per_s=table.number("messages_per_s", default.messages_per_s, 1, whole=False),
    )


def _reservation(table: _Table) -> Reservation:
    table.only("tenant", "slots", "from", "until")
    if table.values.keys() < {"tenant", "slots", "until"}:
        raise ValueError(f"{table.name}: tenant, slots and until are needed")
    start = table.time("from") if "from" in table.values else -math.inf
    end = table.time("until")
    if end <= start:
        raise ValueError(f"{table.name}: until is not after from")
    return Reservation(_name(table.values["tenant"]), int(table.number("slots", 0, 1)), start, end)


def _name(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_NAME or not value.isprintable():
        raise ValueError(f"the name {value!r}: must have 1 to {LONGEST_NAME} printable characters")
    return value


class _Table:
    """A table of the file, called `name` in errors."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{name} = {values!r}: must be a table")
        self.name = name
        self.values: dict[str, Any] = values

    def only(self, *known: str) -> None:
        if strange := sorted(self.values.keys() - set(known)):
            raise ValueError(f"{self.name}: unknown {', '.join(strange)}; known are {', '.join(known)}")

    def table(self, key: str) -> _Table:
        return _Table(key, self.values.get(key, {}))

    def tables(self, key: str) -> list[tuple[str, _Table]]:
        return [(name, _Table(f"{key}.{name}", one)) for name, one in self.table(key).values.items()]

    def list_of_tables(self, key: str) -> list[_Table]:
        values = self.values.get(key, [])
        if not isinstance(values, list):
            raise ValueError(f"{key} = {values!r}: must be an array of tables, [[{key}]]")
        return [_Table(f"{key}[{number}]", one) for number, one in enumerate(values)]

    def number(self, key: str, default: float, low: float, high: float = 2.0**31, *, whole: bool = True) -> float:
        """Return the number, or `default` if the file has none; infinite means unlimited."""
        value = self.values.get(key, default)
        if key not in self.values:
            return default
        kinds = (int,) if whole else (int, float)
        if type(value) not in kinds or not low <= value <= high:
            raise ValueError(f"{self.name}: {key} = {value!r}: must be from {low:g} to {high:g}")
        return float(value) if not whole else int(value)

    def time(self, key: str) -> float:
        """Return a time as Unix time."""
        value = self.values[key]
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise ValueError(f"{self.name}: {key} = {value}: must be a time with its zone, as 2030-01-31T12:00:00Z")
        return value.timestamp()
