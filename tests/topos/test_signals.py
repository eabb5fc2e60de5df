# SPDX-License-Identifier: Apache-2.0
"""A signal ends `p4reduce topo` in every phase: with its status, in words, and nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mininet", reason="needs Mininet")

from p4reduce_topos.emulation.signals import ENDING, blocked, install, postponed
from tests.support.interruption import MARK, marked
from tests.support.waiting import wait_until

DEADLINE_S = 120.0
FOREVER = "import os, time\nos.fork()\nwhile True:\n    time.sleep(100)\n"


@pytest.fixture
def handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_waits_for_the_end_of_a_clean_up(number: signal.Signals, raised: type[BaseException]) -> None:
    install()
    done = []
    with pytest.raises(raised) as ended, postponed():  # noqa: PT012 - the rest of the block is what must run
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        done.append("cleaned up")
    assert done == ["cleaned up"]
    if isinstance(ended.value, SystemExit):
        assert ended.value.code == 128 + number
    with pytest.raises(raised):
        signal.raise_signal(number)


@pytest.mark.usefixtures("handlers")
def test_what_is_ignored_stays_ignored() -> None:
    """A command under nohup ignores SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    install()
    with postponed():
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_comes_while_a_program_starts_waits_for_its_handlers() -> None:
    program = (
        "import signal\nfrom p4reduce_topos.emulation import signals\n"
        "assert signal.sigpending() == {signal.SIGTERM}\nsignals.install()\n"
    )
    with blocked():
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (143, b"")


PHASES = {
    "start": ((), "p4reduce switch", ""),
    "prompt": (("--cli",), "", ""),
    "command": (("--cli",), "sleep 1000", "h1 sleep 1000\n"),
    "stubborn": (("--cli",), "sleep 1001", "h1 nohup sh -c 'trap \"\" HUP INT TERM; sleep 1001'\n"),
    "background": (("--cli",), "sleep 1002", "h2 nohup setsid sleep 1002 &\n"),
    "iperf": (("--cli",), "iperf3 --client", "iperf h1 h2\n"),
    "measurement": (("--numel", "4096", "--repeat", "100000"), "allreduce.rank", ""),
    "script": (("--exec", "{script}"), r"python\S* \S+forever\.py", ""),
    "fault": (("--fault", "worker-paused"), "faults.rank", ""),
}
CASES = [
    ("start", signal.SIGTERM, False), ("start", signal.SIGINT, True), ("prompt", signal.SIGTERM, False),
    ("command", signal.SIGTERM, False), ("command", signal.SIGHUP, True), ("stubborn", signal.SIGHUP, False),
    ("background", signal.SIGTERM, False), ("iperf", signal.SIGTERM, False), ("measurement", signal.SIGINT, True),
    ("script", signal.SIGINT, False), ("fault", signal.SIGHUP, False),
]  # fmt: skip


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.usefixtures("mininet")
@pytest.mark.parametrize(
    ("phase", "number", "impatient"),
    [pytest.param(*case, marks=[] if case == CASES[3] else pytest.mark.slow) for case in CASES],
)
def test_nothing_is_left(tmp_path: Path, phase: str, number: signal.Signals, impatient: bool) -> None:
    """impatient: the signal comes again and again, also while the command cleans up."""
    arguments, running, asked = PHASES[phase]
    script, temporary, mark = tmp_path / "forever.py", tmp_path / "temporary", uuid.uuid4().hex
    script.write_text(FOREVER)
    temporary.mkdir()
    command = [sys.executable, "-m", "p4reduce", "topo", "run", "star", "--workers", "2", *arguments]
    with (tmp_path / "said").open("w+b") as said:
        process = subprocess.Popen(
            [part.format(script=script) for part in command],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), MARK: mark, "HOME": str(tmp_path)},
        )  # fmt: skip

        def reached() -> bool:
            if not running:
                return b"Ctrl-D" in text(said.name)
            return any(re.search(running, line) for line in marked(mark).values())

        try:
            assert process.stdin is not None
            process.stdin.write(asked.encode())
            process.stdin.flush()
            wait_until(lambda: reached() or process.poll() is not None, lambda: text(said.name), DEADLINE_S)
            assert process.poll() is None, text(said.name)
            process.send_signal(number)

            def ended() -> bool:
                if impatient:
                    process.send_signal(number)
                return process.poll() is not None

            wait_until(ended, lambda: marked(mark), DEADLINE_S)
            # Once it has cleaned up, Python has given the signal back to the kernel.
            assert process.returncode in (128 + number, *([-number] if impatient else [])), text(said.name)
            assert b"Traceback" not in text(said.name)
            assert list(temporary.iterdir()) == []
            wait_until(lambda: not marked(mark), lambda: marked(mark), DEADLINE_S)
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()


def text(file: str) -> bytes:
    return Path(file).read_bytes()
