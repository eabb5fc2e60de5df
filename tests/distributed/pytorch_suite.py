# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed (`DistributedTest`, of the installed wheel) on a backend.

Arguments: the backend, what is taken for it where tests and PyTorch check its name, the number of ranks, and names of
tests, by default all. PyTorch is imported once; each test has a process for each rank, forked from this one, since
PyTorch's own start afresh for each. Prints a JSON object a test: its name, its result ("passed", "skipped" or "failed")
and what a rank that failed said.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 60.0  # of a test
PASSED, FAILED, SKIPPED = 0, 1, 2


def run(backend: str, case: Any, name: str, rank: int, folder: Path) -> int:
    """Run one rank of a test, and return its exit code."""
    import torch

    torch.set_num_threads(1)
    test = case(name)
    test.rank = rank
    test.file_name = str(folder / "store")
    try:
        import torch.distributed as dist
        from torch.testing._internal.distributed import distributed_test as pytorch

        seconds = pytorch.CUSTOM_PG_TIMEOUT.get(name, pytorch.default_pg_timeout)
        dist.init_process_group(
            backend,
            init_method=test.init_method,
            world_size=int(test.world_size),
            rank=rank,
            timeout=pytorch.timedelta(seconds=seconds),
        )
        test._barrier()
        getattr(test, name)()
        test._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except SystemExit as end:
        return SKIPPED if end.code else PASSED
    except BaseException as error:
        if type(error).__name__ == "SkipTest":
            return SKIPPED
        (folder / f"said-{rank}").write_text(traceback.format_exc())
        return FAILED
    return PASSED


def fork(backend: str, case: Any, name: str, rank: int, folder: Path) -> int:
    """Start the process of one rank of a test, and return its id."""
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        os.setpgid(0, 0)
        with (folder / f"output-{rank}").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = run(backend, case, name, rank, folder)
    finally:
        os._exit(code)


def test(backend: str, case: Any, name: str, size: int) -> dict[str, Any]:
    """Run one test on all ranks."""
    from torch.testing._internal.distributed import distributed_test as pytorch

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "barrier").mkdir()
        (folder / "test_dir").mkdir()
        os.environ["TEMP_DIR"] = path
        pytorch.Barrier.init()
        left = {fork(backend, case, name, rank, folder): rank for rank in range(size)}
        codes: dict[int, int] = {}

        def wait(seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
            deadline = time.monotonic() + seconds
            while left and time.monotonic() < deadline and not enough():
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended in left:
                    codes[left.pop(ended)] = os.waitstatus_to_exitcode(status)
                else:
                    time.sleep(0.01)

        wait(LIMIT_S, lambda: FAILED in codes.values())
        wait(2)  # for the others to say what they saw
        for child, rank in left.items():
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            codes[rank] = -signal.SIGKILL
        said = [path.read_text()[-1500:] for path in sorted(folder.glob("said-*"))]
    kinds = set(codes.values())
    result = "passed" if kinds == {PASSED} else "skipped" if kinds <= {PASSED, SKIPPED} else "failed"
    return {"test": name, "result": result, "seconds": round(time.monotonic() - started, 2), "codes": codes,
            "said": said}  # fmt: skip


def main() -> None:
    backend, taken_for, size, *names = sys.argv[1:]
    os.environ.update(BACKEND=taken_for, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", TEMP_DIR=tempfile.gettempdir())
    if taken_for != backend:
        import torch.distributed.distributed_c10d as c10d

        get_backend = c10d.get_backend
        c10d.get_backend = lambda group=None: {backend: taken_for}.get(name := get_backend(group), name)
    from torch.testing._internal.distributed import distributed_test as pytorch

    from .saying import say

    case = type("Case", (pytorch.TestDistBackend, pytorch.DistributedTest._DistTestBase), {})
    for name in names or [name for name in dir(case) if name.startswith("test_")]:
        say(test(backend, case, name, int(size)))


if __name__ == "__main__":
    main()
