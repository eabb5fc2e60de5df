# SPDX-License-Identifier: Apache-2.0
"""Mutants of the code: each lacks one protection, and names the test that must then fail.

`pytest -p tests.support.mutants` removes the protection that P4REDUCE_MUTANT names when its Python module is imported.
Mutants of the P4 program are in `protections.py`, those of whole processes in `tests/topos`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_ROOTS = {"p4reduce": "hostlib", "p4reduce_controller": "controller", "p4reduce_targets": "targets"}


def without(file: Path, protection: str, instead: str) -> str:
    """Return the text of a file in which `instead` replaces `protection`, which must occur exactly once."""
    text = file.read_text()
    count = text.count(protection)
    assert count == 1, f"{file} has changed: {protection!r} stands there {count} times"
    return text.replace(protection, instead)


def check_that_it_fails(test: str, *options: str, **variables: str) -> None:
    """Run a test in a new process, and assert that it fails by an assertion.

    test: its path below tests/.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, f"tests/{test}"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=250)
    said = done.stdout + done.stderr
    assert done.returncode == 1, f"the test still passes, or did not run:\n{said}"
    claimed = "AssertionError" in said or "Failed: DID NOT RAISE" in said
    assert claimed, f"the test fails for another reason:\n{said}"


class Mutant(NamedTuple):
    where: str
    """A Python module, or a C file below hostlib/csrc or targets/csrc."""
    protection: str
    instead: str
    test: str
    """The test that must fail, as its path below tests/."""

    @property
    def file(self) -> Path:
        if self.where.endswith((".c", ".h")):
            return next(
                path for part in ("hostlib", "targets") if (path := _ROOT / part / "csrc" / self.where).is_file()
            )
        package, _, rest = self.where.partition(".")
        return _ROOT / _ROOTS[package] / package / f"{rest.replace('.', '/')}.py"

    def source(self) -> str:
        """Return the text of the file without the protection."""
        return without(self.file, self.protection, self.instead)


_ADMISSION = "p4reduce_controller.jobs.admission"
_TENANCY = "p4reduce_controller.jobs.tenancy"
_LIFECYCLE = "p4reduce_controller.jobs.lifecycle"
_FAILOVER = "p4reduce_controller.jobs.failover"
_LEASE = "p4reduce_controller.etcd.lease"
_STATE = "p4reduce_controller.etcd.state"
_PACKET = "p4reduce.protocol.packet"
_TENANTS = "controller/test_tenants.py::"
_ETCD = "controller/test_etcd.py::"
_DISAGREE = "controller/test_service.py::test_ranks_that_disagree_are_told_at_both_ends"
_WORKER = "protocol/test_worker.py"
_CLIENT = "p4reduce_targets.bfrt.client"
_DATAPLANE = "p4reduce_targets.bfrt.dataplane"
_FAULTS = "targets/bfrt/test_faults.py::"
_ON_SERVER = "targets/bfrt/test_on_server.py::"

