# SPDX-License-Identifier: Apache-2.0
"""How programs under torchrun, which share one pipe, tell what they have done."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from typing import Any

# torchrun ends a rank when another has failed: then it says where it was.
faulthandler.register(signal.SIGTERM, chain=True)


def say(event: dict[str, Any]) -> None:
    """Prints a JSON object on a line of its own, with a single write."""
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")
