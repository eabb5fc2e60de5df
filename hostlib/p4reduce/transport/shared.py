# SPDX-License-Identifier: Apache-2.0
"""The transports of a rank's engine threads, which share its slots."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.transport.base import Transport


class SharedTransport:
    """Carries nothing by itself: each thread uses its own of `parts`."""

    def __init__(self, parts: Sequence[Transport]) -> None:
        """`parts`: one for each thread, owned from now on."""
        self.parts = tuple(parts)

    @property
    def local_address(self) -> tuple[str, int]:
        return self.parts[0].local_address

    def close(self) -> None:
        for part in self.parts:
            part.close()
