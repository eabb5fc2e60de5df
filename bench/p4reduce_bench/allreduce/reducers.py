# SPDX-License-Identifier: Apache-2.0
"""The systems that are compared, seen alike from a rank."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.collectives.plan import Layout
from p4reduce.errors import P4ReduceError
from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import check, find, library, to_exception, type_code
from p4reduce.local.memory import shared_empty
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES
from p4reduce.tensors.spec import WireChoice, wire_for
from p4reduce_bench.allreduce.grid import ALWAYS, C_API, MODES, MPIS, OURS, PEERS, SWITCHED, Case
from p4reduce_bench.allreduce.inputs import BLOCK, Values, largest, tensors
from p4reduce_bench.allreduce.limit import AROUND_PAYLOAD
from p4reduce_bench.peers import compressed, gtopk, streaming
from p4reduce_bench.peers.algorithms import ALGORITHMS
from p4reduce_bench.peers.vectors import Exchange, Vector
from p4reduce_bench.peers.zen import owned

_ALIGNMENT = 64  # bytes, of torch's tensors on processors (c10/core/alignment.h)
_PREAMBLE_TO_GAP = 24  # what an interface does not count: preamble, check sequence, gap


class Reducer(Protocol):
    """A rank's membership in a system."""

    rank: int
    slots: int

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        """Return a copy of `own` in the form that the system reduces: not part of the measured time."""

    def reduce(self, work: Any) -> Any:
        """Return the sum over all ranks: what is measured."""

    def values(self, result: Any) -> npt.NDArray[Any]:
        """`result` as a flat array of float32 or int32."""

    def refill(self, work: Any, own: Values) -> None:
        """Make `work` what `prepare` gave, after it was reduced in place: for systems of `grid.IN_PLACE`."""

    def wrong(self, case: Case, values: npt.NDArray[Any], exact: Values) -> int:
        """How many elements of a result are not what they must be. `exact`: the sum."""

    def traffic(self) -> dict[str, int]:
        """So far: tx_bytes and rx_bytes on the wire, packets, retransmissions; what is not known is left out."""


@contextmanager
def open_reducer(options: argparse.Namespace) -> Iterator[Reducer]:
    """Join; torchrun's variables say as which rank."""
    if options.system in SWITCHED:
        from p4reduce import Communicator

        with Communicator(
            job="bench", slots=options.slots, interface=options.interface, timeout=options.timeout
        ) as communicator:
            yield _through_switch(options.system, communicator)
    elif options.system in MPIS:
        yield Mpi(options.counted)
    elif options.system == C_API:
        with CApi() as reducer:
            yield reducer
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
        try:
            yield _of_torch(options.system, options.counted)
        finally:
            dist.destroy_process_group()


def _through_switch(system: str, communicator: Any) -> Reducer:
    if system in MODES:
        return Mode(communicator, system)
    if system == OURS["coo"]:
        return P4ReduceSparse(communicator)
    if system == OURS["shared"]:
        return P4ReduceShared(communicator)
    return P4Reduce(communicator, ALWAYS.get(system, "auto"))


def _of_torch(system: str, counted: str | None) -> Reducer:
    if system in PEERS:
        return Compressed(counted, system) if system.startswith("gloo-") else Peer(counted, system)
    return {"gloo": Gloo, "gloo-sparse": GlooSparse, "server": Server, "deepspeed": DeepSpeed}[system](counted)


