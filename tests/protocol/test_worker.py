# SPDX-License-Identifier: Apache-2.0
"""One worker, packet by packet."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, UnsupportedDtype
from p4reduce.protocol import Membership, Operation, Timing, Worker
from p4reduce.protocol.constants import NO_KEY, NOBODY, Op
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.job_errors import REASONS
from p4reduce.protocol.packet import NO_VALUES, Codec, Packet
from tests.support.protocol.worker_pair import new_worker

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.usefixtures("each_worker")]

SECRET = 0x0123456789ABCDEF
M = Membership(
    job=5, generation=9, rank=1, world_size=3, slots=2, lanes=2, block_size=2, first_seq=100, abort_secret=SECRET
)
CODEC = Codec(M.lanes, M.block_size)
BEFORE, RTO = 0.0, Timing().initial


def key(number: int, exponent: int) -> int:
    return number << 8 | 255 - exponent


def sent(worker: Worker) -> list[Packet]:
    return [CODEC.decode(payload) for payload in worker.take_packets()]


def answer(packet: Packet, op: Op, **changes: object) -> bytes:
    """Return a packet that the switch makes of a worker's packet."""
    fields = {"op": op, "present": 0, "values": NO_VALUES} | changes
    return CODEC.encode(dataclasses.replace(packet, **fields))  # type: ignore[arg-type]


def abort(packet: Packet, secret: int = SECRET, **changes: object) -> bytes:
    """Return the abort that the controller sends to ranks of the packet's job."""
    return answer(packet, Op.ABORT, slot=0, seq=secret >> 32, fingerprint=secret & 0xFFFFFFFF, **changes)


def result(packet: Packet, keys: list[int], sums: list[list[int]] | None = None, **changes: object) -> bytes:
    values = np.array(sums, np.int32) if sums else NO_VALUES
    return answer(packet, Op.RESULT, keys=keys, present=packet.active, values=values, **changes)


def started(data: npt.NDArray[np.float32] | None = None) -> tuple[Worker, Operation, list[Packet]]:
    worker = new_worker(M)
    operation = Operation(np.array([1, 2, 0, 0, 0, 0, 0, -4], np.float32) if data is None else data)
    worker.submit(operation, BEFORE)
    return worker, operation, sent(worker)


def test_announcement() -> None:
    _, _, packets = started()
    common = {"op": Op.DATA, "job": 5, "generation": 9, "worker": 1, "seq": 100, "active": 0, "present": 0}
    for packet in packets:
        assert {name: getattr(packet, name) for name in common} == common
        assert packet.fingerprint == fingerprint(0, "float32", "sum", 8)
    assert [packet.slot for packet in packets] == [0, 2]
    assert [list(packet.keys) for packet in packets] == [[key(0, 128), NO_KEY], [NO_KEY, key(0, 129)]]


def test_rounds() -> None:
    worker, operation, (first, second) = started()
    done: list[Operation] = []
    operation.on_done = done.append
    # Another rank has lane 1 of slot 0 too, and a larger exponent in lane 0.
    worker.receive(result(first, [key(0, 130), key(0, 127)]), 0.001)
    (packet,) = sent(worker)
    assert (packet.slot, packet.seq, packet.active, packet.present) == (1, 101, 0b11, 0b01)
    assert list(packet.keys) == [NO_KEY, NO_KEY]
    quantum = 2.0 ** (130 - 126 + 2 - 30)  # 3 ranks: two bits of headroom
    np.testing.assert_array_equal(packet.values * quantum, [[1, 2]])

    worker.receive(result(packet, [NO_KEY, NO_KEY], [[8, 16], [-(2**24), 0]]), 0.002)
    assert sent(worker) == []
    assert not operation.done
    worker.receive(result(second, [NO_KEY, key(0, 129)]), 0.002)
    (packet,) = sent(worker)
    assert (packet.slot, packet.seq, packet.active, packet.present) == (3, 101, 0b10, 0b10)
    worker.receive(result(packet, [NO_KEY, NO_KEY], [[0, 2**28]]), 0.003)
    assert done == [operation]
    assert operation.done
    assert operation.error is None
    lane_1 = 2.0 ** (127 - 126 + 2 - 30)
    assert operation.data.tolist() == [8 * quantum, 16 * quantum, -(2**24) * lane_1, 0, 0, 0, 0, 2**28 * quantum / 2]
    assert worker.idle
    assert worker.next_deadline() is None
    assert worker.stats.blocks_sent == 2
    assert worker.stats.blocks_skipped == 2
    assert worker.stats.blocks_received == 3
    assert worker.stats.rounds == 4


