# SPDX-License-Identifier: Apache-2.0
"""The checks of programs under torchrun, and how they tell of them, as they share one pipe."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

# torchrun ends a rank when another has failed: then it says where it was.
faulthandler.register(signal.SIGTERM, chain=True)


def say(event: dict[str, Any]) -> None:
    """Print a JSON object on a line of its own, with a single write."""
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


class Checks(list[Callable[..., None]]):
    """A list of functions, in the order in which a program has them."""

    def add(self, function: Callable[..., None]) -> Callable[..., None]:
        """Add a function, and return it, so that this is a decorator."""
        self.append(function)
        return function

    def run(self, *arguments: Any, after: Callable[[str], object] = lambda _: None) -> None:
        """Call each function, and print an object for each that passed."""
        for function in self:
            function(*arguments)
            say({"rank": dist.get_rank(), "passed": function.__name__})
            after(function.__name__)