def _aligned(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory as torch gives it for its tensors: NumPy's begins 16 bytes after a page where it is large."""
    room = np.empty(count * dtype.itemsize + _ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % _ALIGNMENT :][: count * dtype.itemsize].view(dtype)


def _as_dtype(own: Values, dtype: str) -> Any:
    """Return a copy: a NumPy array, but a torch tensor of bfloat16, which NumPy does not have."""
    if dtype != "bfloat16":
        copy = _aligned(own.size, np.dtype(dtype))
        copy[:] = own
        return copy
    import torch

    return torch.from_numpy(own).to(torch.bfloat16)


def _as_coo(own: Values, dtype: str) -> Any:
    """Of single elements, or of rows of a block's length where these take less."""
    # By hand, as torch's to_sparse takes seconds for rows.
    nonzero = np.flatnonzero(own)
    if own.size % BLOCK == 0:
        rows = own.reshape(-1, BLOCK)
        full = np.flatnonzero(rows.any(axis=1))
        # An index is 8 bytes.
        if full.size * (8 + 4 * BLOCK) <= nonzero.size * (8 + 4):
            return _coo(full, rows[full], dtype, rows.shape)
    return _coo(nonzero, own[nonzero], dtype, own.shape)


def _coo(indices: npt.NDArray[Any], values: Values, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.sparse_coo_tensor(
        torch.from_numpy(indices)[None], torch.from_numpy(values).to(getattr(torch, dtype)), shape,
        is_coalesced=True, check_invariants=False,
    )  # fmt: skip


def _of_coo(result: Any) -> npt.NDArray[Any]:
    dense = np.zeros(tuple(result.shape), np.float32)
    summed = result.coalesce()
    dense[summed.indices()[0].numpy()] = summed.values().float().numpy()
    return dense.reshape(-1)


def _as_array(result: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = result if isinstance(result, np.ndarray) else result.float().numpy()
    return array


class _Exact:
    """Results have to be the sum itself."""

    def refill(self, work: Any, own: Values) -> None:
        if isinstance(work, np.ndarray):
            work[:] = own
        else:
            import torch

            work.copy_(torch.from_numpy(own))

    def wrong(self, case: Case, values: npt.NDArray[Any], exact: Values) -> int:  # noqa: ARG002
        return int(np.count_nonzero(values != exact))


class P4Reduce(_Exact):
    """Through the switch."""

    def __init__(self, communicator: Any, layout: Layout = "auto") -> None:
        self.rank = communicator.rank
        self.slots = communicator._running.membership.slots  # what the controller gave
        self._communicator = communicator
        self._layout = layout

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        return _as_dtype(own, dtype), wire

    def reduce(self, work: Any) -> Any:
        tensor, wire = work
        return self._communicator.allreduce(tensor, wire=wire, layout=self._layout)

    def refill(self, work: Any, own: Values) -> None:
        super().refill(work[0], own)

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _as_array(result)

    def traffic(self) -> dict[str, int]:
        stats = self._communicator.stats()
        return {
            "tx_bytes": stats.bytes_sent + AROUND_PAYLOAD * stats.packets_sent,
            "rx_bytes": stats.bytes_received + AROUND_PAYLOAD * stats.packets_received,
            "packets": stats.packets_sent,
            "retransmissions": stats.retransmissions,
        }


class P4ReduceSparse(P4Reduce):
    """The same, of COO tensors as Gloo is given them."""

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        return _as_coo(own, dtype), wire

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _of_coo(result)


class P4ReduceShared(P4Reduce):
    """The same, of tensors in memory that other ranks map: as a program has them that makes each once."""

    def __init__(self, communicator: Any) -> None:
        super().__init__(communicator)
        self._tensors: dict[tuple[int, str], Any] = {}

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        values = _as_dtype(own, dtype)
        if (own.size, dtype) not in self._tensors:
            self._tensors[own.size, dtype] = shared_empty(own.size, values.dtype)
        tensor = self._tensors[own.size, dtype]
        tensor[...] = values
        return tensor, wire


class Mode(P4Reduce):
    """What another system sends, through the switch."""

    def __init__(self, communicator: Any, system: str) -> None:
        super().__init__(communicator)
        self._system = system

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        return _as_dtype(own, dtype)

    def reduce(self, work: Any) -> Any:
        return self._communicator.start(None, streaming.allreduce, work, self._system).result()


class CApi(_Exact):
    """The C API in the memory of one host, which needs no controller. A call is one of `p4reduce_allreduce`."""

    slots = 1

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self._library = library()
        self._error = c.Error.make()
        membership = c.Membership.make(
            job=1, generation=1, rank=self.rank, world_size=int(os.environ["WORLD_SIZE"]), slots=self.slots,
            lanes=DEFAULT_LANES, block_size=DEFAULT_BLOCK_SIZE,
        )  # fmt: skip
        options = c.LocalOptions.make(meeting=f"bench-{os.environ['MASTER_PORT']}".encode(), timeout=30.0)
        engine = self._library.p4reduce_open_local(ctypes.byref(membership), ctypes.byref(options), self._error)
        if not engine:
            raise to_exception(self._error)
        self._engine = ctypes.c_void_p(engine)
        self._allreduce = ctypes.CDLL(str(find())).p4reduce_allreduce
        self._allreduce.argtypes = [ctypes.c_void_p, ctypes.POINTER(c.Request), ctypes.POINTER(c.Error)]

    def __enter__(self) -> CApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.p4reduce_free(self._engine)

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        array = _as_dtype(own, dtype)
        request = c.Request.make(
            type=type_code(array.dtype), data=array.ctypes.data, count=array.size, wire=c.WIRES[wire_for(dtype, wire)]
        )
        return array, ctypes.byref(request)

    def reduce(self, work: Any) -> Any:
        array, request = work
        check(self._allreduce(self._engine, request, self._error), self._error)
        return array

    def refill(self, work: Any, own: Values) -> None:
        super().refill(work[0], own)

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _as_array(result)

    def traffic(self) -> dict[str, int]:
        return {}


def interface_counts(name: str) -> tuple[int, int, int, int]:
    """Bytes and packets received, bytes and packets sent, as the kernel counts. Raises P4ReduceError."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        interface, _, rest = line.partition(":")
        if interface.strip() == name:
            fields = [int(field) for field in rest.split()]
            return fields[0], fields[1], fields[8], fields[9]
    raise P4ReduceError(f"there is no interface {name}")


class _Other(_Exact):
    """What the systems that do not count their packets have in common: the interface counts them."""

    slots = 0

    def __init__(self, counted: str | None) -> None:
        self._counted = counted

    def traffic(self) -> dict[str, int]:
        if self._counted is None:
            return {}
        bytes_in, packets_in, bytes_out, packets_out = interface_counts(self._counted)
        sent, received = bytes_out + _PREAMBLE_TO_GAP * packets_out, bytes_in + _PREAMBLE_TO_GAP * packets_in
        return {"tx_bytes": sent, "rx_bytes": received, "packets": packets_out}


class Gloo(_Other):
    """torch's dense allreduce on Gloo."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch: Any = torch
        self._dist: Any = dist
        self.rank = int(dist.get_rank())

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        return self._torch.from_numpy(own).to(getattr(self._torch, dtype), copy=True)

    def reduce(self, work: Any) -> Any:
        self._dist.all_reduce(work)
        return work

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _as_array(result)


class DeepSpeed(Gloo):
    """DeepSpeed's allreduce in shared memory, which it has for inference on processors."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]  # its sign that all ranks are on this host
        # Its name for what compiles its operator, which takes minutes the first time, is found on PATH.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        import deepspeed.comm  # type: ignore[import-not-found,import-untyped,unused-ignore]

        deepspeed.comm.init_distributed("gloo", verbose=False)
        if not hasattr(self._torch.ops.deepspeed, "inference_all_reduce_"):
            raise P4ReduceError("DeepSpeed could not build its operator for shared memory")
        self._allreduce = deepspeed.comm.inference_all_reduce
        # DeepSpeed leaves its buffers behind. All ranks have mapped them now.
        self._torch.distributed.barrier()
        name = f"{os.getuid()}_{os.environ['MASTER_ADDR']}_{os.environ['MASTER_PORT']}_{os.environ['RANK']}"
        Path("/dev/shm/deepspeed_allreduce_buffer_" + name).unlink(missing_ok=True)

    def reduce(self, work: Any) -> Any:
        self._allreduce(work)
        return work


class GlooSparse(Gloo):
    """torch's allreduce of COO tensors on Gloo. Making the tensor is not measured.

    Rows of a block's length where that is shorter than an index for each element: what suits Gloo best.
    """

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        return _as_coo(own, dtype)

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _of_coo(result)


class Peer(Gloo):
    """A published sparse allreduce."""

    def __init__(self, counted: str | None, system: str) -> None:
        super().__init__(counted)
        self._system = system
        self._exchange = Exchange()

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        if self._system == "zen":
            owned(own.size, self._exchange.size)
        return Vector.of(own), own.size

    def reduce(self, work: Any) -> Any:
        vector, numel = work
        return ALGORITHMS[self._system](self._exchange, vector, numel), numel

    def values(self, result: Any) -> npt.NDArray[Any]:
        summed, numel = result
        dense: Values = summed.dense(numel) if isinstance(summed, Vector) else summed
        return dense

    def wrong(self, case: Case, values: npt.NDArray[Any], exact: Values) -> int:
        if self._system == "gtopk":
            inputs = [Vector.of(tensors(case, rank)[0]) for rank in range(case.workers)]
            exact = gtopk.expected(inputs).dense(case.numel)
        return super().wrong(case, values, exact)


class Compressed(Gloo):
    """What PyTorch's compressing hooks do: results are near the sum."""

    def __init__(self, counted: str | None, system: str) -> None:
        super().__init__(counted)
        self._kind = system.removeprefix("gloo-")

    def reduce(self, work: Any) -> Any:
        if self._kind == "int8":
            return compressed.int8(self._torch, self._dist, work)
        dtype = {"fp16": self._torch.float16, "bf16": self._torch.bfloat16}[self._kind]
        return compressed.cast(self._dist, work, dtype)

    def wrong(self, case: Case, values: npt.NDArray[Any], exact: Values) -> int:
        unit = {"fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 2.0 / compressed.LEVELS}[self._kind]
        return int(np.count_nonzero(np.abs(values - exact) > unit * case.workers * largest(case)))


class Server(Gloo):
    """A host that adds up what all workers send to it, and sends them the sum: one more rank, the last."""

    def reduce(self, work: Any) -> Any:
        server = self._dist.get_world_size() - 1
        if self.rank != server:
            self._dist.send(work, server)
            self._dist.recv(work, server)
            return work
        parts = [self._torch.empty_like(work) for _ in range(server)]
        arriving = [self._dist.irecv(part, worker) for worker, part in enumerate(parts)]
        total = self._torch.zeros_like(work)
        for part, arrival in zip(parts, arriving, strict=True):
            arrival.wait()
            total += part
        for leaving in [self._dist.isend(total, worker) for worker in range(server)]:
            leaving.wait()
        return total


class Mpi(_Other):
    """MPI's allreduce, of whichever MPI mpi4py was built for."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

        self._mpi: Any = MPI
        self.rank = int(MPI.COMM_WORLD.Get_rank())

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        if dtype not in ("float32", "int32"):
            raise P4ReduceError(f"MPI has no type for {dtype}")
        return _as_dtype(own, dtype)

    def reduce(self, work: Any) -> Any:
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, work)
        return work

    def values(self, result: Any) -> npt.NDArray[Any]:
        return _as_array(result)