@pytest.mark.parametrize(
    ("block_size", "present"),
    [(32, 0b0100), (64, 0b0101), (128, 0b0111), (256, 0b1111)],  # 4, 2, 1 and no lanes may be absent
)
def test_absent_lanes_are_filled_to_give_the_switch_room(block_size: int, present: int) -> None:
    membership = dataclasses.replace(M, slots=1, lanes=4, block_size=block_size)
    codec = Codec(4, block_size)
    worker = new_worker(membership)
    data = np.zeros(4 * block_size, np.float32)
    data[2 * block_size] = 1
    worker.submit(Operation(data), BEFORE)
    (payload,) = worker.take_packets()
    all_lanes = [key(0, exponent) for exponent in (255, 126, 127, 140)]
    worker.receive(codec.encode(dataclasses.replace(codec.decode(payload), op=Op.RESULT, keys=all_lanes)), 0.001)
    (payload,) = worker.take_packets()
    packet = codec.decode(payload)
    assert packet.present == present
    assert packet.active == 0b1111
    assert np.count_nonzero(packet.values) == 1
    assert packet.values[(present & 0b11).bit_count(), 0] == 2**27
    assert worker.stats.blocks_sent == 1
    assert worker.stats.blocks_filled == present.bit_count() - 1


def test_next_operation_follows_in_the_same_slot() -> None:
    worker, _, (first, second) = started(np.zeros(8, np.float32))
    worker.submit(Operation(np.zeros(8, np.int32), reduce_op="max"), BEFORE)
    assert sent(worker) == []
    worker.receive(result(second, [NO_KEY, NO_KEY]), 0.001)
    (packet,) = sent(worker)
    assert (packet.slot, packet.seq, packet.fingerprint) == (3, 101, fingerprint(1, "int32", "max", 8))
    worker.receive(result(first, [NO_KEY, NO_KEY]), 0.001)
    (packet,) = sent(worker)
    assert (packet.slot, packet.seq) == (1, 101)


def test_on_done_may_submit() -> None:
    worker, operation, packets = started(np.zeros(8, np.float32))
    following = Operation(np.zeros(0, np.float32))
    operation.on_done = lambda _: worker.submit(following, 0.001)
    for packet in packets:
        worker.receive(result(packet, [NO_KEY, NO_KEY]), 0.001)
    (packet,) = sent(worker)
    worker.receive(result(packet, [NO_KEY, NO_KEY]), 0.002)
    assert following.done


def test_retransmission_is_the_same_bytes() -> None:
    worker = new_worker(M)
    worker.submit(Operation(np.ones(8, np.float32)), BEFORE)
    packets = worker.take_packets()
    assert worker.next_deadline() == RTO
    worker.tick(RTO * 0.99)
    assert worker.take_packets() == []
    worker.tick(RTO)
    assert worker.take_packets() == packets
    assert worker.next_deadline() == RTO + 2 * RTO
    assert worker.stats.retransmissions == 2


