# SPDX-License-Identifier: Apache-2.0
"""Entities as they are read back. A data plane may refuse a write after it was stored here, and it is then undone."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TypeVar

Undo = Callable[[], None]

_K = TypeVar("_K")
_V = TypeVar("_V")


def store(entities: MutableMapping[_K, _V], key: _K, value: _V | None) -> Undo:
    """Set an entity, or remove it (None), and return a function that undoes this, unless it is written again before."""
    before = entities.get(key)
    _set(entities, key, value)
    return lambda: _set(entities, key, before)


def stored_elsewhere() -> None:
    """Undo a write that the data plane alone stores, which is nothing to do here."""


def _set(entities: MutableMapping[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        entities.pop(key, None)
    else:
        entities[key] = value
