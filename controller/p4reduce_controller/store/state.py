# SPDX-License-Identifier: Apache-2.0
"""The state that a restarted controller needs about running jobs, in a file that only its owner can read.

It contains the jobs that are ready. Everything else is in the switches, and ranks come back by themselves: see
docs/protocol.md, section 6.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar, cast

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.deadlines import LONGEST_REJOIN_TIME
from p4reduce_controller.jobs.job import Job, Member, Move, State
from p4reduce_controller.jobs.numbers import GENERATIONS
from p4reduce_controller.store.state_names import (
    Setup,
    StateError,
    children_from_json,
    children_to_json,
    format_index,
    from_version_3,
    parse_index,
    site_from_json,
    site_to_json,
)
from p4reduce_controller.switches.aggregator import Children, Heard
from p4reduce_controller.switches.frames import Endpoint, format_mac, parse_mac
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.switches.site import GONE, Site

log = logging.getLogger(__name__)

VERSION = 4
PREVIOUS_VERSION = 3  # can be read too

T = TypeVar("T")


class StateFile:
    """The `store.Store` of a single controller: a file that it locks for as long as it lives.

    A file of another version, a file about other switches and a damaged file are refused, and not changed.
    """

    shared = False
    maybe_lost_leadership = None

    def __init__(self, path: Path) -> None:
        """Lock the file. Raise StateError if another controller has it, or if it cannot be created."""
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = open(os.open(f"{path}.lock", flags, 0o600))  # noqa: SIM115 - until `close`
        except OSError as error:
            raise StateError(f"--state {path}: cannot open {path}.lock: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StateError(f"--state {path}: another controller uses it; give each a file of its own") from None
        self._setup: Setup
        self.use: dict[str, Any] = {}
        self.queue: list[Any] = []
        self.fabric: dict[str, Any] = {}

    def close(self) -> None:
        self._lock.close()

    def peek(self) -> None:
        try:
            text = self._read()
        except FileNotFoundError:
            return
        try:
            _, _, self.fabric = rest_of(json.loads(text))
        except (StateError, ValueError, RecursionError) as error:
            raise self.refusal(str(error)) from None

    def load(self, setup: Setup, now: float) -> tuple[list[Job], Children]:
        """Return the jobs, with all ranks away, and where switches with a parent were heard by it. Raises StateError.

        `setup`: is used for later saves too.
        `now`: seconds on the clock of the jobs.
        """
        self._setup = setup
        try:
            text = self._read()
        except FileNotFoundError:
            self.save([], {}, now)
            return [], {}
        try:
            kept = json.loads(text)
            found = state_from_json(kept, self._setup, now)
            self.use, self.queue, self.fabric = rest_of(kept)
            return found
        except (StateError, ValueError, RecursionError) as error:
            raise self.refusal(str(error)) from None

    def refusal(self, why: str) -> StateError:
        return StateError(f"--state {self.path}: {why}; remove the file to start without its jobs, which then end")

    async def is_ours(self) -> bool:
        return True

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Children, now: float) -> None:
        self.save(jobs(), children, now)

    def save(self, jobs: Iterable[Job], children: Children, now: float) -> None:
        """Replace the whole file, on the disk. Raises StateError; then the file is unchanged."""
        rest = {"use": self.use, "queue": self.queue, "fabric": self.fabric}
        root = state_to_json(jobs, children, self._setup, now) | rest
        new = f"{self.path}.new"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(new, flags, 0o600), "w") as file:
                os.fchmod(file.fileno(), 0o600)
                json.dump(root, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.replace(new, self.path)
                self._sync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StateError(f"--state {self.path} cannot be written: {error.strerror}") from None

    def _sync(self, folder: int) -> None:
        """Sync the directory. If that fails, the file is replaced all the same, unless the machine stops."""
        try:
            os.fsync(folder)
        except OSError as error:
            log.warning("--state %s: a power failure may destroy it: %s", self.path, error.strerror)

    def _read(self) -> str:
        try:
            with self.path.open() as file:
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise self.refusal("other users may access it (its mode must be 0600)")
                return file.read()
        except FileNotFoundError:
            raise
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"--state {self.path} cannot be read: {error}") from None


def state_to_json(jobs: Iterable[Job], children: Children, setup: Setup, now: float) -> dict[str, Any]:
    """Return the state as JSON values. Switches are identified by name."""
    return {
        "version": VERSION,
        "children": {label: _heard_to_json(heard) for label, heard in children_to_json(children, setup.site()).items()},
        "jobs": [_job_to_json(job, setup, now) for job in jobs],
    }


def state_from_json(kept: object, setup: Setup, now: float) -> tuple[list[Job], Children]:
    """Return the jobs and children that `state_to_json` has written. Raises StateError or ValueError."""
    version = check_version(kept)
    root = _Part("the state", kept)
    if not root.parts("jobs"):
        return [], {}
    if version == PREVIOUS_VERSION:
        root = _Part("the state", from_version_3(kept, setup))
    heard = children_from_json(root.get("children", dict), setup.site())
    children = {pair: _heard_from_json(_Part("child", one)) for pair, one in heard.items()}
    return [_job_from_json(part, setup, now) for part in root.parts("jobs")], children


def rest_of(kept: object) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Return the rest of the state, from `Tenancy`, `AdmissionQueue` and `Changes`. Raises StateError.

    It is the usage of tenants, the jobs in the queue, and the changes by operators. States of earlier releases lack
    some.
    """
    root = _Part("the state", kept)
    return root.get("use", dict, {}), root.get("queue", list, []), root.get("fabric", dict, {})