def test_duplicates_and_the_past_change_nothing() -> None:
    worker, operation, (first, _) = started()
    response = result(first, [key(0, 130), NO_KEY])
    worker.receive(response, 0.001)
    (second,) = sent(worker)
    before = operation.data.copy()
    for late in (
        response,
        answer(first, Op.STATUS, keys=[1, 0]),
        result(first, [key(0, 140), NO_KEY]),
        result(second, [NO_KEY, NO_KEY], [[1, 1]], seq=second.seq + 2),
        result(second, [NO_KEY, NO_KEY], [[1, 1]], generation=8),
        answer(second, Op.ERROR, generation=8),
        abort(second, generation=8),
    ):
        worker.receive(late, 0.002)
    assert worker.stats.stale == 7
    assert sent(worker) == []
    assert worker.failure is None
    np.testing.assert_array_equal(operation.data, before)
    assert worker.awaited() == ()


def test_foreign_packets_are_counted() -> None:
    worker, operation, (first, second) = started()
    response = result(first, [key(0, 130), NO_KEY])
    for payload in (
        b"",
        b"\x12" * 100,
        response + b"\0",
        result(first, [key(0, 130), NO_KEY], job=6),
        result(first, [key(0, 130), NO_KEY], slot=1),  # the wrong half
        result(first, [key(0, 130), NO_KEY], slot=4),  # no such slot
        result(first, [key(0, 130), NO_KEY], fingerprint=1),
        result(first, [key(0, 127), NO_KEY]),  # larger than what this rank announced
        result(first, [NO_KEY, NO_KEY]),
        result(first, [key(0, 130), key(2, 127)]),  # no such block
        result(second, [NO_KEY, key(0, 129)], active=0b11),
        CODEC.encode(first),  # DATA, HELLO, RESET and QUERY are not for workers
        answer(first, Op.HELLO),
        answer(first, Op.RESET),
        answer(first, Op.QUERY),
    ):
        foreign = worker.stats.foreign
        worker.receive(payload, 0.001)
        assert worker.stats.foreign == foreign + 1
    assert sent(worker) == []
    assert worker.stats.rounds == 0
    assert not operation.done
    worker.receive(memoryview(bytearray(response)), 0.001)
    assert worker.stats.rounds == 1


def test_results_do_not_go_back() -> None:
    """A block that was reduced, or a lane that is finished, does not come again."""
    worker, operation, (first, _) = started(np.ones(16, np.float32))
    worker.receive(result(first, [key(0, 127), NO_KEY - 256]), 0.001)  # lane 1: a block that nobody can have
    assert worker.stats.foreign == 1
    worker.receive(result(first, [key(0, 127), key(0, 127)]), 0.001)
    (second,) = sent(worker)
    for keys in ([key(0, 254), key(1, 127)], [key(1, 127), key(0, 127)]):
        worker.receive(result(second, keys, [[1, 1], [1, 1]]), 0.002)
    assert worker.stats.foreign == 3
    worker.receive(result(second, [key(1, 127), key(1, 127)], [[1, 1], [1, 1]]), 0.002)
    (third,) = sent(worker)
    assert third.seq == second.seq + 1
    assert not operation.done


def test_status() -> None:
    worker, _, (first, second) = started()
    worker.receive(answer(first, Op.STATUS, keys=[0b010, 0]), 0.001)
    assert worker.awaited() == (0, 2)
    worker.receive(answer(second, Op.STATUS, keys=[0b011, 0]), 0.001)
    assert worker.awaited() == (0, 2)
    worker.receive(answer(first, Op.STATUS, keys=[0b110, 0]), 0.001)
    assert worker.awaited() == (0, 2)
    worker.receive(answer(second, Op.STATUS, keys=[0b110, 0]), 0.001)
    assert worker.awaited() == (0,)
    assert worker.stats.statuses == 4
    worker.receive(result(first, [NO_KEY, NO_KEY]), 0.002)
    worker.receive(result(first, [key(0, 128), NO_KEY]), 0.002)
    worker.receive(result(second, [NO_KEY, key(0, 129)]), 0.002)
    assert worker.awaited() == ()


