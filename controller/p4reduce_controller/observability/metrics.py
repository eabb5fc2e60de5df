# SPDX-License-Identifier: Apache-2.0
"""What monitoring sees, in Prometheus's terms. What is of a job is told while it lives, and of a bounded number of
ranks. A job's label is `job_name`, as `job` is Prometheus's own for what it scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import State
from p4reduce_controller.observability.watch import View, live
from p4reduce_controller.switches.aggregator import DOWN
from p4reduce_controller.switches.availability import SwitchState

_JOB = ["tenant", "job_name"]
MOST_RANKS = 2048  # that have series of their own


class Metrics(Collector):
    """Of what was seen last."""

    def __init__(self, view: Callable[[], View | None]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is None:
            return
        status = view.status
        yield from _of_switches(status.switches)
        yield from _of_ports(view)
        yield from _of_jobs(status)
        yield from _of_ranks(live(status))
        yield from _of_tenants(status.tenants)
        yield CounterMetricFamily("p4reduce_joins", "Ranks that have joined", status.joins)
        yield CounterMetricFamily("p4reduce_jobs_started", "Jobs begun", status.jobs_started)
        yield CounterMetricFamily("p4reduce_jobs_finished", "Jobs that all ranks left", status.jobs_finished)
        yield CounterMetricFamily("p4reduce_jobs_aborted", "Jobs that were aborted", status.jobs_aborted)


def _of_switches(switches: Iterable[pb.Switch]) -> Iterator[Metric]:
    connected = GaugeMetricFamily("p4reduce_switch_connected", "1 while P4Runtime is connected", labels=["switch"])
    slots = GaugeMetricFamily("p4reduce_slots", "Slots of the switch", labels=["switch"])
    used = GaugeMetricFamily("p4reduce_slots_used", "Slots that jobs hold", labels=["switch"])
    outcomes = CounterMetricFamily(
        "p4reduce_packets", "Packets to the aggregator, by outcome", labels=["switch", "outcome"]
    )
    states = GaugeMetricFamily(
        "p4reduce_switch_state", "1 for the state that the switch is in, 0 for the others", labels=["switch", "state"]
    )
    draining = GaugeMetricFamily(
        "p4reduce_switch_draining",
        "1 while an operator drains the switch",
        labels=["switch"],
    )
    losses = CounterMetricFamily(
        "p4reduce_simulated_losses", "Packets dropped on purpose", labels=["switch", "port", "direction"]
    )
    errors = CounterMetricFamily(
        "p4reduce_switch_rpc_errors", "Calls to the switch that failed, by gRPC's code", labels=["switch", "code"]
    )
    drops = CounterMetricFamily(
        "p4reduce_cpu_drops",
        "Packets between the switch's CPU port and the controller that were dropped",
        labels=["switch", "reason"],
    )
    up = GaugeMetricFamily(
        "p4reduce_port_up", "1 while the port is up, as the switch reports", labels=["switch", "port"]
    )
    for switch in switches:
        name = switch.address
        for port in switch.ports:
            up.add_metric([name, str(port.number)], int(port.state not in DOWN))
        connected.add_metric([name], int(switch.connected))
        for state in SwitchState:
            states.add_metric([name, state.value], int(state.value == switch.state))
        draining.add_metric([name], int(switch.draining or switch.leaving))
        slots.add_metric([name], switch.slots)
        used.add_metric([name], switch.slots_used)
        for outcome, count in sorted(switch.outcomes.items()):
            outcomes.add_metric([name, outcome], count)
        for loss in switch.losses:
            losses.add_metric([name, str(loss.port), pb.Direction.Name(loss.direction).lower()], loss.lost)
        for code, count in sorted(switch.rpc_errors.items()):
            errors.add_metric([name, code], count)
        drops.add_metric([name, "hello_limited"], switch.outcomes.get("hello_limited", 0))
        for reason, count in sorted(switch.cpu_drops.items()):
            drops.add_metric([name, reason], count)
    yield from (connected, states, draining, slots, used, outcomes, losses, errors, drops, up)


def _of_ports(view: View) -> Iterator[Metric]:
    """As ranks behind them have counted; of several threads' or aggregators' ports, evenly."""
    labels = ["switch", "port", "direction"]
    sent = CounterMetricFamily("p4reduce_port_bytes", "UDP payloads of the ranks behind a port", labels=labels)
    packets = CounterMetricFamily("p4reduce_port_packets", "Packets of the ranks behind a port", labels=labels)
    again = CounterMetricFamily(
        "p4reduce_port_retransmissions", "Packets that the ranks behind a port sent again", labels=labels[:2]
    )
    addresses = {switch.number: switch.address for switch in view.status.switches}
    for (number, port), traffic in sorted(view.ports.items()):
        if number in addresses:
            at = [addresses[number], str(port)]
            sent.add_metric([*at, "in"], traffic.bytes_in)
            sent.add_metric([*at, "out"], traffic.bytes_out)
            packets.add_metric([*at, "in"], traffic.packets_in)
            packets.add_metric([*at, "out"], traffic.packets_out)
            again.add_metric(at, traffic.retransmissions)
    yield from (sent, packets, again)


def _of_jobs(status: pb.StatusReply) -> Iterator[Metric]:
    states = GaugeMetricFamily("p4reduce_jobs", "Jobs that hold slots, by state", labels=["state"])
    for state in State:
        states.add_metric([state.value], sum(job.state == state.value for job in status.jobs))
    yield states
    yield GaugeMetricFamily(
        "p4reduce_ranks", "Ranks that are members of jobs", sum(len(j.members) for j in status.jobs)
    )
    queues = GaugeMetricFamily("p4reduce_queue_length", "Jobs that wait, by what they wait for", labels=["queue"])
    for queue, state in (("ranks", State.GATHERING), ("switches", State.INSTALLING)):
        queues.add_metric([queue], sum(job.state == state.value for job in status.jobs))
    queues.add_metric(["slots"], len(status.queue))
    yield queues
    ranks = GaugeMetricFamily("p4reduce_job_ranks", "Ranks of the job that have joined", labels=_JOB)
    slots = GaugeMetricFamily("p4reduce_job_slots", "Slots of the job", labels=_JOB)
    age = GaugeMetricFamily("p4reduce_job_age_seconds", "Time since the first rank joined", labels=_JOB)
    slow = GaugeMetricFamily("p4reduce_job_stragglers", "Ranks that others wait for", labels=_JOB)
    ways = [*_JOB, "switch"]
    packets = CounterMetricFamily("p4reduce_job_packets", "Packets of the job, as the switch counts them", labels=ways)
    sent = CounterMetricFamily("p4reduce_job_bytes", "Bytes of the job, as the switch counts them", labels=ways)
    for job in live(status):
        which = [job.tenant, job.name]
        for one in job.traffic:
            at = [*which, status.switches[one.switch].address]
            packets.add_metric(at, one.packets)
            sent.add_metric(at, one.bytes)
        ranks.add_metric(which, len(job.members))
        slots.add_metric(which, job.slots)
        age.add_metric(which, job.age_s)
        slow.add_metric(which, len(job.stragglers))
    yield from (ranks, slots, age, slow, packets, sent)


def _of_ranks(jobs: Iterable[pb.Job]) -> Iterator[Metric]:
    labels = [*_JOB, "rank"]
    ways = [*labels, "direction"]
    sent = CounterMetricFamily("p4reduce_rank_bytes", "UDP payloads of the rank", labels=ways)
    packets = CounterMetricFamily("p4reduce_rank_packets", "Packets of the rank", labels=ways)
    counts = {
        name: CounterMetricFamily(f"p4reduce_rank_{name}", text, labels=labels)
        for name, text in (
            ("retransmissions", "Packets that the rank sent again"),
            ("rounds", "Rounds whose result the rank has"),
            ("operations", "Collectives that the rank completed"),
        )
    }
    busy = CounterMetricFamily(
        "p4reduce_rank_busy_seconds", "Time with at least one collective under way", labels=labels
    )
    awaiting = CounterMetricFamily(
        "p4reduce_rank_awaiting_seconds", "Time that the rank waited for ranks that came later", labels=labels
    )
    lease = GaugeMetricFamily("p4reduce_lease_age_seconds", "Time since the rank's last message", labels=labels)
    left_out = 0
    for number, (job, member) in enumerate((one, member) for one in jobs for member in one.members):
        if number >= MOST_RANKS:
            left_out += 1
            continue
        who = [job.tenant, job.name, str(member.rank)]
        lease.add_metric(who, member.heard_s)
        if member.HasField("report"):
            report = member.report
            sent.add_metric([*who, "sent"], report.bytes_sent)
            sent.add_metric([*who, "received"], report.bytes_received)
            packets.add_metric([*who, "sent"], report.packets_sent)
            packets.add_metric([*who, "received"], report.packets_received)
            busy.add_metric(who, report.busy_s)
            awaiting.add_metric(who, member.awaiting_s)
            for name, family in counts.items():
                family.add_metric(who, getattr(report, name))
    yield from (sent, packets, *counts.values(), busy, awaiting, lease)
    yield GaugeMetricFamily(
        "p4reduce_ranks_left_out", "Ranks without series of their own, because there are too many", left_out
    )


def _of_tenants(tenants: Iterable[pb.Tenant]) -> Iterator[Metric]:
    """Where the controller has users."""
    labels = ["tenant"]
    jobs = GaugeMetricFamily("p4reduce_tenant_jobs", "Jobs of the tenant", labels=labels)
    slots = GaugeMetricFamily("p4reduce_tenant_slots", "Slots that the tenant's jobs ask for", labels=labels)
    most = GaugeMetricFamily("p4reduce_tenant_slots_limit", "Slots that the tenant may have", labels=labels)
    reserved = GaugeMetricFamily(
        "p4reduce_tenant_slots_reserved", "Slots that are reserved for the tenant now", labels=labels
    )
    hours = GaugeMetricFamily("p4reduce_tenant_slot_hours", "Slot-hours used this month", labels=labels)
    refusals = CounterMetricFamily(
        "p4reduce_tenant_refusals", "Requests of the tenant that were refused", labels=labels
    )
    for tenant in tenants:
        if not tenant.name:
            continue
        jobs.add_metric([tenant.name], tenant.jobs)
        slots.add_metric([tenant.name], tenant.slots)
        if tenant.HasField("most_slots"):
            most.add_metric([tenant.name], tenant.most_slots)
        reserved.add_metric([tenant.name], tenant.reserved_slots)
        hours.add_metric([tenant.name], tenant.slot_hours)
        refusals.add_metric([tenant.name], tenant.refusals)
    yield from (jobs, slots, most, reserved, hours, refusals)