IN_PYTHON = {
    "pace: a mark counts once in a round trip": Mutant(
        "p4reduce.protocol.pacing",
        "began_at >= self._reduced_at and ",
        "",
        "protocol/test_pacing.py::test_marks_halve_the_window_once_in_a_round_trip",
    ),
    "admission: a rank joins once": Mutant(
        _ADMISSION,
        'if join.rank in ranks:\n        return f"this rank',
        'if False:\n        return f"this rank',
        _DISAGREE,
    ),
    "admission: all ranks say the same world size": Mutant(
        _ADMISSION, "if join.world_size != world_size:", "if False:", _DISAGREE
    ),
    "admission: nobody joins a job that runs": Mutant(
        _ADMISSION,
        "if job.state is not State.GATHERING:",
        "if False:",
        "controller/test_service.py::test_a_latecomer_does_not_kill_a_running_job",
    ),
    "admission: who rejoins knows the rank's key": Mutant(
        _LIFECYCLE,
        "bool(member.key) and hmac.compare_digest(digest(rejoin.key), member.key)",
        "True",
        "controller/test_restart.py::test_only_who_has_the_key_is_let_in",
    ),
    "admission: who rejoins is of the job's tenant": Mutant(
        _LIFECYCLE,
        "if job is not None and job.tenant and not caller.ends(job.tenant):",
        "if False:",
        f"{_TENANTS}test_coming_back_to_a_job_of_another_tenant_is_as_to_none",
    ),
    "failover: ranks are suspended once the loss is stored": Mutant(
        _FAILOVER,
        "self._lifecycle.add(Keep(job, takeover))",
        "self._suspend(takeover, _workers(job))",
        "controller/test_failover.py::test_the_slots_go_on_at_another_switch",
    ),
    "failover: ranks have limited time": Mutant(
        _FAILOVER,
        "elif now - takeover.suspended_at > ROUNDS_TIMEOUT:",
        "elif False:",
        "controller/test_failover_ranks.py::test_a_rank_that_tells_no_rounds_in_time_ends_the_job",
    ),
    "failover: the first answer counts": Mutant(
        _FAILOVER,
        "if member.rank in takeover.told:",
        "if False:",
        "controller/test_failover_ranks.py::test_only_the_first_rounds_of_a_rank_count",
    ),
    "failover: as many rounds as slots": Mutant(
        _FAILOVER,
        "if len(rounds.rounds) != count:",
        "if False:",
        "controller/test_failover_ranks.py::test_a_rank_that_cannot_suspend_its_slots_ends_the_job",
    ),
    "failover: ranks are at most one round apart": Mutant(
        "p4reduce_controller.jobs.job",
        "if (self._most[slot] - self.least[slot]) % 2**32 > 1:",
        "if False:",
        "controller/test_failover_ranks.py::test_rounds_too_far_apart_are_refused_in_any_order",
    ),
    "failover: each thread has rounds of its own": Mutant(
        _FAILOVER,
        "takeover.rounds.least[firsts[thread] : firsts[thread + 1]]",
        "takeover.rounds.least[: counts[thread]]",
        "controller/test_failover.py::test_the_slots_of_all_threads_go_on_at_another_switch",
    ),
    "failover: spares come last": Mutant(
        _FAILOVER,
        "(other in spare_trees,",
        "(other not in spare_trees,",
        "controller/test_failover_spares.py::test_slots_go_on_at_a_spare_if_no_other_switch_is_left",
    ),
    "failover: not without the packets of ranks that have left": Mutant(
        _FAILOVER,
        "and not _departed(job)",
        "",
        "controller/test_failover_ranks.py::test_a_process_that_ends_after_it_has_left_sends_nothing_again",
    ),
    "leaving: a rank lingers": Mutant(
        "p4reduce.join.joining",
        "lingers=is_last",
        "lingers=False",
        "hostlib/test_communicator.py::test_the_engine_goes_on_until_all_ranks_leave_but_begins_nothing",
    ),
    "quota: slots": Mutant(
        _TENANCY,
        "if held.slots[tenant] + slots > quota.slots:",
        "if False:",
        f"{_TENANTS}test_who_does_not_wait_is_refused_and_who_waits_is_let_in",
    ),
    "quota: slot-hours": Mutant(
        _TENANCY,
        "return self.hours(tenant) >= self.policy.quota(tenant).slot_hours",
        "return False",
        f"{_TENANTS}test_slot_hours_end_what_runs_and_refuse_what_comes_until_the_next_month",
    ),
    "quota: reservations of others": Mutant(
        _TENANCY,
        "return [slots for slots in left if slots > 0]",
        "return []",
        f"{_TENANTS}test_what_is_reserved_is_there_until_its_end",
    ),
    "fencing: only who has the lease writes": Mutant(
        _STATE,
        "compare = [self._lease.fence, follows]",
        "compare = [follows]",
        f"{_ETCD}TestState::test_who_has_lost_the_lease_writes_nothing",
    ),
    "fencing: a write that comes late is nothing": Mutant(
        _STATE,
        "compare = [self._lease.fence, follows]",
        "compare = [self._lease.fence]",
        f"{_ETCD}TestState::test_a_write_that_a_member_does_late_changes_nothing",
    ),
    "lease: one controller has it": Mutant(
        _LEASE, "compare=[vacant], success=[put]", "success=[put]", f"{_ETCD}TestLease::test_one_at_a_time_has_it"
    ),
    "lease: it is doubtful when it was not renewed": Mutant(
        _LEASE,
        "if late < 0:",
        "if True:",
        f"{_ETCD}TestLease::test_who_is_in_doubt_knows_it_before_another_can_have_it",
    ),
    "codec: version": Mutant(
        _PACKET,
        "if first >> 4 != PROTOCOL_VERSION:",
        "if False:",
        "protocol/test_packet_codec.py::test_foreign_headers",
    ),
    "codec: length": Mutant(
        _PACKET,
        "if length != self._lengths[present]:",
        "if False:",
        "protocol/test_packet_codec.py::test_foreign_lengths",
    ),
    "codec: lanes": Mutant(
        _PACKET,
        "if active & self._idle_lanes or present & ~active:",
        "if False:",
        "protocol/test_packet_codec.py::test_foreign_headers",
    ),
    "codec: order of bytes": Mutant(
        _PACKET,
        "packet.values.astype(WIRE_INT, copy=False)",
        'packet.values.astype("<i4", copy=False)',
        "protocol/test_packet_codec.py",
    ),
    "BF Runtime: the lowest priority wins": Mutant(
        _DATAPLANE,
        "encode(LARGEST_PRIORITY - priority, field.bits, _PRIORITY)",
        "encode(priority, field.bits, _PRIORITY)",
        "targets/bfrt/test_dataplane.py::test_a_ternary_entry_has_its_priority_turned_round",
    ),
    "BF Runtime: a node has its instance": Mutant(
        _DATAPLANE,
        "entry.data.fields.extend([rid, lags, dev_ports])",
        "entry.data.fields.extend([lags, dev_ports])",
        "targets/bfrt/test_dataplane.py::test_a_group_is_made_of_a_node_for_each_instance",
    ),
    "BF Runtime: few counters are read from the chip": Mutant(
        _DATAPLANE, "entry.table_flags.from_hw = True", "pass", f"{_ON_SERVER}test_counters"
    ),
    "BF Runtime: many counters are synchronized": Mutant(
        _DATAPLANE, "self._synchronize(tables)", "pass", f"{_ON_SERVER}test_counters"
    ),
    "BF Runtime: a batch has all errors of the server": Mutant(
        _CLIENT,
        "for detail in status.details]",
        "for detail in status.details[:2]]",
        "targets/bfrt/test_client.py::test_the_errors_of_a_batch_are_found_at_their_updates",
    ),
    "BF Runtime: a batch has the errors of all updates": Mutant(
        _DATAPLANE,
        "refused.setdefault(write.label, error)",
        "refused = refused or {write.label: error}",
        f"{_ON_SERVER}test_batches",
    ),
    "BF Runtime: the device": Mutant(
        _CLIENT,
        "device_id=self.device_id, pipe_id=ALL_PIPES",
        "device_id=self.device_id + 1, pipe_id=ALL_PIPES",
        "targets/bfrt/test_client.py::test_calls_are_for_the_device_and_all_its_pipes",
    ),
    "BF Runtime: all pipes": Mutant(
        _CLIENT,
        "pipe_id=ALL_PIPES",
        "pipe_id=0",
        "targets/bfrt/test_client.py::test_calls_are_for_the_device_and_all_its_pipes",
    ),
    "BF Runtime: a client binds before all else": Mutant(
        "p4reduce_targets.bfrt.switch",
        "self._client.bind(tofino.program.p4_name)",
        "pass",
        f"{_FAULTS}TestStart::test_binds_before_it_reads_or_writes",
    ),
    "BF Runtime: nothing is written before the program runs": Mutant(
        _DATAPLANE,
        "if self._running and self._batch is None",
        "if self._batch is None",
        f"{_ON_SERVER}test_a_new_data_plane_begins_with_an_empty_switch",
    ),
    "BF Runtime: a refused group is taken back": Mutant(
        _DATAPLANE,
        "undo += [step.undo for step in reversed(done) if step.undo is not None]",
        "pass",
        f"{_ON_SERVER}test_a_refused_group_leaves_nothing",
    ),
    "BF Runtime: what cannot be taken back ends the connection": Mutant(
        _DATAPLANE,
        "raise self._client.lose(",
        "str(",
        "targets/bfrt/test_dataplane.py::test_what_cannot_be_taken_back_ends_the_connection",
    ),
    "BF Runtime: a connection that is lost ends calls of other threads": Mutant(
        _CLIENT,
        "                self._stream.cancel()\n            self._channel.close()",
        "                self._stream.cancel()",
        f"{_FAULTS}TestEnd::test_a_lost_stream_ends_a_write_that_hangs",
    ),
    "BF Runtime: Ctrl-C ends calls": Mutant(
        _CLIENT,
        "if ended is not None:",
        "if False:",
        f"{_FAULTS}TestEnd::test_during_an_installation",
    ),
    "BF Runtime: a program that is refused in part is none": Mutant(
        "p4reduce_targets.p4runtime.service",
        "self._running = None  # what",
        "pass  # what",
        "targets/p4runtime/test_server.py::test_a_data_plane_that_is_lost_at_its_start_leaves_none",
    ),
    "BF Runtime: a direct counter takes a value by a flag": Mutant(
        _DATAPLANE, "reset_stats = True", "reset_stats = False", f"{_ON_SERVER}test_direct_counters"
    ),
    "BF Runtime: a meter of packets has no kilobits": Mutant(
        _DATAPLANE, "elif in_packets:", "elif False:", f"{_ON_SERVER}test_meters"
    ),
    "BF Runtime: a group goes before its nodes": Mutant(
        _DATAPLANE,
        "steps += [_Step(node(delete, one, old[one]), node(insert, one, old[one])) for one in removed]",
        "steps[:0] = [_Step(node(delete, one, old[one]), node(insert, one, old[one])) for one in removed]",
        "targets/bfrt/test_dataplane.py::test_a_group_is_removed_before_its_nodes",
    ),
    "BF Runtime: a link that is up": Mutant(
        "p4reduce_targets.bfrt.ports",
        'return "UP" if _values',
        'return "UP" if not _values',
        "targets/bfrt/test_ports.py::test_adds_and_enables_ports",
    ),
    "BF Runtime: another build is another program": Mutant(
        "p4reduce_targets.bfrt.device_config",
        "return (one.p4_name, one.bfruntime_info,",
        "return True or (one.p4_name, one.bfruntime_info,",
        "targets/bfrt/test_device_config.py",
    ),
}

