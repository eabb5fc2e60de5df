# SPDX-License-Identifier: Apache-2.0
"""Averages on two levels: within a host by torch.distributed, between hosts on the switch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from p4reduce import settings
from p4reduce.api.communicator import Communicator
from p4reduce.collectives.plan import nothing
from p4reduce.ddp.states import AllreduceState, check_dense_bucket
from p4reduce.engine.handle import Handle
from p4reduce.errors import without_frames
from p4reduce.submit.submission import as_failure
from p4reduce.tensors.spec import WireChoice


class HierarchicalState(AllreduceState):
    """The state of `hierarchical_hook`: a host's ranks divide each bucket, and the switch adds each rank's share.

    So the ranks of a host together send a gradient once, like a single rank, over as many jobs as the host has ranks.
    Between ranks of a host, data goes over NVLink, PCIe or memory, by the backend of `local`.

    communicator: connects the ranks that have the same local rank, one on each host.
    local: process group of the ranks of this host. During a backward pass, nothing else may use it.
    wire: wire type of sums between hosts, as in `Communicator.allreduce`; by default the communicator's.

    The backend makes sums within a host in the gradients' dtype, after division by the host's number of ranks.
    Therefore they do not have the same bits as those of `allreduce_hook`.
    """

    hook = "hierarchical_hook"

    def __init__(self, communicator: Communicator, local: dist.ProcessGroup, *, wire: WireChoice | None = None) -> None:
        super().__init__(communicator, wire=wire)
        self.local: dist.ProcessGroup | None = local
        """None in a state that was pickled; set it again, like `communicator`."""
        self._pipeline = _Pipeline()

    @classmethod
    def of_hosts(
        cls,
        *,
        job: str = "default",
        local_world_size: int | None = None,
        wire: WireChoice | None = None,
        **options: Any,
    ) -> HierarchicalState:
        """Make the state for ranks that torchrun has started: the same number on each host, numbered consecutively.

        All ranks of the default process group must call this, since it makes the process groups of the hosts.
        job: the first ranks of all hosts join the job `job`/0, the second ones `job`/1, and so on.
        local_world_size: ranks of a host; by default LOCAL_WORLD_SIZE.
        options: those of `Communicator`. The caller closes the communicator, or uses `with state.communicator:`.
        Raises ValueError where hosts have different numbers of ranks, and the errors of `Communicator`.
        """
        rank, ranks = dist.get_rank(), dist.get_world_size()
        name, said = settings.needed("local_world_size", local_world_size, "LOCAL_WORLD_SIZE")
        size = settings.integer(name, said, 1, ranks)
        if ranks % size:
            raise ValueError(
                f"{name}={size}: accepted are divisors of {ranks}, the number of ranks; it is how many ranks each "
                "host has"
            )
        local, _ = dist.new_subgroups(size)  # type: ignore[no-untyped-call]
        communicator = Communicator(
            job=f"{job}/{rank % size}", rank=rank // size, world_size=ranks // size, **options
        )  # fmt: skip
        return cls(communicator, local, wire=wire)

    def start(self, bucket: GradBucket) -> tuple[Handle[torch.Tensor], Callable[[], None]]:
        communicator = self._joined()
        if self.local is None:
            raise TypeError("this state was pickled without its process group: set its attribute local")
        check_dense_bucket(bucket, self.hook)
        buffer = bucket.buffer()
        stream = _Stream(buffer.device) if buffer.is_cuda else None
        handle = communicator.promise(
            buffer, f"hierarchical allreduce of bucket {bucket.index()}", [stream] if stream is not None else []
        )
        self._pipeline.add(_Bucket(communicator, self.local, self.wire, buffer, bucket.is_last(), handle, stream))
        return handle, nothing

    def _share(self) -> int:
        return self.local.size() if self.local is not None else 1

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "local": None, "_pipeline": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pipeline=_Pipeline())


class _Stream:
    """A CUDA stream for the work on one bucket, which begins after the work that the current stream has so far."""

    def __init__(self, device: torch.device) -> None:
        self._own: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._own.wait_stream(torch.cuda.current_stream(device))
        self._device = device
        self._ended: torch.cuda.Event | None = None

    def use(self, tensor: torch.Tensor) -> Any:
        """Return a context in which this is the current stream, and make it a user of the tensor's memory."""
        tensor.record_stream(self._own)
        return torch.cuda.stream(self._own)

    def end(self) -> None:
        self._ended = self._own.record_event()

    def wait(self) -> None:
        if self._ended is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ended)

    def done(self) -> bool:
        return self._ended is None or bool(self._ended.query())  # type: ignore[no-untyped-call]


