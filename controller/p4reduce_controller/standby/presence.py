# SPDX-License-Identifier: Apache-2.0
"""Whether the controller that serves still listens: its host says so at once where its process has died."""

from __future__ import annotations

import asyncio
import contextlib

from p4reduce_controller.base.clock import in_time

_REFUSALS = 3  # in a row, for a port that changes hands within a process
_PAUSE = 0.1
_PATIENCE = 2.0


async def until_gone(address: str) -> None:
    """Returns when nobody listens at HOST:PORT any more, where somebody did. No answer at all is no sign of that."""
    host, _, port = address.rpartition(":")
    met = False
    refusals = 0
    while refusals < _REFUSALS:
        try:
            reader, writer = await in_time(asyncio.open_connection(host.strip("[]"), int(port)), _PATIENCE)
        except ConnectionRefusedError:
            refusals += met
        except (OSError, asyncio.TimeoutError):
            refusals = 0
        else:
            met, refusals = True, 0
            with contextlib.suppress(OSError):
                while await reader.read(4096):
                    pass
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(_PAUSE)