def test_status_ends_the_back_off() -> None:
    """It proves that the path is alive, so the wait need not be that of a dead one."""
    timing = Timing(initial=0.02, ceiling=100.0, poll=0.1)
    worker = new_worker(M, timing=timing)
    worker.submit(Operation(np.ones(1, np.float32)), BEFORE)
    (first,) = sent(worker)
    now = BEFORE
    while now < 10:
        deadline = worker.next_deadline()
        assert deadline is not None
        now = deadline
        worker.tick(now)
    assert worker.next_deadline() > now + 10  # type: ignore[operator]
    worker.receive(answer(first, Op.STATUS, keys=[0b010, 0]), now)
    assert worker.next_deadline() == pytest.approx(now + timing.poll)


def resend(worker: Worker) -> float:
    """Return the time at which the worker retransmits something."""
    for _ in range(2):  # the first time may be that of a round which is over
        deadline = worker.next_deadline()
        assert deadline is not None
        worker.tick(deadline)
        if worker.take_packets():
            return deadline
    raise AssertionError("nothing was sent")


OWN, OTHER = M.rank, M.rank + 1


@pytest.mark.parametrize(
    ("answered", "timeout"),
    [
        ([(0.001, OWN), (0.003, OWN)], (0.001 + 0.001 / 8) + 4 * (0.0005 + 0.0005 / 4)),
        ([(0.010, OWN)], 0.010 + 4 * 0.005),
        ([(1e-9, OWN)], Timing().margin + 1e-9),
        ([(0.500, OTHER)], 2 * RTO),  # sent again: not measured, and the back-off is kept
        ([(0.500, OTHER), (0.530, OTHER)], 2 * RTO),  # within the longer timeout: the path may be longer
        ([(0.500, OTHER), (0.510, OWN)], 0.010 + 4 * 0.005),  # until it is known
        ([(0.019, OTHER)], 0.019 + 4 * 0.0095),  # less than was thought
        ([(0.010, OWN), (0.029, OTHER)], 0.010 + 4 * 0.005),  # more, but it waited for another rank
    ],
)
def test_only_clear_round_trips_are_measured(answered: list[tuple[float, int]], timeout: float) -> None:
    worker = new_worker(dataclasses.replace(M, slots=1))
    worker.submit(Operation(np.ones(100, np.float32)), BEFORE)
    for now, last in answered:
        (packet,) = sent(worker)
        worker.tick(now - 0.001)
        worker.take_packets()
        sums = [[0, 0]] * packet.active.bit_count()
        worker.receive(result(packet, list(packet.keys), sums, worker=last), now)
    worker.take_packets()
    assert resend(worker) - answered[-1][0] == pytest.approx(timeout)


def test_the_answer_to_a_question_is_measured() -> None:
    worker = new_worker(dataclasses.replace(M, slots=1))
    worker.submit(Operation(np.ones(100, np.float32)), BEFORE)
    (packet,) = sent(worker)
    asked = resend(worker)
    worker.receive(answer(packet, Op.STATUS, keys=[1 << OWN, 0]), asked + 0.004)
    worker.receive(result(packet, list(packet.keys), worker=OTHER), asked + 0.1)
    worker.take_packets()
    assert resend(worker) - (asked + 0.1) == pytest.approx(0.004 + 4 * 0.002)


@pytest.mark.parametrize(
    ("who", "reason", "said"),
    [
        (2, 3, "rank 2 has left it (while others stayed)"),
        (1, 1, "this rank, 1, has left it (its process or its connection is gone, or it has failed)"),
        (
            NOBODY,
            5,
            "the controller has ended it, and no rank is to blame (a switch has lost the job's state)",
        ),
    ],
)
def test_abort(who: int, reason: int, said: str) -> None:
    worker, operation, (first, _) = started()
    waiting = Operation(np.ones(3, np.float32))
    worker.submit(waiting, BEFORE)
    worker.receive(abort(first, worker=who, keys=[reason, 0]), 0.001)
    assert isinstance(worker.failure, JobAborted)
    assert worker.failure.rank == (who if who != NOBODY else None)
    assert str(worker.failure) == f"job 5 was aborted: {said}"
    assert operation.error is waiting.error is worker.failure
    assert operation.done
    assert waiting.done
    assert worker.idle
    assert worker.next_deadline() is None
    worker.receive(result(first, [key(0, 130), NO_KEY]), 0.002)
    worker.tick(100.0)
    assert sent(worker) == []