_SCENARIOS = "simulation/test_simulation.py::test_many_scenarios"
IN_PYTHON |= {
    "simulation: a job is fenced before its slots are free": Mutant(
        "p4reduce_controller.fabric.rollout",
        'fenced = await self._repeat(switch, "fencing it", lambda: switch.fence(placement))',
        "fenced = True",
        _SCENARIOS,
    ),
    "simulation: slots are free when no switch has the job": Mutant(
        "p4reduce_controller.fabric.rollout",
        "        forgotten = await asyncio.gather(*[self._remove_from(*one) for one in self._placements()])\n"
        "        if all(forgotten):\n",
        "        self.progress.freed(self.job)\n"
        "        await asyncio.gather(*[self._remove_from(*one) for one in self._placements()])\n"
        "        if False:\n",
        _SCENARIOS,
    ),
    "simulation: a lease is trusted until it ends": Mutant(
        _LEASE, "late = self._clock() - self._valid_until", "late = self._clock() - self._valid_until - 1.0", _SCENARIOS
    ),
    "simulation: every rank is told of an abort": Mutant(
        _LIFECYCLE,
        "            self.tell(member.session, last_words(member), last=True)",
        "            if state is not State.ABORTED or member.rank > 0:\n"
        "                self.tell(member.session, last_words(member), last=True)",
        _SCENARIOS,
    ),
}
"""The planted faults that `tests/simulation` must find by itself; the fifth is in C."""

