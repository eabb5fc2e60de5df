# SPDX-License-Identifier: Apache-2.0
"""What is remembered of call sites, of which there may be any number: those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Latest(Generic[K, V]):
    """The values of the `most` keys that were asked for last. A key's value is made when it is not there."""

    def __init__(self, make: Callable[[], V], most: int) -> None:
        self._make, self._most = make, most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        if key not in self._values:
            self._values[key] = self._make()
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return self._values[key]

    def items(self) -> list[tuple[K, V]]:
        """In the order in which they were asked for last."""
        return list(self._values.items())
