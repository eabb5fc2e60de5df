# SPDX-License-Identifier: Apache-2.0
"""Writes in batches: a data plane that finds errors out only at a batch's end reads back as one that raises at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from finsy.proto import p4r
from hypothesis import example, given
from hypothesis import strategies as st

from p4reduce_targets.dataplane import Batch, Call, Key
from p4reduce_targets.p4runtime.errors import UpdatesRefused
from p4reduce_targets.p4runtime.pipeline import Pipeline
from p4reduce_targets.p4runtime.program import read_program

from .client import CONFIG, DELETE, INFO, INSERT, MODIFY, action, exact_entry
from .fake_device import CPU_PORT, EXACT_SIZE, FakeDataPlane

UPDATES = st.tuples(
    st.sampled_from([INSERT, MODIFY, DELETE]),
    st.integers(1, EXACT_SIZE + 3),
    st.integers(1, 3),
    st.sampled_from([0, 2]),
)


class Picky(FakeDataPlane):
    """A data plane that refuses to change an entry to the argument 3."""

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        if call.arguments == (3,):
            raise ValueError("not 3")
        super().modify(table, key, priority, call)


class Deferring(Picky):
    """A data plane that does the writes of a batch at its end, as one across a network."""

    def __init__(self, program: bytes, cpu_port: int) -> None:
        super().__init__(program, cpu_port)
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._batch = Batch()

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        self._batch = Batch()
        yield self._batch
        for label, write in self._waiting:
            try:
                write()
            except (KeyError, ValueError, AssertionError) as error:
                self._batch.errors[label] = ValueError(str(error))
        self._waiting.clear()

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        insert = super().insert
        self._waiting.append((self._batch.label, lambda: insert(table, key, priority, call)))

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        modify = super().modify
        self._waiting.append((self._batch.label, lambda: modify(table, key, priority, call)))

    def delete(self, table: str, key: Key, priority: int) -> None:
        delete = super().delete
        self._waiting.append((self._batch.label, lambda: delete(table, key, priority)))


def loaded(plane: FakeDataPlane) -> Pipeline:
    return Pipeline(p4r.ForwardingPipelineConfig(p4info=INFO), read_program(INFO), plane)


def write(pipeline: Pipeline, updates: list[tuple[int, int, int, int]]) -> list[bool]:
    """Write a batch of (type, key, argument, leading zeros of the key), and return which updates were refused."""
    request = []
    for kind, key, argument, zeros in updates:
        update = p4r.Update(type=kind)  # type: ignore[arg-type]
        update.entity.table_entry.CopyFrom(exact_entry(key, action("forward", argument)))
        exact = update.entity.table_entry.match[0].exact
        exact.value = bytes(zeros) + exact.value
        request.append(update)
    try:
        pipeline.write(request)
    except UpdatesRefused as refused:
        return [error is not None for error in refused.errors]
    return [False] * len(request)


def entries(pipeline: Pipeline) -> list[bytes]:
    everything = p4r.Entity(table_entry=p4r.TableEntry(table_id=exact_entry(1).table_id))
    return sorted(entity.SerializeToString(deterministic=True) for entity in pipeline.read([everything]))


class WithoutEntries(FakeDataPlane):
    """A data plane that has lost its entries."""

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:  # noqa: ARG002
        raise KeyError(f"{table} has no such entry")


def test_a_key_error_is_told_in_its_own_words() -> None:
    pipeline = loaded(WithoutEntries(CONFIG, CPU_PORT))
    write(pipeline, [(INSERT, 1, 1, 0)])
    update = p4r.Update(type=MODIFY)
    update.entity.table_entry.CopyFrom(exact_entry(1, action("forward", 2)))
    with pytest.raises(UpdatesRefused) as refused:
        pipeline.write([update])
    assert [error and error.message for error in refused.value.errors] == [
        "Error from target: SwitchIngress.exact_table has no such entry"
    ]


@example([[(INSERT, 1, 1, 0)], [(MODIFY, 1, 3, 0), (MODIFY, 1, 2, 1)]])
@given(st.lists(st.lists(UPDATES, max_size=12), max_size=6))
def test_late_errors_are_found_at_their_updates(batches: list[list[tuple[int, int, int, int]]]) -> None:
    at_once, late = loaded(Picky(CONFIG, CPU_PORT)), Deferring(CONFIG, CPU_PORT)
    deferred = loaded(late)
    for updates in batches:
        assert write(deferred, updates) == write(at_once, updates)
        assert entries(deferred) == entries(at_once)
        assert len(entries(deferred)) == sum(len(found) for found in late.entries.values())
