# SPDX-License-Identifier: Apache-2.0
"""Traces of packets whose story is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import NO_KEY
from p4reduce.protocol.packet import Codec
from p4reduce.trace.frames import Header
from p4reduce.trace.model import load, save
from p4reduce.trace.rounds import trace_of
from p4reduce.trace.summary import summarise
from tests.support.trace_packets import address, data, key, result, status, trace


def test_who_comes_last_was_awaited() -> None:
    made = trace(data(0, 0), data(0.1, 1), data(30, 2), *(result(30.1, to, 2) for to in range(3)))
    (one,) = made.rounds
    assert one.last == 2
    assert one.awaited == (100.0, 30000.0)
    summary = summarise(made)
    assert summary.stragglers == ["worker 2"]
    assert summary.workers[2].awaited_s == pytest.approx(0.0299)
    assert (
        "worker 2 is a straggler: the others waited for it during 99% of the 30.1 ms with rounds under way, 29.9 ms."
    ) in summary.said


def test_slots_that_wait_side_by_side_count_once() -> None:
    packets = [one for slot in range(4) for one in (
        data(0, 0, slot=slot), data(20, 1, slot=slot), result(20.1, 0, 1, slot=slot), result(20.1, 1, 1, slot=slot),
    )]  # fmt: skip
    assert summarise(trace(*packets)).workers[1].awaited_s == pytest.approx(0.02)


def test_who_comes_a_little_later_was_not_awaited() -> None:
    made = trace(data(0, 0), data(0.4, 1), result(0.6, 0, 1), result(0.6, 1, 1))
    assert made.rounds[0].awaited is None
    assert summarise(made).stragglers == []


BOTH = (data(0, 0), data(0.1, 1))
DONE = (result(0.2, 0, 1), result(0.2, 1, 1))
LATE = (data(30, 1), result(30.1, 0, 1), result(30.1, 1, 1))


@pytest.mark.parametrize(
    ("packets", "found"),
    [
        pytest.param((*BOTH, data(5, 1), result(5.1, 0, 1), result(5.1, 1, 1)), [(1, "lost")], id="completes it"),
        pytest.param((*BOTH, DONE[0], data(5, 1), result(5.1, 1, 1)), [(1, "answer")], id="the others have results"),
        pytest.param((*BOTH, *DONE, data(9, 1), result(9.1, 1, 1)), [(1, "answer")], id="lost behind the capture"),
        pytest.param((*BOTH, *DONE, data(0.25, 1), result(0.3, 1, 1)), [(1, "asked")], id="crosses its answer"),
        pytest.param((*BOTH, data(0.15, 1), *DONE, result(0.25, 1, 1)), [(1, "asked")], id="both are answered"),
        pytest.param((BOTH[0], data(5, 0), status(5.1, 0), *LATE), [(0, "asked")], id="told that others are awaited"),
        pytest.param(
            (BOTH[0], data(5, 0), data(9, 0), status(9.1, 0), *LATE), [(0, "lost"), (0, "asked")], id="lost, then asks"
        ),
        pytest.param((BOTH[0], data(5, 0), result(5.1, 0, 0)), [(0, "lost")], id="one rank heard, which completed it"),
        pytest.param((BOTH[0], data(5, 0), result(5.1, 0, 1)), [(0, "asked")], id="one rank heard, another did"),
    ],
)
def test_why_a_packet_is_sent_again(packets: tuple[Header, ...], found: list[tuple[int, str]]) -> None:
    (one,) = trace(*packets).rounds
    assert [(again.worker, again.kind) for again in one.again] == found


def test_its_loss_is_no_lateness() -> None:
    made = trace(data(0, 1), data(0.1, 0), data(5, 1), result(5.1, 0, 1), result(5.1, 1, 1))
    assert made.rounds[0].awaited is None


def test_blocks_between_those_that_results_name_were_skipped() -> None:
    first = (key(2), key(0), NO_KEY, NO_KEY)
    then = (key(9), NO_KEY, NO_KEY, NO_KEY)
    made = trace(
        data(0, 0), result(0.1, 0, 0, keys=first),
        data(0.2, 0, seq=3, active=3, present=1), result(0.3, 0, 0, seq=3, active=3, keys=then),
        data(0.4, 0, seq=4, active=1, present=1), result(0.5, 0, 0, seq=4, active=1),
    )  # fmt: skip
    assert [(one.blocks, one.skipped) for one in made.rounds] == [([], 0), ([2, 0], 2), ([9], 6)]
    summary = summarise(made)
    # Block 9 of lane 0 is the tensor's 37th, of which three were carried.
    assert (summary.carried, summary.skipped, summary.workers[0].left_out) == (3, 34, 1)
    assert any("3 blocks carried, at least 34 skipped" in text and "91.89 %." in text for text in summary.said)


def test_a_round_without_a_result_is_unfinished() -> None:
    made = trace(data(0, 0), data(8, 0))
    assert not made.rounds[0].complete
    assert "1 round without a result in the trace." in summarise(made).said


def test_who_has_not_come_when_the_trace_ends_was_awaited_until_then() -> None:
    first = [data(0, 0), data(0.1, 1), data(0.2, 2), *(result(0.3, to, 2) for to in range(3))]
    stalled = [data(1, 0, seq=3), data(1.1, 2, seq=3), *(data(at, 0, seq=3) for at in (100, 900))]
    made = trace(*first, *stalled)
    assert (made.rounds[1].missing, made.rounds[1].awaited, made.rounds[1].end) == ([1], (1100.0, 900000.0), 900000.0)
    summary = summarise(made)
    assert (summary.stragglers, summary.awaited_last) == (["worker 1"], ["worker 1"])
    assert "When the trace ended, the others had waited for worker 1 for 899 ms." in summary.said
    summary = summarise(trace(*first, *(one for one in stalled if one.worker == 0)))  # two have not come
    assert summary.awaited_last == summary.stragglers == ["worker 1", "worker 2"]


def test_a_short_stand_after_a_long_time_is_told_and_no_slot_that_has_gone_on_waits() -> None:
    packets = [
        data(0, 0),
        data(900, 1),
        result(900.1, 0, 1),
        result(900.1, 1, 1),
        data(901, 0, seq=3),
        data(950, 0, seq=3),
    ]
    summary = summarise(trace(*packets))
    assert summary.awaited_last == ["worker 1"]
    packets += [data(2000, 0, seq=4), data(2000, 1, seq=4), result(2001, 0, 1, seq=4)]
    made = trace(*packets)
    assert (made.rounds[1].end, made.rounds[1].missing) == (950000.0, [])
    assert summarise(made).awaited_last == []


def test_who_is_known_and_has_sent_nothing_is_named() -> None:
    packets = [data(0, 0), data(9, 0), status(9.1, 0)]
    names = {address(0): "rank 0", address(1): "rank 1"}
    summary = summarise(trace_of(packets, Codec(), names=names))
    assert summary.silent == ["rank 1"]
    assert any(text.startswith("rank 1 has sent nothing in this trace") for text in summary.said)
    assert not any(text.startswith("Nobody") for text in summary.said)
    counted = status(9.1, 0)._replace(keys=(0b101, 0, 0, 0))  # the switch has counted worker 2
    assert summarise(trace(*packets[:2], counted)).silent == ["worker 1", "worker 2"]
    assert summarise(trace(*packets, data(10, 1), result(10.1, 0, 1))).silent == []
    further = data(9.2, 1)._replace(source=(address(1)[0], 50000))  # another thread of rank 1
    assert summarise(trace_of([*packets, further], Codec(), names=names)).silent == []


@pytest.mark.parametrize(
    ("kind", "left_out", "count", "said"),
    [
        ("missed", 1234, 1234, "1,234 packets came faster than they could be recorded: stragglers, losses"),
        # Packets of another job do not count.
        (
            "cut",
            {(7, 3): 12, (9, 1): 100, None: 3},
            15,
            "15 packets cut before the end of the header: stragglers, losses",
        ),
    ],
)
def test_where_packets_are_left_out_nothing_is_said_that_may_be_wrong(
    kind: str, left_out: Any, count: int, said: str
) -> None:
    packets = [data(0, 0), data(5, 0), data(30, 1), result(30.1, 0, 1), result(30.1, 1, 1), data(31, 0, seq=3)]
    assert summarise(trace_of(packets, Codec())).lost == 1
    made = trace_of(packets, Codec(), **{kind: left_out})
    assert not any(one.again or one.awaited or one.missing for one in made.rounds)
    summary = summarise(made)
    assert summary.said[0].startswith(said)
    assert kind == "missed" or summary.said[0].endswith("not known; capture whole packets (tcpdump -s 0).")
    assert summary.said[1].startswith("At least 1 operation of 2 rounds")
    assert not any(word in text for text in summary.said[1:] for word in ("straggler", "lost", "result", "again"))
    told = summary.as_dict()
    assert told[kind] == count
    for key_ in ("lost", "loss", "asked", "unfinished", "stragglers", "awaited_last"):
        assert told[key_] is None
    assert {one["lost"] for one in told["workers"]} == {one["awaited_s"] for one in told["workers"]} == {None}


def test_no_block_is_skipped_where_the_result_before_was_missed() -> None:
    def packets(*missed: int) -> list[Header]:
        made = []
        for seq in range(2, 8):
            keys = (key(seq - 2) if seq < 7 else NO_KEY, NO_KEY, NO_KEY, NO_KEY)
            active = 0 if seq == 2 else 1
            if seq not in missed:
                made += [data(seq, 0, seq=seq, active=active, present=active)]
                made += [result(seq + 0.1, 0, 0, seq=seq, active=active, keys=keys)]
        return made

    assert [one.blocks for one in trace(*packets()).rounds] == [[], [0], [1], [2], [3], [4]]
    made = trace(*packets(4, 5))
    assert [(one.blocks, one.skipped) for one in made.rounds] == [([], 0), ([0], 0), ([], 0), ([4], 0)]


def test_one_job_is_shown_and_the_others_are_named() -> None:
    other = [one._replace(job=9) for one in (data(0, 0), data(1, 1), data(2, 2))]
    packets = sorted([data(0, 0), result(0.1, 0, 0), *other])
    assert (trace_of(packets, Codec()).job, trace_of(packets, Codec(), job=[7]).job) == (9, 7)
    assert trace_of(packets, Codec(), job=[7]).notes == ["job 9, generation 3: 3 packets, not shown"]
    with pytest.raises(
        P4ReduceError, match="no DATA or RESULT packet of job 8 was captured; there are packets of 7, 9"
    ):
        trace_of(packets, Codec(), job=[8])


def test_workers_have_names_and_addresses() -> None:
    made = trace_of([data(0, 0), data(0, 1), result(1, 0, 1)], Codec(), names={address(1): "rank 5"})
    assert [(one.name, one.address) for one in made.workers] == [("worker 0", "10.0.0.1"), ("rank 5", address(1)[0])]


def test_a_trace_is_the_same_from_its_file(tmp_path: Path) -> None:
    made = trace(data(0, 0), data(30, 1, present=0), data(35, 1), result(35.1, 0, 1), result(35.1, 1, 1))
    save(made, tmp_path / "one.trace.json")
    assert load(tmp_path / "one.trace.json") == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "neither a capture nor a trace"),
        ("nothing", "neither a capture nor a trace"),
        ('{"p4reduce_trace": 9}', "this trace has another version: accepted is 1"),
        ("[]", "neither a capture nor a trace"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(P4ReduceError, match=says):
        load(tmp_path / "one.json")


def test_a_jobs_threads_are_told_apart() -> None:
    """Each thread has slots from 0 on, under a number of its own, and sends from a port of its own."""

    def of_second(one: Header) -> Header:
        source, destination = ((ip, port + 1000 * (port != 31314)) for ip, port in (one.source, one.destination))
        return one._replace(job=9, generation=5, source=source, destination=destination)

    first = [data(0, 0), data(1, 1), result(2, 0, 1), result(2, 1, 1)]
    second = [of_second(one) for one in (data(0.5, 0), data(7, 1), result(8, 0, 1), result(8, 1, 1))]
    packets = sorted(first + second)
    both = trace_of(packets, Codec(), job=[7, 9], names={address(0): "rank 0", address(1): "rank 1"})
    assert (both.job, both.packets, both.notes) == (7, 8, [])
    assert both.slots == ["slot 0, thread 0", "slot 0, thread 1"]
    assert [(one.slot, one.complete, len(one.parts)) for one in both.rounds] == [(0, True, 2), (1, True, 2)]
    assert [one.name for one in both.workers] == ["rank 0", "rank 1"]
    assert both.rounds[1].awaited is not None
    assert not both.silent
    assert trace_of(first, Codec(), job=[7, 9]).slots == ["slot 0, thread 0"]


def test_blocks_of_streams_that_name_none_are_skipped_up_to_the_farthest_that_is_named() -> None:
    """One of many blocks is not zero, the sixth of lane 2 in slot 1, so all streams before it are as long."""
    found = (NO_KEY, NO_KEY, key(5), NO_KEY)
    packets = [data(0, 0), result(0.1, 0, 0), data(0, 0, slot=1), result(0.1, 0, 0, slot=1, keys=found)]
    summary = summarise(trace(*packets))  # which ends before the block is carried
    assert (summary.carried, summary.skipped) == (0, 7 * 5 + 2 - 2)
    packets += [data(0.2, 0, slot=1, seq=3, active=4, present=4), result(0.3, 0, 0, slot=1, seq=3, active=4)]
    summary = summarise(trace(*packets))
    assert (summary.carried, summary.skipped) == (1, 8 * 5)
    assert any("at least 40 skipped because they were zero at all workers, 97.56 %" in text for text in summary.said)


def test_a_share_that_packets_cannot_show_is_not_told() -> None:
    """The first block alone is not zero: how many come after it, no packet says."""
    packets = [data(0, 0), result(0.1, 0, 0, keys=(key(0), NO_KEY, NO_KEY, NO_KEY))]
    packets += [data(0.2, 0, seq=3, active=1, present=1), result(0.3, 0, 0, seq=3, active=1)]
    (said,) = [text for text in summarise(trace(*packets)).said if "skipped" in text]
    assert "%" not in said
    assert "the zero blocks after a tensor's last non-zero block; the ranks' stats() count them" in said


def awaited(*shares_ms: float) -> list[str]:
    """Return the stragglers in a trace of rounds, in each of which the others wait so long for one worker."""
    packets = []
    for number, share in enumerate(shares_ms):
        at, seq = 100.0 * number, number + 2
        packets += [data(at, worker, seq=seq) for worker in range(len(shares_ms)) if worker != number]
        packets += [data(at + share, number, seq=seq)]
        packets += [result(at + share + 0.1, worker, number, seq=seq) for worker in range(len(shares_ms))]
    return summarise(trace(*packets)).stragglers


def test_who_is_awaited_as_long_as_others_is_no_straggler() -> None:
    """Some worker always comes last, so among few each is awaited for a good part of the time."""
    assert awaited(90, 90) == awaited(90, 80, 85) == []
    assert awaited(98, 40, 30) == ["worker 0"]
    assert awaited(98, 98, 3) == ["worker 0", "worker 1"]
    assert awaited(30, 20, 20, 20, 20, 20, 20, 20) == awaited(50, *[8] * 30) == []  # below a fifth of the time
