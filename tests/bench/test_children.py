# SPDX-License-Identifier: Apache-2.0
"""Children are heard, stopped, and never left behind."""

import os
import signal
import subprocess
import sys

import pytest

from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from tests.support.waiting import has_ended, wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_first_line_is_read_and_the_child_stopped() -> None:
    child = Child("sleeper", python("import time; print('{\"ready\": true}', flush=True); time.sleep(60)"))
    assert child.first(10) == {"ready": True}
    child.stop()
    wait_until(lambda: has_ended(child.process.pid), "the child to end")


def test_a_child_that_ends_early_tells_its_last_words() -> None:
    child = Child("broken", python("import sys; sys.exit('no such switch')"))
    with pytest.raises(ChildFailed, match="broken ended with exit code 1\nno such switch"):
        child.first(10)
    child.stop()


def test_a_silent_child_has_a_deadline() -> None:
    child = Child("silent", python("import time; time.sleep(60)"))
    with pytest.raises(ChildFailed, match=r"silent was not ready within 0\.2 s"):
        child.first(0.2)
    child.stop()


def test_a_child_that_ignores_the_request_is_killed() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('{}', flush=True); time.sleep(60)"
    child = Child("stubborn", python(code))
    child.first(10)
    child.stop(grace=0.2)
    assert child.process.returncode == -signal.SIGKILL


def test_family_gives_all_events_and_ends_with_its_members() -> None:
    with ChildProcesses() as processes:
        children = [Child(f"child {i}", python(f"print('{{\"i\": {i}}}')")) for i in range(3)]
        processes.children.extend(children)
        events = list(processes.events(children, timeout=20))
    assert sorted(event["i"] for _, event in events) == [0, 1, 2]


def test_family_notices_a_server_that_dies() -> None:
    with ChildProcesses() as processes:
        server = Child("server", python("import sys; sys.exit('out of memory')"))
        worker = Child("worker", python("import time; time.sleep(60)"))
        processes.children.extend([server, worker])
        with pytest.raises(ChildFailed, match="server ended with exit code 1\nout of memory"):
            list(processes.events([worker], timeout=20))
    wait_until(lambda: has_ended(worker.process.pid), "the child to end")


def test_children_die_with_a_killed_parent() -> None:
    code = (
        "import sys, time\n"
        "from p4reduce_bench.processes.children import Child\n"
        "child = Child('c', [sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: has_ended(pid), "the child to end")