def test_every_reason_of_an_abort_has_words() -> None:
    """A reason that only a later controller knows is given by its number."""
    for reason in pb.AbortReason.values():
        worker, _, (first, _) = started()
        worker.receive(abort(first, worker=NOBODY, keys=[reason, 0]), 0.001)
        assert (f"reason {reason}" in str(worker.failure)) == (reason == pb.ABORT_REASON_UNSPECIFIED)
    assert set(REASONS) == set(pb.AbortReason.values()) - {pb.ABORT_REASON_UNSPECIFIED}


@pytest.mark.parametrize("secret", [0, SECRET ^ 1, SECRET ^ 1 << 63])
def test_an_abort_without_the_jobs_secret_is_only_counted(secret: int) -> None:
    worker, operation, (first, _) = started()
    worker.receive(abort(first, secret, worker=2, keys=[1, 0]), 0.001)
    assert worker.failure is None
    assert not operation.done
    assert (worker.stats.foreign, worker.stats.stale) == (1, 0)
    worker.receive(abort(first, worker=2, keys=[1, 0]), 0.002)
    assert isinstance(worker.failure, JobAborted)


def test_ranks_that_disagree_go_on_telling() -> None:
    """Packets that differ make the switch send ERROR, which another rank may have lost."""
    worker, operation, packets = started()
    first = packets[0]
    worker.receive(answer(first, Op.ERROR, worker=1, fingerprint=7, keys=[first.fingerprint, 0]), 0.001)
    assert isinstance(operation.error, MismatchError)
    for _ in range(3):
        deadline = worker.next_deadline()
        assert deadline is not None
        worker.tick(deadline)
        assert sent(worker) == packets


@pytest.mark.parametrize("where", [{"seq": 3}, {"seq": 2**31}, {"slot": 0xFFFE}, {"fingerprint": 7}])
def test_an_error_counts_for_whatever_round(where: dict[str, int]) -> None:
    """Ranks that disagree may be in different slots and rounds."""
    worker, operation, (first, _) = started()
    worker.receive(answer(first, Op.ERROR, worker=1, keys=[8, 0], **where), 0.001)
    assert isinstance(operation.error, MismatchError)


