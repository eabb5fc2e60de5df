# SPDX-License-Identifier: Apache-2.0
"""A Tofino as the P4Runtime server uses it: tables through `bf_switchd`, packet-in and packet-out by an interface.

This process runs on the switch's own processor. The program's CPU port is a network interface there, on which frames
begin with the header packet_out or packet_in.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import device_config
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, BindRefused, Client
from p4reduce_targets.bfrt.dataplane import BfrtDataPlane
from p4reduce_targets.bfrt.ports import PortRequest, TofinoPort, open_ports
from p4reduce_targets.bfrt.schema import Schema, SchemaError
from p4reduce_targets.dataplane import DataPlane, DataPlaneLost
from p4reduce_targets.interfaces import BoundInterface
from p4reduce_targets.ports import EthPort, Port, PortError

START_TIMEOUT_S = 30.0  # for a first connection, while `bf_switchd` starts or another client ends
RETRY_S = 2.0  # between attempts to connect
_WAKE_S = 0.2  # between checks whether a thread is to end
_RECEIVE_BATCH = 32  # frames that are read from the interface at once
_PADDING = 0xFE  # in the first byte of the header packet_in: bits that the program leaves 0

log = logging.getLogger(__name__)


class ProgramRefused(BfrtError):
    """The switch runs another program than it should, or one for another board; the message names both."""


@dataclass(frozen=True, slots=True)
class Tofino:
    """A switch to drive: where `bf_switchd` listens, and what it should run and have.

    open_cpu_port: opens the port of this number for packet-in and packet-out; it may raise PortError.
    """

    address: str
    program: pb.ForwardingPipelineConfig
    folder: Path  # of `program`
    ports: Sequence[PortRequest]
    open_cpu_port: Callable[[int], Port]


class TofinoSwitch:
    """An implementation of `p4runtime.Device`; use it as a context manager.

    The constructor connects, installs the program on a switch that has none, binds to it, and adds and enables the
    ports. It raises BfrtLost or BindRefused for causes that may end by themselves, and ProgramRefused, PortError or
    another BfrtError for those that somebody has to end. When `ended` is set, all calls end, those of the constructor
    as well, with BfrtLost.

    A switch whose `bf_switchd` is lost stays lost; `connections` makes another one.
    """

    def __init__(self, tofino: Tofino, ended: threading.Event | None = None) -> None:
        self.on_packet_in: Callable[[bytes], None] = lambda _: None
        self.foreign_frames = 0  # frames on the CPU interface that the program did not send
        self._tofino = tofino
        self._lock = threading.RLock()  # of the data plane; calls of BF Runtime, which may take seconds, hold it
        self._sending = threading.Lock()  # of packets to the CPU port, which do not wait for such calls
        self._cpu_state = "UP"
        self._ended = threading.Event()
        with ExitStack() as stack:
            self._client = stack.enter_context(closing(Client(tofino.address, ended=ended)))
            running, self._is_clear = _install_or_check(self._client, tofino)
            self._client.bind(tofino.program.p4_name)
            try:
                self._schema = Schema.parse(tofino.program.bfruntime_info, running.non_p4_config.bfruntime_info)
            except SchemaError as error:
                raise BfrtError(f"{self._client}: {error}") from None
            self.ports: dict[int, TofinoPort] = {
                port.number: port for port in open_ports(self._client, self._schema, tofino.program, tofino.ports)
            }
            cpu_port = device_config.cpu_port(tofino.program)
            self._cpu = stack.enter_context(closing(tofino.open_cpu_port(cpu_port)))
            self._reader = threading.Thread(target=self._read_packet_ins, name="bfrt-packet-ins", daemon=True)
            self._stack = stack.pop_all()

    # --- for the P4Runtime server -----------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other users of the data plane. Packets are still processed. Raises BfrtLost."""
        with self._lock:
            if self._client.lost is not None:  # what the P4Runtime server has stored may not be in the switch
                raise BfrtLost(self._client.lost)
            yield

    def load(self, program: bytes) -> DataPlane:
        """Return a data plane for `program`, not yet in use; raise ValueError for another than the switch runs."""
        config = device_config.parse(program)
        if not device_config.is_same_program(config, self._tofino.program):
            raise ValueError(
                f"the controller sends another build of {config.p4_name} than the switch runs; start it with "
                f"--pipeline and a copy of the folder {self._tofino.folder}"
            )
        return BfrtDataPlane(self._client, self._schema)

    def run_program(self, data_plane: DataPlane) -> None:
        """Clear the switch, and send it what was written to this data plane.

        Raises DataPlaneLost if that fails, since the switch then has a part of it.
        """
        assert isinstance(data_plane, BfrtDataPlane)
        is_clear, self._is_clear = self._is_clear, False
        try:
            data_plane.run(is_clear=is_clear)
        except BfrtLost:
            raise
        except (BfrtError, ValueError) as error:
            raise DataPlaneLost(f"the program runs without what was written to it: {error}") from error

    def packet_out(self, frame: bytes) -> None:
        """Send a frame, which begins with the packet-out header, to the CPU port."""
        with self._sending:
            self._cpu.send(frame)

    # --- start and end ----------------------------------------------------------------------------------------------

    def run(self, ended: threading.Event) -> None:
        """Follow the CPU port until `ended` is set or `bf_switchd` is lost."""
        while not ended.wait(_WAKE_S) and self._client.lost is None:
            if self._cpu.interface is not None:
                self._follow(self._cpu.interface)

    @property
    def lost(self) -> str | None:
        """The reason why the connection to `bf_switchd` has ended; None while it lasts."""
        return self._client.lost

    def __enter__(self) -> TofinoSwitch:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._reader.is_alive():
            self._reader.join()
        self._stack.close()

    def _follow(self, interface: BoundInterface) -> None:
        """Take up an interface that was created again, and log changes of its link."""
        interface.refresh(())  # which logs that it is gone
        if (state := interface.state()) not in (self._cpu_state, "NOT_PRESENT"):
            log.warning(
                "--cpu-interface %s: its link is %s%s",
                interface.name,
                state,
                "" if state == "UP" else "; packets between the program and the controller are lost",
            )
            self._cpu_state = state

    def _read_packet_ins(self) -> None:
        with select.epoll() as poll:
            poll.register(self._cpu.fileno(), select.EPOLLIN)
            while not self._ended.is_set():
                if not poll.poll(_WAKE_S):
                    continue
                for frame in self._cpu.receive(_RECEIVE_BATCH):
                    try:
                        self._packet_in(frame)
                    except Exception:
                        log.exception("a packet-in of %d bytes is dropped", len(frame))

    def _packet_in(self, frame: bytes) -> None:
        if frame and frame[0] & _PADDING:
            self.foreign_frames += 1
            if self.foreign_frames == 1:
                log.warning(
                    "CPU port %s: a frame of %d bytes does not come from the program, and is dropped, as are all "
                    "like it; a kernel at the other end sends these unless IPv6 is off there",
                    self._cpu.name,
                    len(frame),
                )
            return
        self.on_packet_in(frame)