@dataclass
class _Bucket:
    """A bucket in the pipeline, whose `buffer` becomes the average."""

    communicator: Communicator
    local: dist.ProcessGroup
    wire: WireChoice | None
    buffer: torch.Tensor
    is_last: bool
    """Whether it is the last one of its backward pass."""
    handle: Handle[torch.Tensor]
    stream: _Stream | None
    shared: torch.Tensor | None = None
    """The buffer, or a copy that is padded with zeros to equal shares."""
    at_switch: Handle[torch.Tensor] | None = None

    def share_out(self) -> None:
        """Start the switch's part of the bucket, on this rank's share of the host's sum."""
        ranks = self.local.size()
        with self._on_stream():
            missing = -self.buffer.numel() % ranks
            self.shared = torch.nn.functional.pad(self.buffer, (0, missing)) if missing else self.buffer
            self.shared.div_(ranks)
            share = self._share(self.shared)
            dist.reduce_scatter_tensor(share, self.shared, group=self.local)
            self.at_switch = self.communicator.allreduce_async(share, op="average", wire=self.wire)

    def gather(self) -> None:
        """Gather the averages of all shares in the bucket."""
        assert self.at_switch is not None
        assert self.shared is not None
        with self._on_stream():
            self.at_switch.wait()
            dist.all_gather_into_tensor(self.shared, self._share(self.shared), group=self.local)
            if self.shared is not self.buffer:
                self.buffer.copy_(self.shared[: self.buffer.numel()])
        if self.stream is not None:
            self.stream.end()

    def _on_stream(self) -> AbstractContextManager[object]:
        return self.stream.use(self.buffer) if self.stream is not None else nullcontext()

    def _share(self, shared: torch.Tensor) -> torch.Tensor:
        """Return this rank's share."""
        return shared.chunk(self.local.size())[self.local.rank()] if shared.numel() else shared


class _Pipeline:
    """A pipeline of buckets with three stages: reduce-scatter in the host, allreduce on the switch, all-gather in it.

    Buckets pass in the order of the hook's calls, which is the same on all ranks. While one bucket is at the switch,
    the next one is scattered. The order of the host's collectives depends only on the calls, and never on the arrival
    of results, so all ranks of the host agree on it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: deque[_Bucket] = deque()
        self._working = False
        self._between: _Bucket | None = None  # at the switch
        self._failure: BaseException | None = None

    def add(self, bucket: _Bucket) -> None:
        with self._lock:
            self._given.append(bucket)
            if self._working:
                return
            self._working = True
        bucket.communicator.follow(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._given:
                    self._working = False
                    return
                bucket = self._given.popleft()
            ready = [self._between, bucket if bucket.is_last else None]
            try:
                if self._failure is not None:
                    raise without_frames(self._failure)
                bucket.share_out()
                self._between = None if bucket.is_last else bucket
                for one in ready:
                    if one is not None:
                        one.gather()
                        one.handle.complete()
            except BaseException as error:
                failure = as_failure(bucket.handle.name, "go on", error)
                self._fail(failure, [self._between, *ready, bucket])
                bucket.communicator.abort()

    def _fail(self, error: BaseException, under_way: list[_Bucket | None]) -> None:
        """Fail these buckets and all later ones: the ranks no longer agree on the next collective."""
        self._failure, self._between = error, None
        for bucket in under_way:
            if bucket is not None and not bucket.handle.done():
                bucket.handle.complete(error)