def test_fail() -> None:
    worker, operation, _ = started()
    timeout = CollectiveTimeout("too late", awaited=[0])
    worker.fail(timeout)
    worker.fail(ValueError("the first failure stays"))
    assert operation.error is worker.failure is timeout
    assert worker.next_deadline() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 4097}, "world_size is 4097: accepted are 1 to 4096"),
        ({"world_size": 0}, "world_size is 0: accepted are 1 to 4096"),
        ({"world_size": 33}, "33 of 33 ranks are at one switch: accepted are up to 32"),
        ({"world_size": 33, "peers": tuple(range(32))}, "32 of 33 ranks are at one switch: accepted are up to 31"),
        ({"peers": (0, 2)}, r"peers are \(0, 2\): accepted are ranks of 3, 1 among them"),
        ({"peers": (1, 3)}, r"peers are \(1, 3\)"),
        ({"peers": (0, 1, 1)}, r"peers are \(0, 1, 1\)"),
        ({"rank": 3}, "rank is 3: accepted are 0 to 2"),
        ({"slots": 0}, "slots is 0: accepted are 1 to 32768"),
        ({"lanes": 9}, "lanes is 9: accepted are 1 to 8"),
        ({"first_seq": 3}, "first_seq is 3: accepted are even numbers"),
        ({"generation": 65536}, "generation is 65536: accepted are 0 to 65535"),
    ],
)
def test_senseless_memberships(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(M, **changes)


def test_operations_refuse_what_they_cannot_reduce() -> None:
    with pytest.raises(
        UnsupportedDtype, match="data has dtype float64: supported are native float32, int32, float16, and"
    ):
        Operation(np.ones(3))
    with pytest.raises(UnsupportedDtype, match="data has dtype >f4"):
        Operation(np.ones(3, ">f4"))
    with pytest.raises(ValueError, match=r"data has shape \(3, 2\)"):
        Operation(np.ones((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"strides \(8,\)"):
        Operation(np.ones(6, np.float32)[::2])
    with pytest.raises(ValueError, match="zeros='kept': accepted are skipped, first, sent"):
        Operation(np.ones(3, np.float32), zeros="kept")  # type: ignore[arg-type]
    fixed = np.ones(3, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="writable False"):
        Operation(fixed)
    with pytest.raises(ValueError, match="divisor=2 of int32, whose sums are not divided: accepted is 1"):
        Operation(np.ones(3, np.int32), divisor=2)
    with pytest.raises(ValueError, match=r"residual has dtype float32 and shape .*, for float32 data"):
        Operation(np.ones(3, np.float16), residual=np.zeros(3, np.float32))


def test_too_large_a_tensor_is_refused_and_harms_nothing() -> None:
    membership = dataclasses.replace(M, slots=1, lanes=1, block_size=1)
    worker = new_worker(membership)
    with pytest.raises(ValueError, match="16777217 in each of 1 streams: accepted are up to 16777216"):
        worker.submit(Operation(np.zeros((1 << 24) + 1, np.int32)), BEFORE)
    assert worker.idle
    assert worker.take_packets() == []


def test_a_packet_without_an_answer() -> None:
    """A packet that was sent once does not count, because it may be held back. A STATUS is an answer."""
    worker, _, (first, second) = started()
    timeout = 3.0
    assert worker.unanswered(100.0, timeout) is None
    now = BEFORE
    while now < 2.0:
        now += 0.01
        worker.tick(now)
        worker.take_packets()
    assert worker.unanswered(2.9, timeout) is None
    assert worker.unanswered(3.1, timeout) == first.slot
    worker.receive(answer(first, Op.STATUS, keys=[0b011, 0]), 3.1)
    assert worker.unanswered(3.2, timeout) == second.slot
    worker.receive(answer(second, Op.STATUS, keys=[0b011, 0]), 3.2)
    assert worker.unanswered(6.0, timeout) is None
    assert worker.unanswered(6.15, timeout) == first.slot
    worker.receive(result(first, [key(0, 130), NO_KEY]), 6.2)
    assert worker.unanswered(6.25, timeout) == second.slot
    while now < 10.0:
        now += 0.01
        worker.tick(now)
        worker.take_packets()
    worker.receive(result(second, [NO_KEY, key(0, 129)]), 10.0)
    assert worker.unanswered(10.0, timeout) == first.slot + 1  # its next round, in the other half


def test_rounds_that_no_rank_can_be_in() -> None:
    worker, _, (first, _) = started()
    assert not any(worker.is_impossible(0, seq) for seq in (98, 99, 100, 101, 101 + 2**31, 2**32 - 1))
    assert all(worker.is_impossible(half, seq) for half in (0, 1, 2) for seq in (102, 103, 99 + 2**31, 100 + 2**31))
    assert not worker.is_impossible(4, 102)  # the job has two slots
    worker.receive(result(first, [key(0, 130), NO_KEY]), 0.001)
    assert not worker.is_impossible(0, 102)
    assert worker.is_impossible(0, 103)
    assert worker.is_impossible(2, 102)


@pytest.mark.parametrize(
    "options", [{"margin": 0.0}, {"margin": 0.5, "initial": 0.1}, {"initial": 2.0}, {"poll": 5.0}, {"poll": 1e-6}]
)
def test_senseless_timing(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling"):
        Timing(**options)
