# SPDX-License-Identifier: Apache-2.0
"""Runs an example that prints its steps, and has one rank killed in the midst of one at each of its starts.

Arguments: for each start the step and the rank, as "3:1,7:0"; later starts live. With "3:1:saved" it is killed once it
has saved that step, before it does anything else. The example and its arguments.
"""

from __future__ import annotations

import builtins
import os
import random
import re
import runpy
import signal
import sys
import threading
import time
from typing import Any

MIDST_S = 0.01
OTHERS_SAVE_S = 3.0


def main() -> None:
    plan, start = sys.argv[1].split(","), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    sys.argv = sys.argv[2:]
    if start < len(plan):
        step, rank, *saved = plan[start].split(":")
        if rank == os.environ["RANK"]:
            (die_when_saved if saved else die_after)(int(step))
    sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as where Python itself runs it
    runpy.run_path(sys.argv[0], run_name="__main__")


def die_after(step: int) -> None:
    """Kill this process a little after it has printed this step or a later one, and before it prints the next one.

    So the training never ends before that, however fast its steps are, and the next start still has its own step to do.
    """
    plain_print, doom = print, threading.Event()

    def and_die(*words: object, **how: object) -> None:
        if doom.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        plain_print(*words, **how)  # type: ignore[call-overload]
        found = re.match(r"rank \d+ step (\d+)", str(words[0]))
        if found and int(found[1]) >= step and not doom.is_set():
            doom.set()
            threading.Timer(random.uniform(0, MIDST_S), os.kill, (os.getpid(), signal.SIGKILL)).start()

    builtins.print = and_die


def die_when_saved(step: int) -> None:
    """Kill this process after it has saved the step, once the other ranks have saved it, too.

    So no rank does the step again.
    """
    replace = os.replace

    def and_die(source: Any, target: Any) -> None:
        replace(source, target)
        if int(os.path.basename(target).partition("-")[0]) > step:
            time.sleep(OTHERS_SAVE_S)
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = and_die  # type: ignore[assignment]


if __name__ == "__main__":
    main()