IN_C = {
    "pace: a mark counts once in a round trip": Mutant(
        "protocol/pace.c",
        "began_at >= pace->reduced_at && ",
        "",
        "fastpath/test_differential.py::test_same_pace[marks]",
    ),
    "worker: generation": Mutant(
        "protocol/worker.c",
        "else if (packet.header.generation != worker->membership.generation)",
        "else if (false)",
        _WORKER,
    ),
    "worker: secret of an ABORT": Mutant(
        "protocol/worker.c",
        " && packet_abort_secret(&packet) == worker->membership.abort_secret",
        "",
        _WORKER,
    ),
    "worker: round": Mutant(
        "protocol/worker.c",
        "!slot_in_network(slot) || packet->header.seq != seq)",
        "!slot_in_network(slot))",
        _WORKER,
    ),
    "worker: a rank that is ahead repeats the round before": Mutant(
        "protocol/worker.c",
        "slot->repeating = rounds[i] != slot->seq;",
        "slot->repeating = false;",
        "protocol/test_rewinding.py",
    ),
    "codec: length": Mutant(
        "protocol/packet.c",
        "length == layout->bare_length + lanes_in(header->present) * layout->lane_length;",
        "true;",
        _WORKER,
    ),
    "worker: fingerprint": Mutant(
        "protocol/worker.c",
        "else if (packet->header.fingerprint != slot_outgoing_fingerprint(slot))",
        "else if (false)",
        _WORKER,
    ),
}

IN_NATIVE = {
    "a half remembers marks": Mutant(
        "aggregate.c",
        "aggregation->marked = half->marked |= data->marked;",
        "aggregation->marked = data->marked;",
        "dataplane/test_marks.py::test_later_answers_of_a_marked_round[native]",
    ),
    "simulation: a duplicate is not counted": Mutant(
        "slots.h",
        "if ((half->bitmap & data->worker_bit) == 0)",
        "if (half->bitmap != data->full_bitmap)",
        _SCENARIOS,
    ),
}
"""Faults of the native switch."""


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.where, str(mutant.file))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self._mutant.source(), self.path, "exec")


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self._mutant.where:
            return None
        return importlib.util.spec_from_file_location(name, self._mutant.file, loader=_Loader(self._mutant))


if name := os.environ.get("P4REDUCE_MUTANT"):
    assert IN_PYTHON[name].where not in sys.modules
    sys.meta_path.insert(0, _Finder(IN_PYTHON[name]))  # type: ignore[arg-type]
