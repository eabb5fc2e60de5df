# SPDX-License-Identifier: Apache-2.0
"""The reconstruction of rounds from a job's packets: which workers were awaited, and what was lost or skipped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from p4reduce.control.diagnostics import counted
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import MAX_WORKERS, NO_KEY, PARENT, Op
from p4reduce.protocol.packet import Codec
from p4reduce.trace.frames import Address, Header
from p4reduce.trace.model import CAPTURE_WHOLE, Again, Kind, Part, Round, Trace, Worker

LEAST_LATE_US = 1000.0
"""A worker that comes later than the others by less than this was not awaited: packets never come all at once."""

_NO_ROUNDS = (Op.HELLO, Op.RESET, Op.QUERY)

_SlotKey = tuple[str, int, int]  # a switch's address, the index of the job's thread, and a slot there
_Sender = tuple[str, int]  # an address and a worker number


@dataclass
class _Seen:
    """The packets seen of one round. Times are in us."""

    slot_key: _SlotKey
    seq: int
    fingerprint: int
    begin: float
    last_at: float = 0.0
    sends: dict[_Sender, list[float]] = field(default_factory=dict)
    present: dict[_Sender, int] = field(default_factory=dict)
    results: list[tuple[float, Address, int]] = field(default_factory=list)
    statuses: dict[Address, list[float]] = field(default_factory=lambda: defaultdict(list))
    keys: tuple[int, ...] | None = None


def trace_of(
    packets: Sequence[Header],
    codec: Codec,
    cut: Mapping[tuple[int, int] | None, int] | None = None,
    *,
    job: Sequence[int] = (),
    name: str = "",
    names: Mapping[Address, str] | None = None,
    missed: int = 0,
) -> Trace:
    """Return the trace of one job, by default the one with the most packets.

    packets: in order of time. cut: packets without a whole header, by job, as `merge` counts them. job: its number, or
    the numbers of all threads if its ranks have several. name: the job's name. names: the names of all its workers, by
    the source address of their packets. missed: packets that could not be recorded.
    Raises P4ReduceError if there is no round.
    """
    counts = Counter((one.job, one.generation) for one in packets if one.op in (Op.DATA, Op.RESULT))
    by_number = [[one for one in counts if one[0] == number] for number in job] or [list(counts)]
    chosen = [max(some, key=lambda one: counts[one]) for some in by_number if some]
    cut = cut or {}
    if not chosen:
        of = f" of job {job[0]}" if job else ""
        others = f"; there are packets of {', '.join(sorted({str(one[0]) for one in counts}))}" if counts else ""
        if lost := sum(cut.values()):
            others += f"; {counted(lost, 'packet')} cut before the end of the header: {CAPTURE_WHOLE}"
        raise P4ReduceError(f"no DATA or RESULT packet{of} was captured{others}")
    own = [one for one in packets if (one.job, one.generation) in chosen and one.op not in _NO_ROUNDS]
    trace = Trace(*chosen[0], own[0].time / 1e9, name, codec.lanes, codec.block_size, packets=len(own), missed=missed)
    trace.cut = cut.get(None, 0) + sum(cut.get(one, 0) for one in chosen)
    trace.notes = [
        f"job {number}, generation {generation}: {count} packets, not shown"
        for (number, generation), count in counts.most_common()
        if (number, generation) not in chosen
    ]
    threads = {number: job.index(number) for number, _ in chosen} if len(job) > 1 else {}
    _Reading(trace, own, names or {}, threads).into_trace()
    return trace


class _Reading:
    """The state while the packets of one job are read."""

    def __init__(
        self, trace: Trace, packets: Sequence[Header], names: Mapping[Address, str], threads: Mapping[int, int]
    ) -> None:
        """Read all packets. threads: the threads' indices by job number, if there are several threads."""
        self.trace = trace
        self.threads = threads
        self.began = packets[0].time
        self.until = round((packets[-1].time - self.began) / 1000, 1)
        self.senders: dict[Address, _Sender] = {}  # the sender at each address
        self.seen: dict[tuple[_SlotKey, int], _Seen] = {}
        self.known: defaultdict[str, set[int]] = defaultdict(set)  # the workers that each switch's packets name
        self.last_seq: dict[_SlotKey, int] = {}  # the seq of each slot's last round
        self.names = names
        for one in packets:
            self._take(one)

    def _take(self, one: Header) -> None:
        at = round((one.time - self.began) / 1000, 1)
        if one.op == Op.DATA:
            self.senders[one.source] = sender = (one.source[0], one.worker)
            seen = self._round(one, one.destination[0], at)
            seen.sends.setdefault(sender, []).append(at)
            seen.present[sender] = one.present
        elif one.op == Op.RESULT:
            seen = self._round(one, one.source[0], at)
            seen.results.append((at, one.destination, one.worker))
            self.known[one.source[0]].add(one.worker)
            seen.keys = one.keys
        elif one.op == Op.STATUS:
            self._round(one, one.source[0], at).statuses[one.destination].append(at)
            self.known[one.source[0]] |= {number for number in range(MAX_WORKERS) if one.keys[0] >> number & 1}
        elif one.op == Op.ERROR:
            self._note(f"at {at / 1e3:.1f} ms, ERROR in slot {one.slot >> 1}: workers call different collectives")
        elif one.op == Op.ABORT:
            self._note(f"at {at / 1e3:.1f} ms, ABORT: the job has ended")

    def _note(self, text: str) -> None:
        if len(self.trace.notes) < 20 and text not in self.trace.notes:
            self.trace.notes.append(text)

    def _round(self, one: Header, switch: str, at: float) -> _Seen:
        slot_key = (switch, self.threads.get(one.job, 0), one.slot >> 1)
        seen = self.seen.get((slot_key, one.seq))
        if seen is None:
            seen = self.seen[slot_key, one.seq] = _Seen(slot_key, one.seq, one.fingerprint, at)
            self.last_seq[slot_key] = one.seq
        seen.last_at = at
        return seen

    def into_trace(self) -> None:
        senders = sorted({*self.senders.values()}, key=lambda one: (one[1], one[0]))
        slot_keys = sorted({seen.slot_key for seen in self.seen.values()})
        switches = {switch for switch, _, _ in slot_keys}
        twice = Counter(number for _, number in senders)
        named = {self.senders[address]: name for address, name in self.names.items() if address in self.senders}
        self.trace.workers = [
            Worker(
                named.get((address, number)) or f"worker {number}" + (f" ({address})" if twice[number] > 1 else ""),
                number,
                address,
            )
            for address, number in senders
        ]
        self.trace.slots = [
            (f"slot {slot}" if len(switches) == 1 else f"{switch} slot {slot}")
            + (f", thread {thread}" if self.threads else "")
            for switch, thread, slot in slot_keys
        ]
        self.index = {sender: index for index, sender in enumerate(senders)}
        slots = {slot_key: index for index, slot_key in enumerate(slot_keys)}
        self.reaction = self._reaction()
        self.several = len({to for seen in self.seen.values() for _, to, _ in seen.results}) > 1
        self.at: dict[str, set[_Sender]] = {}  # the senders to each switch
        for seen in self.seen.values():
            if seen.sends:
                self.at.setdefault(seen.slot_key[0], set()).update(seen.sends)
        rounds = [self._made(seen, slots[seen.slot_key]) for seen in self.seen.values() if seen.sends or seen.results]
        rounds.sort(key=lambda one: (one.begin, one.slot))
        self._blocks(rounds)
        _forgive(rounds)
        if self.trace.is_incomplete:
            for one in rounds:
                one.awaited, one.again, one.missing = None, [], []
        self.trace.rounds = rounds
        self.trace.silent = self._silent()

    def _silent(self) -> list[str]:
        """Return the workers that are known to belong to the job but have no packet in the trace."""
        if self.names:
            named = {self.senders[address] for address in self.names if address in self.senders}
            unnamed = {address for address, _ in {*self.senders.values()} - named}  # more threads of some worker
            heard = {name for address, name in self.names.items() if address in self.senders or address[0] in unnamed}
            return sorted({*self.names.values()} - heard)
        silent = []
        for switch in sorted(self.known.keys() | self.at):
            numbers = {number for _, number in self.at.get(switch, ())}
            most = max((one for one in self.known[switch] | numbers if one < PARENT), default=-1)
            at = f" of {switch}" if len(self.at) > 1 else ""
            silent += [f"worker {number}{at}" for number in range(most + 1) if number not in numbers]
        return silent

    def _made(self, seen: _Seen, slot: int) -> Round:
        complete = bool(seen.results)
        stuck = not complete and self.last_seq[seen.slot_key] == seen.seq
        end = min(at for at, _, _ in seen.results) if complete else self.until if stuck else seen.last_at
        made = Round(
            slot, seen.seq, seen.fingerprint >> 8, min(seen.begin, end), end, complete, seen.fingerprint & 0xFF
        )
        made.parts = [Part(self.index[sender], times[0], seen.present[sender]) for sender, times in seen.sends.items()]
        for sender, times in seen.sends.items():
            made.again += [Again(self.index[sender], at, kind) for at, kind in self._again(seen, sender, times[1:])]
        if complete:
            made.last = self._last(seen)
            made.awaited = _awaited(seen, made, self.index)
        elif stuck and seen.sends:
            made.missing = sorted(self.index[sender] for sender in self.at[seen.slot_key[0]] - seen.sends.keys())
            if made.missing:
                made.awaited = (max(times[0] for times in seen.sends.values()), end)
        return made

    def _last(self, seen: _Seen) -> int | None:
        """Return the worker whose packet completed the round, by its first RESULT; None if it is at another switch."""
        _, _, number = min(seen.results)
        if number >= MAX_WORKERS:
            return None
        here = [sender for sender in seen.sends if sender[1] == number] or [
            sender for sender in self.index if sender[1] == number
        ]
        return self.index[here[0]] if here else None

    def _again(self, seen: _Seen, sender: _Sender, times: Sequence[float]) -> list[tuple[float, Kind]]:
        """Return the reasons why packets were sent again at these times.

        Until the round ends, the switch adds one packet of a worker, and answers each copy with a STATUS. A copy that
        comes after the end gets the RESULT. So the number of lost packets is the number that have no answer.
        """
        if not times:
            return []
        end = min((at for at, _, _ in seen.results), default=float("inf"))
        mine = [address for address, one in self.senders.items() if one == sender]
        own = [at for at, destination, _ in seen.results if destination in mine]
        before, after = [at for at in times if at <= end], [at for at in times if at > end]
        answered = sum(len(seen.statuses.get(address, ())) for address in mine) + max(0, len(own) - 1 - len(after))
        lost = max(0, len(before) - answered)
        if not self.several and seen.results and min(seen.results)[2] != sender[1]:
            lost = 0  # only this worker was captured, and another worker was late
        kinds: list[tuple[float, Kind]] = [(at, "lost" if index < lost else "asked") for index, at in enumerate(before)]
        for at in after:
            had = max((one for one in own if one < at), default=None)
            kinds.append((at, "asked" if had is not None and at - had < self.reaction else "answer"))
        return kinds

    def _reaction(self) -> float:
        """Return the time in us after a RESULT in which its receiver must have sent its next packet.

        Both times are those at the point of the capture.
        """
        times = []
        for (slot_key, seq), seen in self.seen.items():
            later = self.seen.get((slot_key, (seq + 1) % 2**32))
            for at, destination, _ in seen.results if later is not None else ():
                sent = later.sends.get(self.senders.get(destination, ("", -1))) if later is not None else None
                if sent and sent[0] > at:
                    times.append(sent[0] - at)
        return max(LEAST_LATE_US, 4 * median(times)) if times else LEAST_LATE_US

    def _blocks(self, rounds: Iterable[Round]) -> None:
        """Set the blocks of rounds: the RESULT of the round before names them, if the trace has it."""
        before: dict[tuple[int, int], tuple[tuple[int, ...], list[int | None]]] = {}
        seen = {(one.slot_key, one.seq): one for one in self.seen.values()}
        slot_keys = sorted({slot_key for slot_key, _ in seen})
        for one in sorted(rounds, key=lambda one: (one.slot, one.begin)):
            keys, numbers = before.get((one.slot, one.operation), ((), []))
            former = seen.get((slot_keys[one.slot], (one.seq - 1) % 2**32))
            if former is None or former.keys is None:
                keys, numbers = (), []
            lanes = [lane for lane in range(self.trace.lanes) if one.active >> lane & 1]
            now = [*numbers] or [
                None if one.active else -1
            ] * self.trace.lanes  # an announcement stands before them all
            if keys:
                for lane in lanes:
                    if keys[lane] != NO_KEY:
                        one.blocks.append(keys[lane] >> 8)
                        reached, now[lane] = now[lane], keys[lane] >> 8
                        one.skipped += 0 if reached is None else max(0, (keys[lane] >> 8) - reached - 1)
            found = seen[slot_keys[one.slot], one.seq].keys
            if found is not None:
                before[one.slot, one.operation] = (found, now)
        self.trace.ended = _ended(before)


