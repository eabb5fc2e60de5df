# SPDX-License-Identifier: Apache-2.0
"""A rank as a process: it makes the calls of its plan and compares each result with the reference, bit for bit.

It prints a JSON object on each line:

| line | when |
|---|---|
| {"joined": true} | the rank has joined its job |
| {"done": calls, "foreign": packets, "at": seconds} | after each call: calls so far, ignored packets, and Unix time |
| {"stats": {...}} | at the end |
| {"error": class, "message": text, ...} | at the end, if a call raised |
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from p4reduce import Communicator, P4ReduceError
from p4reduce.join import joining
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.tensors.spec import WireChoice, wire_for

FORGOTTEN: list[Communicator] = []
ORPHAN_S = 20.0


@dataclass(frozen=True)
class Call:
    """One allreduce.

    density: the share of non-zero blocks, or of non-zero elements if `scattered`.
    strided: whether the tensor is not contiguous.
    pause: seconds to wait before the call.
    timeout: seconds for this call alone. The communicator's own timeout also holds for joining.
    hold: seconds before the call in which this thread holds the GIL, so no other Python thread runs.
    fork: whether to fork before the call; the child outlives this process.
    wire: the format of floats on the wire.
    layout: "blocks" or "elements". The latter needs many elements.
    """

    shape: tuple[int, ...] = (5000,)
    dtype: str = "float32"
    op: str = "sum"
    density: float = 0.2
    seed: int = 0
    strided: bool = False
    pause: float = 0.0
    timeout: float | None = None
    hold: int = 0
    fork: bool = False
    wire: WireChoice = "auto"
    layout: Literal["blocks", "elements"] = "blocks"
    scattered: bool = False

    @property
    def operations(self) -> int:
        """The number of operations that the call takes."""
        return 1 if self.layout == "blocks" else 3


def make(call: Call, rank: int) -> npt.NDArray[Any]:
    """Return the values of a rank's tensor, as float32 or int32, in which sums are computed."""
    random = np.random.default_rng([call.seed, rank])
    size = int(np.prod(call.shape))
    if call.dtype == "int32":
        values = random.integers(-(2**31), 2**31, size).astype(np.int32)
    else:
        values = (random.standard_normal(size) * 10.0 ** random.integers(-3, 4, size)).astype(np.float32)
    together = 1 if call.scattered else 64
    values[np.repeat(random.random(-(-size // together)) >= call.density, together)[:size]] = 0
    return values.reshape(call.shape)


def as_user(call: Call, values: npt.NDArray[Any]) -> Any:
    """Return the tensor that a user passes, in the dtype and strides of the call."""
    if call.dtype == "bfloat16":
        import torch

        return torch.from_numpy(values).to(torch.bfloat16)
    array = values.astype(call.dtype)
    return array[:, ::-1].copy()[:, ::-1] if call.strided else array


def as_added(call: Call, tensor: Any) -> npt.NDArray[Any]:
    """Return the values of a user's tensor as float32 or int32, in which sums are computed."""
    if call.dtype == "bfloat16":
        return tensor.float().numpy()  # type: ignore[no-any-return]
    return tensor.astype(np.int32 if call.dtype == "int32" else np.float32)  # type: ignore[no-any-return]


def check(call: Call, communicator: Communicator) -> None:
    """Make the call. Raises AssertionError if a single bit differs."""
    time.sleep(call.pause)
    if call.fork and os.fork() == 0:
        os.setsid()  # a signal to our process group does not reach it
        time.sleep(ORPHAN_S)
        os._exit(0)
    if call.hold:
        ctypes.PyDLL(None).sleep(call.hold)
    tensors = [as_user(call, make(call, rank)) for rank in range(communicator.world_size)]
    inputs = [as_added(call, tensor).copy() for tensor in tensors]
    own, counter = tensors[communicator.rank], communicator.stats().operations + call.operations - 1
    how: dict[str, Any] = {"op": call.op, "wire": call.wire, "layout": call.layout, "timeout": call.timeout}
    result = as_added(call, communicator.allreduce(own, **how))
    expected = as_added(call, as_user(call, reference(call, inputs, communicator.block_size, counter)))
    different = int((result.view(np.int32) != expected.view(np.int32)).sum())
    assert different == 0, f"{different} of {result.size} elements of {call} differ from the reference"


def reference(call: Call, inputs: list[npt.NDArray[Any]], block_size: int, counter: int) -> npt.NDArray[Any]:
    """Return the exact result of the call, to the bit.

    counter: the number of the summing operation within the job.
    """
    there = np.logical_or.reduce([values != 0 for values in inputs])
    added = [values[there] for values in inputs] if call.layout == "elements" else inputs
    wire = wire_for(call.dtype, call.wire)
    name = call.dtype if wire == "int32" else f"{call.dtype}:{wire}"
    number = fingerprint(counter, name, call.op, added[0].size)
    sums = reference_allreduce(added, "avg" if call.op == "average" else "sum", block_size, wire, number)
    if call.layout == "blocks":
        return sums
    result = np.zeros_like(inputs[0])
    result[there] = sums
    return result


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    """Execute the plan in the first argument, a JSON object with these keys.

    options: the arguments of Communicator.
    calls: the calls to make.
    repeat: whether to repeat them until an error.
    forget: whether to leave the communicator open.
    barrier: whether to wait for all ranks after the calls.
    host: the number of the pretended host. Ranks with different numbers share no memory.
    limits: resource limits of the process, by their names in `resource`.
    """
    plan = json.loads(sys.argv[1])
    for name, value in plan["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if plan["host"] is not None:
        digest = f"{plan['host']} {joining.host_digest()}"[:64]
        joining.host_digest = lambda _: digest
    calls = [Call(**{**call, "shape": tuple(call["shape"])}) for call in plan["calls"]]
    done = 0
    try:
        communicator = Communicator(**plan["options"])
        if plan["forget"]:
            FORGOTTEN.append(communicator)
        with contextlib.nullcontext() if plan["forget"] else communicator:
            say(joined=True)
            while True:
                for call in calls:
                    check(call, communicator)
                    done += 1
                    say(done=done, foreign=communicator.stats().foreign, at=time.time())
                if not plan["repeat"]:
                    break
            if plan["barrier"]:
                communicator.barrier(timeout=60)
            say(stats=asdict(communicator.stats()))
    except P4ReduceError as error:
        details = {name: getattr(error, name) for name in ("rank", "awaited", "reason") if hasattr(error, name)}
        say(error=type(error).__name__, message=str(error), **details)


if __name__ == "__main__":
    main()
