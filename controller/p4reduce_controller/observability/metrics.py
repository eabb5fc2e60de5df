# SPDX-License-Identifier: Apache-2.0
"""The metrics for Prometheus.

Series of a job exist while it lives, and those of ranks only for a limited number. The label of a job is `job_name`,
because Prometheus uses `job` for the scraped target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import State
from p4reduce_controller.observability.watch import View, live
from p4reduce_controller.switches.aggregator import DOWN
from p4reduce_controller.switches.availability import SwitchState

_Sample = tuple[Sequence[str], float]  # values of the labels, and the measured value
_JOB = ["tenant", "job_name"]
MOST_RANKS = 2048  # that have series of their own


class Metrics(Collector):
    """A collector of the latest view."""

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


def _family(
    make: Callable[..., Any], name: str, text: str, labels: Sequence[str], samples: Iterable[_Sample]
) -> Metric:
    family = make(f"p4reduce_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return cast(Metric, family)


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _of_switches(switches: Iterable[pb.Switch]) -> Iterator[Metric]:
    each = [([switch.address], switch) for switch in switches]
    one = ["switch"]
    connected = ((at, int(switch.connected)) for at, switch in each)
    yield _gauge("switch_connected", "1 while P4Runtime is connected", one, connected)
    states = (([*at, one.value], int(one.value == switch.state)) for at, switch in each for one in SwitchState)
    text = "1 for the state that the switch is in, 0 for the others"
    yield _gauge("switch_state", text, ["switch", "state"], states)
    draining = ((at, int(switch.draining or switch.leaving)) for at, switch in each)
    yield _gauge("switch_draining", "1 while an operator drains the switch", one, draining)
    yield _gauge("slots", "Slots of the switch", one, ((at, switch.slots) for at, switch in each))
    yield _gauge("slots_used", "Slots that jobs hold", one, ((at, switch.slots_used) for at, switch in each))
    outcomes = (([*at, outcome], n) for at, switch in each for outcome, n in sorted(switch.outcomes.items()))
    yield _counter("packets", "Packets to the aggregator, by outcome", ["switch", "outcome"], outcomes)
    losses = (
        ([*at, str(loss.port), pb.Direction.Name(loss.direction).lower()], loss.lost)
        for at, switch in each
        for loss in switch.losses
    )
    yield _counter("simulated_losses", "Packets dropped on purpose", ["switch", "port", "direction"], losses)
    errors = (([*at, code], n) for at, switch in each for code, n in sorted(switch.rpc_errors.items()))
    text = "Calls to the switch that failed, by gRPC's code"
    yield _counter("switch_rpc_errors", text, ["switch", "code"], errors)
    drops = (
        ([*at, reason], n)
        for at, switch in each
        for reason, n in [
            ("hello_limited", switch.outcomes.get("hello_limited", 0)),
            *sorted(switch.cpu_drops.items()),
        ]
    )
    text = "Packets between the switch's CPU port and the controller that were dropped"
    yield _counter("cpu_drops", text, ["switch", "reason"], drops)
    up = (([*at, str(port.number)], int(port.state not in DOWN)) for at, switch in each for port in switch.ports)
    yield _gauge("port_up", "1 while the port is up, as the switch reports", ["switch", "port"], up)


def _of_ports(view: View) -> Iterator[Metric]:
    """Yield the traffic that ranks behind each port report; of several ports of a rank, each gets an equal part."""
    addresses = {switch.number: switch.address for switch in view.status.switches}
    each = [
        ([addresses[number], str(port)], traffic)
        for (number, port), traffic in sorted(view.ports.items())
        if number in addresses
    ]
    labels = ["switch", "port", "direction"]
    sent = _both_ways(each, ("in", "bytes_in"), ("out", "bytes_out"))
    yield _counter("port_bytes", "UDP payloads of the ranks behind a port", labels, sent)
    packets = _both_ways(each, ("in", "packets_in"), ("out", "packets_out"))
    yield _counter("port_packets", "Packets of the ranks behind a port", labels, packets)
    again = ((at, traffic.retransmissions) for at, traffic in each)
    yield _counter("port_retransmissions", "Packets that the ranks behind a port sent again", labels[:2], again)


def _both_ways(each: Iterable[tuple[list[str], Any]], *ways: tuple[str, str]) -> Iterator[_Sample]:
    """Yield a sample per direction. `ways`: names of directions, and the attribute with the count of each."""
    return (([*at, way], getattr(counts, attribute)) for at, counts in each for way, attribute in ways)


def _of_jobs(status: pb.StatusReply) -> Iterator[Metric]:
    count = Counter(job.state for job in status.jobs)
    states = (([state.value], count[state.value]) for state in State)
    yield _gauge("jobs", "Jobs that hold slots, by state", ["state"], states)
    yield _gauge("ranks", "Ranks that are members of jobs", (), [((), sum(len(job.members) for job in status.jobs))])
    waiting = {
        "ranks": count[State.GATHERING.value],
        "switches": count[State.INSTALLING.value],
        "slots": len(status.queue),
    }
    queues = (([queue], length) for queue, length in waiting.items())
    yield _gauge("queue_length", "Jobs that wait, by what they wait for", ["queue"], queues)
    each = [([job.tenant, job.name], job) for job in live(status)]
    joined = ((which, len(job.members)) for which, job in each)
    yield _gauge("job_ranks", "Ranks of the job that have joined", _JOB, joined)
    yield _gauge("job_slots", "Slots of the job", _JOB, ((which, job.slots) for which, job in each))
    age = ((which, job.age_s) for which, job in each)
    yield _gauge("job_age_seconds", "Time since the first rank joined", _JOB, age)
    slow = ((which, len(job.stragglers)) for which, job in each)
    yield _gauge("job_stragglers", "Ranks that others wait for", _JOB, slow)
    ways = [*_JOB, "switch"]
    traffic = [([*which, status.switches[one.switch].address], one) for which, job in each for one in job.traffic]
    packets = ((at, one.packets) for at, one in traffic)
    yield _counter("job_packets", "Packets of the job, as the switch counts them", ways, packets)
    sent = ((at, one.bytes) for at, one in traffic)
    yield _counter("job_bytes", "Bytes of the job, as the switch counts them", ways, sent)


def _of_ranks(jobs: Iterable[pb.Job]) -> Iterator[Metric]:
    labels = [*_JOB, "rank"]
    every = [([job.tenant, job.name, str(member.rank)], member) for job in jobs for member in job.members]
    shown = every[:MOST_RANKS]
    reporting = [(who, member) for who, member in shown if member.HasField("report")]
    reports = [(who, member.report) for who, member in reporting]
    ways = [*labels, "direction"]
    sent = _both_ways(reports, ("sent", "bytes_sent"), ("received", "bytes_received"))
    yield _counter("rank_bytes", "UDP payloads of the rank", ways, sent)
    packets = _both_ways(reports, ("sent", "packets_sent"), ("received", "packets_received"))
    yield _counter("rank_packets", "Packets of the rank", ways, packets)
    for name, text in (
        ("retransmissions", "Packets that the rank sent again"),
        ("rounds", "Rounds whose result the rank has"),
        ("operations", "Collectives that the rank completed"),
    ):
        yield _counter(f"rank_{name}", text, labels, [(who, getattr(report, name)) for who, report in reports])
    busy = ((who, report.busy_s) for who, report in reports)
    yield _counter("rank_busy_seconds", "Time with at least one collective under way", labels, busy)
    awaiting = ((who, member.awaiting_s) for who, member in reporting)
    yield _counter("rank_awaiting_seconds", "Time that the rank waited for ranks that came later", labels, awaiting)
    lease = ((who, member.heard_s) for who, member in shown)
    yield _gauge("lease_age_seconds", "Time since the rank's last message", labels, lease)
    text = "Ranks without series of their own, because there are too many"
    yield _gauge("ranks_left_out", text, (), [((), len(every) - len(shown))])


def _of_tenants(tenants: Iterable[pb.Tenant]) -> Iterator[Metric]:
    """Yield the series of tenants, if the controller has users."""
    each = [([tenant.name], tenant) for tenant in tenants if tenant.name]
    for make, name, text, attribute in (
        (_gauge, "jobs", "Jobs of the tenant", "jobs"),
        (_gauge, "slots", "Slots that the tenant's jobs ask for", "slots"),
        (_gauge, "slots_limit", "Slots that the tenant may have", "most_slots"),
        (_gauge, "slots_reserved", "Slots that are reserved for the tenant now", "reserved_slots"),
        (_gauge, "slot_hours", "Slot-hours used this month", "slot_hours"),
        (_counter, "refusals", "Requests of the tenant that were refused", "refusals"),
    ):
        unlimited = attribute == "most_slots"
        samples = ((who, getattr(one, attribute)) for who, one in each if not unlimited or one.HasField(attribute))
        yield make(f"tenant_{name}", text, ["tenant"], samples)
