# SPDX-License-Identifier: Apache-2.0
"""The systems that are compared, each with the same interface for a rank."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

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


@contextmanager
def open_reducer(options: argparse.Namespace) -> Iterator[Reducer]:
    """Join a system as the rank that torchrun's variables name."""
    system = options.system
    if system in SWITCHED:
        from p4reduce import Communicator

        with Communicator(
            job="bench", slots=options.slots, interface=options.interface, timeout=options.timeout
        ) as communicator:
            if system in MODES:
                yield Mode(communicator, system)
            elif system == OURS["coo"]:
                yield P4ReduceSparse(communicator)
            elif system == OURS["shared"]:
                yield P4ReduceShared(communicator)
            else:
                yield P4Reduce(communicator, ALWAYS.get(system, "auto"))
    elif system in MPIS:
        yield Mpi(options.counted)
    elif system == C_API:
        with closing(CApi()) as reducer:
            yield reducer
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
        try:
            if system in PEERS:
                made = Compressed if system.startswith("gloo-") else Peer
                yield made(options.counted, system)
            else:
                known = {"gloo": Gloo, "gloo-sparse": GlooSparse, "server": Server, "deepspeed": DeepSpeed}
                yield known[system](options.counted)
        finally:
            dist.destroy_process_group()


def _aligned(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return memory aligned as torch's tensors are: large arrays of NumPy begin 16 bytes after a page."""
    room = np.empty(count * dtype.itemsize + _ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % _ALIGNMENT :][: count * dtype.itemsize].view(dtype)


def _as_dtype(own: Values, dtype: str) -> Any:
    """Return a copy as a NumPy array, or of bfloat16, which NumPy lacks, as a torch tensor."""
    if dtype != "bfloat16":
        copy = _aligned(own.size, np.dtype(dtype))
        copy[:] = own
        return copy
    import torch

    return torch.from_numpy(own).to(torch.bfloat16)


def _as_coo(own: Values, dtype: str) -> Any:
    """Return a COO tensor of single elements, or of rows of a block's length if these take fewer bytes."""
    # torch's to_sparse takes seconds for rows, so this makes the indices itself.
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


class Reducer:
    """A rank's membership in a system. Its results have to be the exact sum."""

    rank: int
    slots = 0

    def form(self, own: Values, dtype: str) -> Any:
        """Return a copy of `own` in the form that the system reduces."""
        return _as_dtype(own, dtype)

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:  # noqa: ARG002
        """Return the argument of `reduce`: a form, or a tuple that begins with one. It is not timed."""
        return self.form(own, dtype)

    def refill(self, work: Any, own: Values) -> None:
        """Make `work` what `prepare` returned, after a reduction in place: for systems of `grid.IN_PLACE`."""
        form = work[0] if isinstance(work, tuple) else work
        if isinstance(form, np.ndarray):
            form[:] = own
        else:
            import torch

            form.copy_(torch.from_numpy(own))

    def reduce(self, work: Any) -> Any:
        """Return the sum over all ranks. This is timed."""
        raise NotImplementedError

    def values(self, result: Any) -> npt.NDArray[Any]:
        """Return `result` as a flat array of float32 or int32."""
        array: npt.NDArray[Any] = result if isinstance(result, np.ndarray) else result.float().numpy()
        return array

    def wrong(self, case: Case, values: npt.NDArray[Any], exact: Values) -> int:  # noqa: ARG002
        """Return the number of wrong elements of a result. exact: the sum."""
        return int(np.count_nonzero(values != exact))

    def traffic(self) -> dict[str, int]:
        """Return tx_bytes and rx_bytes on the wire, packets and retransmissions so far, as far as they are known."""
        return {}


class _Coo:
    """A reducer of COO tensors: rows of a block's length if these take fewer bytes than an index for each element."""

    def form(self, own: Values, dtype: str) -> Any:
        return _as_coo(own, dtype)

    def values(self, result: Any) -> npt.NDArray[Any]:
        dense = np.zeros(tuple(result.shape), np.float32)
        summed = result.coalesce()
        dense[summed.indices()[0].numpy()] = summed.values().float().numpy()
        return dense.reshape(-1)


class P4Reduce(Reducer):
    """The allreduce of a communicator."""

    def __init__(self, communicator: Any, layout: Layout = "auto") -> None:
        self.rank = communicator.rank
        self.slots = communicator._running.membership.slots  # as the controller has assigned them
        self._communicator = communicator
        self._layout = layout

    def prepare(self, own: Values, dtype: str, wire: WireChoice = "auto") -> Any:
        return self.form(own, dtype), wire

    def reduce(self, work: Any) -> Any:
        tensor, wire = work
        return self._communicator.allreduce(tensor, wire=wire, layout=self._layout)

    def traffic(self) -> dict[str, int]:
        stats = self._communicator.stats()
        return {
            "tx_bytes": stats.bytes_sent + AROUND_PAYLOAD * stats.packets_sent,
            "rx_bytes": stats.bytes_received + AROUND_PAYLOAD * stats.packets_received,
            "packets": stats.packets_sent,
            "retransmissions": stats.retransmissions,
        }


class P4ReduceSparse(_Coo, P4Reduce):
    """The allreduce of COO tensors by a communicator."""


class P4ReduceShared(P4Reduce):
    """The allreduce of tensors in memory that other ranks map; like a program, it makes each tensor once."""

    def __init__(self, communicator: Any) -> None:
        super().__init__(communicator)
        self._tensors: dict[tuple[int, str], Any] = {}

    def form(self, own: Values, dtype: str) -> Any:
        values = _as_dtype(own, dtype)
        if (own.size, dtype) not in self._tensors:
            self._tensors[own.size, dtype] = shared_empty(own.size, values.dtype)
        tensor = self._tensors[own.size, dtype]
        tensor[...] = values
        return tensor


class Mode(P4Reduce):
    """A mode of a communicator that sends what another system sends."""

    def __init__(self, communicator: Any, system: str) -> None:
        super().__init__(communicator)
        self._system = system

    def reduce(self, work: Any) -> Any:
        return self._communicator.start(None, streaming.allreduce, work[0], self._system).result()


class CApi(Reducer):
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
        options = c.LocalOptions.make(rendezvous=f"bench-{os.environ['MASTER_PORT']}".encode(), timeout=30.0)
        engine = self._library.p4reduce_open_local(ctypes.byref(membership), ctypes.byref(options), self._error)
        if not engine:
            raise to_exception(self._error)
        self._engine = ctypes.c_void_p(engine)
        self._allreduce = ctypes.CDLL(str(find())).p4reduce_allreduce
        self._allreduce.argtypes = [ctypes.c_void_p, ctypes.POINTER(c.Request), ctypes.POINTER(c.Error)]

    def close(self) -> None:
        """Free the engine."""
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


def interface_counts(name: str) -> tuple[int, int, int, int]:
    """Return bytes and packets received, bytes and packets sent, as the kernel counts them. Raises P4ReduceError."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        interface, _, rest = line.partition(":")
        if interface.strip() == name:
            fields = [int(field) for field in rest.split()]
            return fields[0], fields[1], fields[8], fields[9]
    raise P4ReduceError(f"there is no interface {name}")


class _Counted(Reducer):
    """A reducer whose system does not count its packets; the interface `counted` counts them."""

    def __init__(self, counted: str | None) -> None:
        self._counted = counted

    def traffic(self) -> dict[str, int]:
        if self._counted is None:
            return {}
        bytes_in, packets_in, bytes_out, packets_out = interface_counts(self._counted)
        sent, received = bytes_out + _PREAMBLE_TO_GAP * packets_out, bytes_in + _PREAMBLE_TO_GAP * packets_in
        return {"tx_bytes": sent, "rx_bytes": received, "packets": packets_out}


class Gloo(_Counted):
    """torch's dense allreduce on Gloo."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch: Any = torch
        self._dist: Any = dist
        self.rank = int(dist.get_rank())

    def form(self, own: Values, dtype: str) -> Any:
        return self._torch.from_numpy(own).to(getattr(self._torch, dtype), copy=True)

    def reduce(self, work: Any) -> Any:
        self._dist.all_reduce(work)
        return work


class DeepSpeed(Gloo):
    """DeepSpeed's allreduce in shared memory, which it has for inference on processors."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]  # by this it knows that all ranks are on one host
        # DeepSpeed finds ninja on PATH, which compiles its operator; the first time, this takes minutes.
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


class GlooSparse(_Coo, Gloo):
    """torch's allreduce of COO tensors on Gloo. The time to make the tensor is not measured."""


class Peer(Gloo):
    """A published sparse allreduce."""

    def __init__(self, counted: str | None, system: str) -> None:
        super().__init__(counted)
        self._system = system
        self._exchange = Exchange()

    def form(self, own: Values, dtype: str) -> Any:  # noqa: ARG002
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
    """A compressing DDP hook of PyTorch. Its results are near the sum."""

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
    """A host that adds up all workers' tensors and sends them the sum: one more rank, the last."""

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


class Mpi(_Counted):
    """MPI's allreduce, with the MPI that mpi4py was built for."""

    def __init__(self, counted: str | None) -> None:
        super().__init__(counted)
        from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

        self._mpi: Any = MPI
        self.rank = int(MPI.COMM_WORLD.Get_rank())

    def form(self, own: Values, dtype: str) -> Any:
        if dtype not in ("float32", "int32"):
            raise P4ReduceError(f"MPI has no type for {dtype}")
        return _as_dtype(own, dtype)

    def reduce(self, work: Any) -> Any:
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, work)
        return work