def connections(tofino: Tofino, ended: threading.Event) -> Iterator[TofinoSwitch]:
    """Yield the switch each time that `bf_switchd` is there, until `ended` is set.

    The first time, it raises BfrtError or PortError: at once for causes that somebody has to end, after START_TIMEOUT_S
    for those that may end by themselves. Later it logs each cause once, and tries again every RETRY_S.
    """
    deadline: float | None = time.monotonic() + START_TIMEOUT_S
    last_error = ""
    while not ended.is_set():
        try:
            switch = TofinoSwitch(tofino, ended)
        except (BfrtError, PortError) as error:
            if ended.is_set():
                return
            may_pass = isinstance(error, (BfrtLost, BindRefused))
            if deadline is not None and (not may_pass or time.monotonic() > deadline):
                raise
            if str(error) != last_error:
                how_long = f"for {START_TIMEOUT_S:g} s" if deadline is not None else "until it is back"
                log.warning("%s; trying again every %g s, %s", error, RETRY_S, how_long)
            last_error = str(error)
            ended.wait(RETRY_S)
            continue
        if deadline is None:
            log.warning("bf_switchd at %s is there again; the P4Runtime server opens", tofino.address)
        deadline, last_error = None, ""
        with switch:
            yield switch
            if switch.lost is not None and not ended.is_set():
                log.warning("%s; the P4Runtime server is closed until it is there again", switch.lost)
                ended.wait(RETRY_S)


def _install_or_check(client: Client, tofino: Tofino) -> tuple[pb.GetForwardingPipelineConfigResponse, bool]:
    """Return what the switch runs, after installing the program if there was none, and whether it was so.

    Raises ProgramRefused.
    """
    wanted = tofino.program
    running = client.running()
    installs = not running.config
    if installs:
        log.warning("the %s has no program: %s is installed, which takes seconds", client, wanted.p4_name)
        client.install(wanted)
        running = client.running()
    names = [config.p4_name for config in running.config]
    if names != [wanted.p4_name]:
        raise ProgramRefused(
            f"the {client} runs {', '.join(names) or 'no program'}, not {wanted.p4_name}: start bf_switchd with the "
            f"configuration in {tofino.folder}, or with --skip-p4"
        )
    if not device_config.is_same_program(running.config[0], wanted):
        raise ProgramRefused(
            f"the {client} runs another build of {wanted.p4_name} than {tofino.folder} has: restart bf_switchd with "
            "the configuration there, or with --skip-p4"
        )
    return running, installs


def open_cpu_interface(name: str, cpu_port: int) -> EthPort:
    """Open the interface at the CPU port, on which the kernel is to send nothing of its own. Raises PortError."""
    try:
        port = EthPort(cpu_port, name, ipv6_off=True)
    except PortError as error:
        raise PortError(
            f"--cpu-interface {name}: {error}. It is the interface of the kernel's packet driver (bf_kpkt) on a "
            f"switch, and the veth of port {cpu_port} with the model"
        ) from None
    if (state := port.interface.state()) != "UP":
        port.close()
        raise PortError(f"--cpu-interface {name}: its link is {state}: `ip link set {name} up`, at both ends of a veth")
    return port