def _ended(
    reached: Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int | None]]],
) -> int:
    """Count blocks in streams that have ended, up to the farthest block that their operation names in any stream.

    All streams of an operation have the same number of blocks, or one less. So these blocks are zero at all workers.
    reached: by slot and operation, the keys of the last RESULT, and each lane's block then (None: not known).
    """
    farthest: dict[int, int] = {}
    for (_, operation), (keys, numbers) in reached.items():
        named = [key >> 8 for key in keys if key != NO_KEY] + [number for number in numbers if number is not None]
        farthest[operation] = max([farthest.get(operation, 0), *named])
    return sum(
        max(0, farthest[operation] - number - 1)
        for (_, operation), (keys, numbers) in reached.items()
        for key, number in zip(keys, numbers, strict=True)
        if key == NO_KEY and number is not None
    )


def _awaited(seen: _Seen, made: Round, index: Mapping[_Sender, int]) -> tuple[float, float] | None:
    """Return the time from when all others had sent until the last worker had.

    It ends with the round if the last worker's packet was not captured.
    """
    others = [times[0] for sender, times in seen.sends.items() if index[sender] != made.last]
    own = [times[0] for sender, times in seen.sends.items() if index[sender] == made.last]
    if not others or (made.last is None and not own):
        return None
    since, until = max(others), min(own) if own else made.end
    return (since, until) if until > since else None


def _forgive(rounds: Sequence[Round]) -> None:
    """Clear waits that are short compared with the time that packets travel: that worker was not late."""
    travelled = [one.end - max(part.at for part in one.parts) for one in rounds if one.complete and one.parts]
    least = max(LEAST_LATE_US, 2 * median(travelled)) if travelled else LEAST_LATE_US
    for one in rounds:
        if one.awaited is not None and one.awaited[1] - one.awaited[0] < least:
            one.awaited, one.missing = None, []
