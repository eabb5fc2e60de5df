# SPDX-License-Identifier: Apache-2.0
"""A CUDA device that is as late as it may: for what is wrong with the order of streams, on a machine without one.

What is given to a stream is done when somebody has to know: the host, or another stream that must do it first. So what
nothing puts in order happens in the worst one, and comes to light as a wrong value. Memory that is free again while a
stream has yet to use it is put down in `Cuda.freed_too_early`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda", 0)
_HOST_WANTS_VALUES = {"cpu", "tolist", "item", "__bool__", "__int__", "__float__", "numpy", "equal"}
_LIMIT_S = 20.0  # of what a test holds up
_LOOKS_UNTIL_DONE = 3  # looks at an event until it has happened


class Stream:
    """A stream that runs its tasks in order, and late."""

    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda = cuda
        self.name = name
        self.given: list[Callable[[], object]] = []
        self.done = 0
        self.waits: list[tuple[Stream, int]] = []
        """For which other streams, and how far."""

    def give(self, task: Callable[[], object]) -> int:
        with self._cuda.lock:
            self.given.append(task)
            return len(self.given)

    def come_to(self, position: int) -> None:
        """Run the tasks up to this position."""
        with self._cuda.lock:
            while self.done < position:
                task = self.given[self.done]
                self.done += 1
                task()

    def record_event(self) -> Event:
        return Event(self._cuda, self, len(self.given))

    def wait_event(self, event: Event) -> None:
        self.waits.append((event.stream, event.position))
        self.give(lambda: event.stream.come_to(event.position))

    def synchronize(self) -> None:
        self._cuda.block()
        self.come_to(len(self.given))


@dataclass
class Event:
    cuda: Cuda
    stream: Stream
    position: int
    looks: int = 0

    def query(self) -> bool:
        self.cuda.hosts.append(threading.current_thread())
        self.looks += 1
        if self.looks <= _LOOKS_UNTIL_DONE or not self.cuda.running.is_set():
            return self.stream.done >= self.position
        self.stream.come_to(self.position)
        return True


@dataclass
class Memory:
    """The memory of a tensor and its views, which nothing else may use until they are gone."""

    stream: Stream
    uses: list[tuple[Stream, int]] = field(default_factory=list)
    recorded: list[Stream] = field(default_factory=list)

    def in_use(self) -> list[str]:
        """Return the streams that still use the memory, and for which its own stream would not wait to reuse it."""
        return [
            stream.name
            for stream, position in self.uses
            if stream is not self.stream
            and stream not in self.recorded
            and stream.done < position
            and not any(other is stream and far >= position for other, far in self.stream.waits)
        ]


class Tensor(torch.Tensor):
    """A tensor whose values are on the fake device."""

    cuda: Cuda
    memory: Memory
    held: object
    is_cuda = True  # type: ignore[assignment]
    device = DEVICE  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.memory.recorded.append(stream)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        cuda, stream, name = tensors[0].cuda, tensors[0].cuda.current(), function.__name__
        with torch._C.DisableTorchFunctionSubclass():
            plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))

            def run() -> object:
                with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                    return function(*plain_args, **plain_kwargs)

            def give(task: Callable[[], object]) -> None:
                position = stream.give(task)
                for tensor in tensors:
                    tensor.memory.uses.append((stream, position))

            if name in _HOST_WANTS_VALUES:
                stream.synchronize()
                return run()
            if name.endswith("_") and not name.endswith("__"):
                give(run)
                crosses = len(tensors) < sum(isinstance(each, torch.Tensor) for each in args)
                if name == "copy_" and crosses and not kwargs.get("non_blocking"):
                    stream.synchronize()
                return args[0]
            result = run()
            if not isinstance(result, torch.Tensor):
                return result
            for tensor in tensors:
                if result.untyped_storage().data_ptr() == _plain(tensor).untyped_storage().data_ptr():
                    return cuda._tensor(result, tensor.memory, tensor.held)
            made = cuda.tensor(result)
            if name not in ("new_empty", "empty_like"):
                plain = _plain(made)
                plain.zero_()
                give(lambda: plain.copy_(run()))  # type: ignore[arg-type]
                made.memory.uses.append((stream, len(stream.given)))
            return made


def _plain(each: Any) -> Any:
    return each.as_subclass(torch.Tensor) if isinstance(each, Tensor) else each


class _Token:
    """An object that lives as long as a tensor or a view of it."""


class Cuda:
    """The device, in the place of `torch.cuda`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.streams: list[Stream] = []
        """Of the library."""
        self.hosts: list[threading.Thread] = []
        """Threads that waited for the device, each time."""
        self.freed = 0
        """Tensors whose memory went back to the allocator."""
        self.freed_too_early: list[str] = []
        self.devices_of_futures: list[list[torch.device]] = []
        self.capturing = False
        """Whether the current stream's work goes into a graph."""
        self.running = threading.Event()
        self.running.set()
        self._default = Stream(self, "default")
        self._current = threading.local()

    def stream(self, device: object) -> Stream:
        assert device == DEVICE
        self.streams.append(Stream(self, f"stream {len(self.streams)}"))
        return self.streams[-1]

    def current(self, device: object = DEVICE) -> Stream:
        assert device == DEVICE
        return getattr(self._current, "stream", self._default)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before = self.current()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def block(self) -> None:
        """Let the host wait until the device runs."""
        self.hosts.append(threading.current_thread())
        assert self.running.wait(_LIMIT_S), "the host waits for a device that does not run"

    def tensor(self, values: Any) -> Any:
        """Return a tensor on the device, of the current stream, whose values are there at once."""
        memory, token = Memory(self.current()), _Token()
        weakref.finalize(token, self._free, memory)
        return self._tensor(torch.as_tensor(values).clone(), memory, token)

    def _free(self, memory: Memory) -> None:
        self.freed += 1
        self.freed_too_early += memory.in_use()

    def _tensor(self, plain: torch.Tensor, memory: Memory, token: object) -> Tensor:
        tensor = plain.as_subclass(Tensor)
        tensor.cuda, tensor.memory, tensor.held = self, memory, token
        return tensor

    def hurry(self) -> None:
        """Run all tasks of the library's streams, and the tasks that these wait for."""
        for stream in self.streams:
            stream.come_to(len(stream.given))


@contextlib.contextmanager
def fake_cuda() -> Iterator[Cuda]:
    """Yield a fake device. Its tensors are those that `Cuda.tensor` makes."""
    from p4reduce.tensors import cuda as ours

    cuda = Cuda()
    empty = torch.empty

    def future(self: Any, *, devices: Any = ()) -> None:
        cuda.devices_of_futures.append(devices)
        torch._C.Future.__init__(self, [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", cuda.stream)
        patch.setattr(torch.cuda, "current_stream", cuda.current)
        patch.setattr(torch.cuda, "stream", cuda.on)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cuda.capturing)
        patch.setattr(torch, "empty", lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs))  # noqa: ARG005
        patch.setattr(torch.futures.Future, "__init__", future)
        patch.setattr(ours, "_triton_works", lambda _: False)
        ours._stream.cache_clear()
        yield cuda
    ours._stream.cache_clear()
