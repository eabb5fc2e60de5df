# SPDX-License-Identifier: Apache-2.0
"""Random P4Runtime batches, refusals and losses: a Tofino has what P4Runtime reads back, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

from finsy.proto import p4r
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from p4reduce_targets.bfrt.dataplane import LARGEST_PRIORITY
from p4reduce_targets.bfrt.switch import Tofino, TofinoSwitch
from p4reduce_targets.dataplane import DataPlaneLost
from p4reduce_targets.p4runtime.errors import UpdatesRefused
from p4reduce_targets.p4runtime.pipeline import Pipeline
from p4reduce_targets.p4runtime.program import read_program
from tests.support.bfrt.server import Server
from tests.support.bfrt.tables import Data, MatchTable
from tests.support.dataplane.p4runtime import number
from tests.support.dataplane.targets import SocketPort
from tests.support.waiting import wait_until
from tests.targets.bfrt import made_up

PROGRAM = made_up.program(cpu_port=192)
CONFIG = p4r.ForwardingPipelineConfig(p4info=made_up.P4INFO, p4_device_config=PROGRAM.SerializeToString())
JOBS, RULES = 1, 2
EXAMPLES = int(os.environ.get("P4REDUCE_FUZZ", "25"))
LIMITS = {"pipe.Ingress.jobs": 2, "pipe.Ingress.rules": 2, "$pre.node": 4, "$pre.mgid": 2}
KINDS = st.sampled_from([p4r.Update.INSERT, p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE])

State: TypeAlias = dict[str, Any]


def action(argument: int) -> p4r.TableAction:
    """Return the action `discard`, or `admit` with an argument above 0."""
    made = p4r.TableAction()
    made.action.action_id = 11 if argument else 12
    if argument:
        for parameter, value in ((1, argument), (2, 0xABC)):
            made.action.params.add(param_id=parameter, value=number(value))
    return made


def job(port: int, argument: int) -> p4r.Entity:
    entry = p4r.TableEntry(table_id=JOBS, action=action(argument))
    entry.match.add(field_id=1).exact.value = number(port)
    if port:
        entry.match.add(field_id=2).lpm.CopyFrom(p4r.FieldMatch.LPM(value=number(10 << 24), prefix_len=8))
    return p4r.Entity(table_entry=entry)


def rule(flags: int, priority: int) -> p4r.Entity:
    entry = p4r.TableEntry(table_id=RULES, action=action(0), priority=priority)
    entry.match.add(field_id=1).ternary.CopyFrom(p4r.FieldMatch.Ternary(value=b"\x10", mask=b"\xf0"))
    entry.match.add(field_id=2).exact.value = number(flags)
    return p4r.Entity(table_entry=entry)


def default(argument: int | None) -> p4r.Update:
    entry = p4r.TableEntry(table_id=JOBS, is_default_action=True)
    if argument is not None:
        entry.action.CopyFrom(action(argument))
    return p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(table_entry=entry))


def group(number: int, replicas: Iterable[tuple[int, int]]) -> p4r.Entity:
    entity = p4r.Entity()
    made = entity.packet_replication_engine_entry.multicast_group_entry
    made.multicast_group_id = number
    for port, instance in replicas:
        made.replicas.add(egress_port=port, instance=instance)
    return entity


def update(kind: p4r.Update.Type, entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)


SMALL = st.integers(0, 3)
REPLICAS = st.sets(st.tuples(st.sampled_from([4, 8]), st.integers(0, 3)), min_size=1, max_size=5)
UPDATES = st.one_of(
    st.builds(update, KINDS, st.builds(job, SMALL, SMALL)),
    st.builds(update, KINDS, st.builds(rule, st.integers(0, 1), st.integers(1, 2))),
    st.builds(update, KINDS, st.builds(group, st.integers(1, 3), REPLICAS)),
    st.builds(update, KINDS, st.builds(group, st.integers(1, 3), REPLICAS)),
    st.builds(default, st.none() | SMALL),
)
BATCHES = st.lists(UPDATES, min_size=2, max_size=10)
LOSSES = ("the stream ends", "a restart", "a restart without a program", "death within a batch")
STEPS = st.lists(st.tuples(st.sampled_from([*[None] * 12, *LOSSES]), BATCHES), min_size=2, max_size=8)


class Switch:
    """A Tofino with its P4Runtime pipeline, which begins anew after each loss."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._stack = ExitStack()
        self.begin()

    def begin(self) -> None:
        """Connect, and let a controller set the program."""
        self._stack.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(theirs)
        wanted = Tofino(self.server.address, PROGRAM, Path(), [], lambda number: SocketPort(number, ours))
        self.device = self._stack.enter_context(TofinoSwitch(wanted))
        plane = self.device.load(CONFIG.p4_device_config)
        self.pipeline = Pipeline(CONFIG, read_program(CONFIG.p4info), plane)
        self.device.run_program(plane)

    def write(self, updates: Sequence[p4r.Update]) -> None:
        """Write a batch. A loss that the data plane finds itself is a loss like others."""
        try:
            with suppress(UpdatesRefused):
                self.pipeline.write(updates)
        except DataPlaneLost:
            self.begin()

    def lose(self, how: str, updates: Sequence[p4r.Update]) -> None:
        """Lose the connection, and check that nothing is written before a new one."""
        if how == "death within a batch":
            self.server.faults.die_after = len(updates) // 2
            self.write_and_lose(updates)
            self.server.faults.die_after = None
            self.server.restart(made_up.for_server(PROGRAM))
        elif how == "the stream ends":
            self.server.end_streams()
        else:
            self.server.restart(made_up.for_server(PROGRAM) if how == "a restart" else None)
        wait_until(lambda: self.device.lost, "the loss")
        self.begin()
        assert self.read_back() == {"jobs": {}, "rules": {}, "default": None, "groups": {}}

    def write_and_lose(self, updates: Sequence[p4r.Update]) -> None:
        """Write to a server that dies meanwhile, unless the switch has nothing to do for this batch."""
        with suppress(UpdatesRefused, DataPlaneLost):
            self.pipeline.write(updates)
        if self.device.lost is None:
            self.server.stop()

    def read_back(self) -> State:
        """Return what P4Runtime reads."""
        state: State = {"jobs": {}, "rules": {}, "default": None, "groups": {}}
        wanted = [p4r.Entity(table_entry=p4r.TableEntry(table_id=JOBS, is_default_action=True))]
        wanted += [p4r.Entity(table_entry=p4r.TableEntry(table_id=table)) for table in (JOBS, RULES)]
        for entity in self.pipeline.read([*wanted, group(0, [])]):
            if entity.HasField("table_entry"):
                self._read_entry(entity.table_entry, state)
            else:
                found = entity.packet_replication_engine_entry.multicast_group_entry
                state["groups"][found.multicast_group_id] = {
                    (replica.egress_port, replica.instance) for replica in found.replicas
                }
        # A group without replicas is none in the switch.
        state["groups"] = {number: replicas for number, replicas in state["groups"].items() if replicas}
        return state

    def _read_entry(self, entry: p4r.TableEntry, state: State) -> None:
        call = None
        if entry.HasField("action"):
            found = entry.action.action
            call = (found.action_id, [int.from_bytes(one.value, "big") for one in found.params])
        if entry.is_default_action:
            state["default"] = call
        elif entry.table_id == JOBS:
            state["jobs"][int.from_bytes(entry.match[0].exact.value, "big")] = call
        else:
            state["rules"][int.from_bytes(entry.match[1].exact.value, "big"), entry.priority] = call

    def there(self) -> State:
        """Return what the server's device has."""
        device = self.server.device
        jobs, rules = device.tables[JOBS], device.tables[RULES]
        assert isinstance(jobs, MatchTable)
        assert isinstance(rules, MatchTable)
        engine = device.engine
        members = [node for nodes in engine.groups.values() for node in nodes]
        assert sorted(members) == sorted(engine.nodes), "nodes without a group"
        return {
            "jobs": {key[0]: call_of(entry.data) for key, entry in jobs.entries.items()},
            "rules": {(key[1], LARGEST_PRIORITY - key[2]): call_of(entry.data) for key, entry in rules.entries.items()},
            "default": None if jobs.default is None else call_of(jobs.default),
            "groups": {
                number: {(port, engine.nodes[node].instance) for node in nodes for port in engine.nodes[node].ports}
                for number, nodes in engine.groups.items()
            },
        }

    def close(self) -> None:
        self._stack.close()


def call_of(data: Data) -> tuple[int, list[int]]:
    return data.action, [data.values[one] for one in sorted(data.values) if one in (1, 2)]


# An example takes half a second, so a failing one is not made smaller.
@settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
@given(STEPS)
def test_the_switch_has_what_p4runtime_reads_back(steps: list[tuple[str | None, list[p4r.Update]]]) -> None:
    with Server(made_up.device(PROGRAM)) as server:
        server.device.limits.update(LIMITS)
        switch = Switch(server)
        try:
            for loss, updates in steps:
                if loss is None:
                    switch.write(updates)
                else:
                    switch.lose(loss, updates)
                assert switch.there() == switch.read_back()
        finally:
            switch.close()
        assert server.device.remarks == []