def check_version(kept: object) -> int:
    """Return the version. Raise StateError if `state_from_json` cannot read it."""
    version = _Part("the state", kept).get("version", int)
    if version not in (PREVIOUS_VERSION, VERSION):
        raise StateError(
            f"it has version {version}, but this controller reads versions {PREVIOUS_VERSION} and {VERSION}"
        )
    return version


_KINDS = {
    int: "an integer",
    float: "a number with a decimal point",
    str: "a string",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
"""Types of JSON, in words."""


class _Part:
    """An object in the file, which errors call `name`. Its values are checked when they are read."""

    def __init__(self, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise StateError(f"{name} is {_short(value)}: must be an object")
        self._name = name
        self._values: dict[str, Any] = value

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._values.get(key, default)
        if type(value) is not kind:
            raise StateError(f"{self._name}: {key} is {_short(value)}: must be {_KINDS[kind]}")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(key, int, default)
        if not low <= value <= high:
            raise StateError(f"{self._name}: {key} is {value}: must be from {low} to {high}")
        return value

    def secret(self, key: str, high: int) -> int:
        """Return a number that no error message shows."""
        value = self._values.get(key)
        if type(value) is not int or not 0 <= value <= high:
            raise StateError(f"{self._name}: {key} is not a number from 0 to {high}")
        return value

    def text(self, key: str, normal: Callable[[str], object]) -> str:
        """Return the text as `normal` writes it. `normal` raises ValueError for a text that is not valid."""
        value = self.get(key, str)
        try:
            return str(normal(value))
        except ValueError as error:
            raise StateError(f"{self._name}: {key} is {_short(value)}: {error}") from None

    def seconds(self, key: str, low: float, high: float) -> float:
        value = self.get(key, float)
        if not low <= value <= high:
            raise StateError(f"{self._name}: {key} is {value}: must be from {low:g} to {high:g}")
        return value

    def parts(self, key: str) -> list[_Part]:
        return [_Part(f"{key}[{number}]", one) for number, one in enumerate(self.get(key, list))]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


# Attributes of a job that are written under their own names.
_AS_THEY_ARE = ["name", "tenant", "user", "number", "generation", "slots", "most_slots", "first_seq", "abort_secret"]


def _job_to_json(job: Job, setup: Setup, now: float) -> dict[str, Any]:
    each = next(iter(job.ranges.values())).count
    return {
        "site": site_to_json(job.site, setup, job.holds),
        **{key: getattr(job, key) for key in _AS_THEY_ARE},
        # Earlier releases know one number for each thread, and do not read "numbers".
        "more_numbers": [list(one) for one in job.numbers[:: len(job.site.trees.roots)][1:]],
        "numbers": [list(one) for one in job.numbers],
        "lost_trees": sorted(job.lost_trees),
        "moving": job.moving and not (job.move is not None and job.move.done),
        "first_slots": {format_index(job.site, at): taken.first for at, taken in job.ranges.items()},
        "slots_each": each,
        "slots_elsewhere": {
            format_index(job.site, at): one.count for at, one in job.ranges.items() if one.count != each
        },
        "children": {
            label: _heard_to_json(job.children[at])
            for at, label in enumerate(job.site.trees.labels)
            if at in job.children
        },
        "rejoin_s": job.rejoin_time,
        "started": time.time() - (now - job.started),
        "members": [_member_to_json(member, job.site) for _, member in sorted(job.members.items())],
    }


def _job_from_json(part: _Part, setup: Setup, now: float) -> Job:
    site = site_from_json(part.get("site", list), setup)
    identity = part.number("number", 1, 2**16 - 1), part.number("generation", 0, GENERATIONS - 1)
    # These two are missing in files of earlier releases.
    by_thread = [identity, *(_number(one, "more_numbers") for one in part.get("more_numbers", list, []))]
    threads, trees = len(by_thread), len(site.trees.roots)
    by_tree = [list(one) for one in by_thread for _ in range(trees)]
    numbers = tuple(_number(one, "numbers") for one in part.get("numbers", list, by_tree))
    if len(numbers) != threads * trees:
        raise StateError(
            f"numbers has {len(numbers)} entries: must have {threads * trees}, one for each tree and thread"
        )
    members = [_member_from_json(rank, one, site, threads) for rank, one in enumerate(part.parts("members"))]
    children = part.get("children", dict, {})  # missing in files of earlier releases
    each = part.number("slots_each", 1, 2**16)
    firsts = _by_index(part, "first_slots", site, threads)
    counts = dict.fromkeys(firsts, each) | _by_index(part, "slots_elsewhere", site, threads, {})
    heard = [at for one in members for at in one.heard if not site.for_threads(threads).is_spare(at)]
    if gone := [at for at in [*firsts, *heard] if site.number(at) == GONE]:
        raise StateError(f"the switch {site.trees.names[gone[0] % site.nodes]} is not one of this controller's")
    slots = part.number("slots", 1, 2**32 - 1)
    ranges = {index: SlotRange(first, counts[index]) for index, first in firsts.items()}
    # These two, and the next, are missing in files of earlier releases.
    most_slots = part.number("most_slots", slots, 2**32 - 1) if part.has("most_slots") else slots
    move = (
        Move(slots, "moved", now, before=dict(ranges), slots_before=slots) if part.get("moving", bool, False) else None
    )
    return Job(
        name=part.get("name", str),
        number=identity[0],
        generation=identity[1],
        world_size=len(members),
        slots=slots,
        most_slots=most_slots,
        move=move,
        ranges=ranges,
        first_seq=part.number("first_seq", 0, 2**32 - 1),
        rejoin_time=part.seconds("rejoin_s", 0.0, LONGEST_REJOIN_TIME),
        started=now - max(0.0, time.time() - part.seconds("started", 0.0, math.inf)),
        deadline=math.inf,
        abort_secret=part.secret("abort_secret", 2**64 - 1),
        site=site,
        children={
            parse_index(f"0:{name}", site, 1): _heard_from_json(_Part("child", one)) for name, one in children.items()
        },
        numbers=numbers,
        threads=threads,
        tenant=part.get("tenant", str, ""),  # missing in files of earlier releases, like the next
        user=part.get("user", str, ""),
        charged=now,
        lost_trees=_trees(part, trees),
        state=State.READY,
        members={member.rank: member for member in members},
    )


def _by_index(part: _Part, key: str, site: Site, threads: int, default: dict[str, int] | None = None) -> dict[int, int]:
    numbers = {parse_index(text, site, threads): number for text, number in part.get(key, dict, default).items()}
    if not all(type(number) is int and number >= 0 for number in numbers.values()):
        raise StateError(f"{key} is {_short(numbers)}: each value must be an integer of 0 or more")
    return numbers


def _trees(part: _Part, trees: int) -> set[int]:
    """Return the job's lost trees. Files of earlier releases name none."""
    lost = part.get("lost_trees", list, [])
    if not all(type(one) is int and 0 <= one < trees for one in lost):
        raise StateError(f"lost_trees is {_short(lost)}: each must be an integer from 0 to {trees - 1}")
    return set(lost)


def _number(pair: object, key: str) -> tuple[int, int]:
    if isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair):
        number, generation = pair
        if 1 <= number < 2**16 and 0 <= generation < GENERATIONS:
            return number, generation
    raise StateError(f"{key} has {_short(pair)}: each entry must be a job number and a generation")


def _member_to_json(member: Member, site: Site) -> dict[str, Any]:
    return {
        "switch": member.switch,
        "host": member.host,
        "stream": pb.Stream.Name(member.stream),
        "key_sha256": member.key,
        "holds": member.holds,
        "moves": member.moves,
        "spares": member.spares,
        "heard": {format_index(site, at): _heard_to_json(heard) for at, heard in member.heard.items()},
    }


def _member_from_json(rank: int, part: _Part, site: Site, threads: int) -> Member:
    heard = part.get("heard", dict)
    return Member(
        rank=rank,
        session=None,
        nonce=0,
        key=part.get("key_sha256", str),
        switch=part.get("switch", str),
        host=part.get("host", str, ""),  # missing in files of earlier releases, like the next
        stream=cast("pb.Stream", pb.Stream.Value(part.get("stream", str, "UNSAID"))),
        heard={parse_index(text, site, threads): _heard_from_json(_Part("heard", one)) for text, one in heard.items()},
        holds=part.get("holds", bool, False),  # missing in files of earlier releases, like the next
        moves=part.get("moves", bool, False),
        spares=part.get("spares", bool, False),
    )


def _heard_to_json(heard: Heard) -> dict[str, Any]:
    more = {"lag": list(heard.lag), "vlan": heard.vlan}
    return {"port": heard.port, **vars(heard.sender), **{key: value for key, value in more.items() if value}}


def _heard_from_json(part: _Part) -> Heard:
    sender = Endpoint(
        part.text("mac", lambda text: format_mac(parse_mac(text))),
        part.text("ip", ip_address),
        part.number("udp_port", 1, 2**16 - 1),
    )
    lag = part.get("lag", list, [])  # missing if there is none
    if not all(type(port) is int for port in lag):
        raise StateError(f"lag has {_short(lag)}: must be a list of ports")
    vlan = part.number("vlan", 0, 2**12 - 1, 0)  # missing if there is none
    port = part.number("port", 0, 511)
    return Heard(port, sender, job=0, generation=0, worker=0, nonce=0, lag=tuple(lag), vlan=vlan)


__all__ = ["StateError", "StateFile", "check_version", "rest_of", "state_to_json", "state_from_json"]
