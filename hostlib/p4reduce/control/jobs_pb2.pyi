from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    UNSAID: _ClassVar[Stream]
    OWN: _ClassVar[Stream]
    SHARED: _ClassVar[Stream]

class AbortReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    ABORT_REASON_UNSPECIFIED: _ClassVar[AbortReason]
    WORKER_LOST: _ClassVar[AbortReason]
    DID_NOT_RETURN: _ClassVar[AbortReason]
    LEFT_EARLY: _ClassVar[AbortReason]
    CONTROLLER_STOPPED: _ClassVar[AbortReason]
    SWITCH_LOST: _ClassVar[AbortReason]
    JOIN_REFUSED: _ClassVar[AbortReason]
    JOIN_TIMEOUT: _ClassVar[AbortReason]
    SWITCH_FAILED: _ClassVar[AbortReason]
    SLOTS_EXHAUSTED: _ClassVar[AbortReason]
    QUOTA_EXCEEDED: _ClassVar[AbortReason]
    ENDED_BY_USER: _ClassVar[AbortReason]
    ENDED_BY_OPERATOR: _ClassVar[AbortReason]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    BOTH: _ClassVar[Direction]
    IN: _ClassVar[Direction]
    OUT: _ClassVar[Direction]
UNSAID: Stream
OWN: Stream
SHARED: Stream
ABORT_REASON_UNSPECIFIED: AbortReason
WORKER_LOST: AbortReason
DID_NOT_RETURN: AbortReason
LEFT_EARLY: AbortReason
CONTROLLER_STOPPED: AbortReason
SWITCH_LOST: AbortReason
JOIN_REFUSED: AbortReason
JOIN_TIMEOUT: AbortReason
SWITCH_FAILED: AbortReason
SLOTS_EXHAUSTED: AbortReason
QUOTA_EXCEEDED: AbortReason
ENDED_BY_USER: AbortReason
ENDED_BY_OPERATOR: AbortReason
BOTH: Direction
IN: Direction
OUT: Direction

class ClientMessage(_message.Message):
    join: Join
    leave: Leave
    rejoin: Rejoin
    unanswered: Unanswered
    failed: Failed
    report: Report
    held: Held
    rounds: Rounds
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., rejoin: _Optional[_Union[Rejoin, _Mapping]] = ..., unanswered: _Optional[_Union[Unanswered, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., rounds: _Optional[_Union[Rounds, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    job: str
    rank: int
    world_size: int
    slots: int
    timeout_s: float
    switch: str
    host: str
    stream: Stream
    threads: int
    queue_s: float
    holds: bool
    moves: bool
    numbers: bool
    spares: bool
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., slots: _Optional[int] = ..., timeout_s: _Optional[float] = ..., switch: _Optional[str] = ..., host: _Optional[str] = ..., stream: _Optional[_Union[Stream, str]] = ..., threads: _Optional[int] = ..., queue_s: _Optional[float] = ..., holds: bool = ..., moves: bool = ..., numbers: bool = ..., spares: bool = ...) -> None: ...

class Rejoin(_message.Message):
    job: int
    generation: int
    rank: int
    key: str
    def __init__(self, job: _Optional[int] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    lingers: bool
    def __init__(self, lingers: bool = ...) -> None: ...

class Failed(_message.Message):
    message: str
    rank: int
    mismatch: bool
    def __init__(self, message: _Optional[str] = ..., rank: _Optional[int] = ..., mismatch: bool = ...) -> None: ...

class Unanswered(_message.Message):
    half: int
    def __init__(self, half: _Optional[int] = ...) -> None: ...

class Rounds(_message.Message):
    number: int
    rounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., rounds: _Optional[_Iterable[int]] = ...) -> None: ...

class Held(_message.Message):
    operations: int
    quiet: bool
    first_seq: int
    number: int
    def __init__(self, operations: _Optional[int] = ..., quiet: bool = ..., first_seq: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    operations: int
    rounds: int
    retransmissions: int
    slowdowns: int
    packets_sent: int
    packets_received: int
    bytes_sent: int
    bytes_received: int
    busy_s: float
    stuck_s: float
    awaited: _containers.RepeatedScalarFieldContainer[int]
    most_slots: int
    def __init__(self, operations: _Optional[int] = ..., rounds: _Optional[int] = ..., retransmissions: _Optional[int] = ..., slowdowns: _Optional[int] = ..., packets_sent: _Optional[int] = ..., packets_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., busy_s: _Optional[float] = ..., stuck_s: _Optional[float] = ..., awaited: _Optional[_Iterable[int]] = ..., most_slots: _Optional[int] = ...) -> None: ...

class ServerMessage(_message.Message):
    assigned: Assigned
    ready: Ready
    left: Left
    abort: Abort
    waiting: Waiting
    counted: Counted
    notice: Notice
    hold: Hold
    release: Release
    suspend: Suspend
    resume: Resume
    def __init__(self, assigned: _Optional[_Union[Assigned, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., counted: _Optional[_Union[Counted, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., suspend: _Optional[_Union[Suspend, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Hold(_message.Message):
    operations: int
    number: int
    def __init__(self, operations: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    slots: int
    first_seq: int
    def __init__(self, slots: _Optional[int] = ..., first_seq: _Optional[int] = ...) -> None: ...

class Suspend(_message.Message):
    aggregator: int
    number: int
    def __init__(self, aggregator: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    aggregator: int
    number: int
    via: int
    job: int
    rounds: _containers.RepeatedScalarFieldContainer[int]
    more_jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, aggregator: _Optional[int] = ..., number: _Optional[int] = ..., via: _Optional[int] = ..., job: _Optional[int] = ..., rounds: _Optional[_Iterable[int]] = ..., more_jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class Notice(_message.Message):
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    ip: str
    udp_port: int
    mac: str
    tree: int
    jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ip: _Optional[str] = ..., udp_port: _Optional[int] = ..., mac: _Optional[str] = ..., tree: _Optional[int] = ..., jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class Assigned(_message.Message):
    job: int
    generation: int
    worker: int
    slots: int
    lanes: int
    block_size: int
    first_seq: int
    hello_nonce: int
    aggregators: _containers.RepeatedCompositeFieldContainer[Endpoint]
    rejoin_key: str
    rejoin_s: float
    abort_secret: int
    more_jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[int] = ..., generation: _Optional[int] = ..., worker: _Optional[int] = ..., slots: _Optional[int] = ..., lanes: _Optional[int] = ..., block_size: _Optional[int] = ..., first_seq: _Optional[int] = ..., hello_nonce: _Optional[int] = ..., aggregators: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., rejoin_key: _Optional[str] = ..., rejoin_s: _Optional[float] = ..., abort_secret: _Optional[int] = ..., more_jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class Ready(_message.Message):
    aggregators: _containers.RepeatedScalarFieldContainer[int]
    peers: _containers.RepeatedScalarFieldContainer[int]
    hosts: _containers.RepeatedScalarFieldContainer[int]
    answers: bool
    leaders: _containers.RepeatedScalarFieldContainer[int]
    spares: _containers.RepeatedScalarFieldContainer[int]
    report_s: float
    def __init__(self, aggregators: _Optional[_Iterable[int]] = ..., peers: _Optional[_Iterable[int]] = ..., hosts: _Optional[_Iterable[int]] = ..., answers: bool = ..., leaders: _Optional[_Iterable[int]] = ..., spares: _Optional[_Iterable[int]] = ..., report_s: _Optional[float] = ...) -> None: ...

class Left(_message.Message):
    def __init__(self) -> None: ...

class Abort(_message.Message):
    rank: int
    reason: AbortReason
    message: str
    mismatch: bool
    def __init__(self, rank: _Optional[int] = ..., reason: _Optional[_Union[AbortReason, str]] = ..., message: _Optional[str] = ..., mismatch: bool = ...) -> None: ...

class Waiting(_message.Message):
    class For(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        JOIN: _ClassVar[Waiting.For]
        HELLO: _ClassVar[Waiting.For]
        SWITCH: _ClassVar[Waiting.For]
        LEAVE: _ClassVar[Waiting.For]
        QUEUE: _ClassVar[Waiting.For]
        AWAY: _ClassVar[Waiting.For]
    JOIN: Waiting.For
    HELLO: Waiting.For
    SWITCH: Waiting.For
    LEAVE: Waiting.For
    QUEUE: Waiting.For
    AWAY: Waiting.For
    what: Waiting.For
    ranks: _containers.RepeatedScalarFieldContainer[int]
    more: int
    you: bool
    place: int
    queued: int
    why: str
    def __init__(self, what: _Optional[_Union[Waiting.For, str]] = ..., ranks: _Optional[_Iterable[int]] = ..., more: _Optional[int] = ..., you: bool = ..., place: _Optional[int] = ..., queued: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Counted(_message.Message):
    half: int
    seq: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, half: _Optional[int] = ..., seq: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class StatusRequest(_message.Message):
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    joins: int
    jobs_started: int
    jobs_aborted: int
    jobs_finished: int
    queue: _containers.RepeatedCompositeFieldContainer[QueuedJob]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    time_s: float
    def __init__(self, switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., joins: _Optional[int] = ..., jobs_started: _Optional[int] = ..., jobs_aborted: _Optional[int] = ..., jobs_finished: _Optional[int] = ..., queue: _Optional[_Iterable[_Union[QueuedJob, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., time_s: _Optional[float] = ...) -> None: ...

class Switch(_message.Message):
    class OutcomesEntry(_message.Message):
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RpcErrorsEntry(_message.Message):
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CpuDropsEntry(_message.Message):
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    address: str
    connected: bool
    ip: str
    udp_port: int
    mac: str
    lanes: int
    block_size: int
    slots: int
    slots_used: int
    problem: str
    outcomes: _containers.ScalarMap[str, int]
    losses: _containers.RepeatedCompositeFieldContainer[PortLoss]
    name: str
    parent: str
    parents: _containers.RepeatedScalarFieldContainer[str]
    state: str
    number: int
    draining: bool
    leaving: bool
    spare: bool
    jobs: _containers.RepeatedScalarFieldContainer[str]
    rpc_errors: _containers.ScalarMap[str, int]
    cpu_drops: _containers.ScalarMap[str, int]
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    ports_unknown: str
    untagged_only: bool
    ipv4_only: bool
    def __init__(self, address: _Optional[str] = ..., connected: bool = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ..., mac: _Optional[str] = ..., lanes: _Optional[int] = ..., block_size: _Optional[int] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., problem: _Optional[str] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., losses: _Optional[_Iterable[_Union[PortLoss, _Mapping]]] = ..., name: _Optional[str] = ..., parent: _Optional[str] = ..., parents: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., number: _Optional[int] = ..., draining: bool = ..., leaving: bool = ..., spare: bool = ..., jobs: _Optional[_Iterable[str]] = ..., rpc_errors: _Optional[_Mapping[str, int]] = ..., cpu_drops: _Optional[_Mapping[str, int]] = ..., ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., ports_unknown: _Optional[str] = ..., untagged_only: bool = ..., ipv4_only: bool = ...) -> None: ...

class Port(_message.Message):
    number: int
    state: str
    def __init__(self, number: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    switch: int
    first: int
    count: int
    def __init__(self, switch: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    name: str
    number: int
    generation: int
    state: str
    world_size: int
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    slots: int
    most_slots: int
    threads: int
    more_numbers: _containers.RepeatedScalarFieldContainer[int]
    stragglers: _containers.RepeatedCompositeFieldContainer[Straggler]
    age_s: float
    members: _containers.RepeatedCompositeFieldContainer[Member]
    tenant: str
    user: str
    awaited: _containers.RepeatedScalarFieldContainer[int]
    awaited_for: str
    left_out: _containers.RepeatedScalarFieldContainer[str]
    in_trouble: _containers.RepeatedScalarFieldContainer[str]
    traffic: _containers.RepeatedCompositeFieldContainer[Traffic]
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., state: _Optional[str] = ..., world_size: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., slots: _Optional[int] = ..., most_slots: _Optional[int] = ..., threads: _Optional[int] = ..., more_numbers: _Optional[_Iterable[int]] = ..., stragglers: _Optional[_Iterable[_Union[Straggler, _Mapping]]] = ..., age_s: _Optional[float] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., awaited: _Optional[_Iterable[int]] = ..., awaited_for: _Optional[str] = ..., left_out: _Optional[_Iterable[str]] = ..., in_trouble: _Optional[_Iterable[str]] = ..., traffic: _Optional[_Iterable[_Union[Traffic, _Mapping]]] = ...) -> None: ...

class Traffic(_message.Message):
    switch: int
    packets: int
    bytes: int
    def __init__(self, switch: _Optional[int] = ..., packets: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class QueuedJob(_message.Message):
    tenant: str
    name: str
    place: int
    world_size: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    slots: int
    age_s: float
    why: str
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., place: _Optional[int] = ..., world_size: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., slots: _Optional[int] = ..., age_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class Tenant(_message.Message):
    name: str
    jobs: int
    slots: int
    slot_hours: float
    most_jobs: int
    most_slots: int
    most_slot_hours: float
    priority: int
    reserved_slots: int
    reserved_until: float
    refusals: int
    def __init__(self, name: _Optional[str] = ..., jobs: _Optional[int] = ..., slots: _Optional[int] = ..., slot_hours: _Optional[float] = ..., most_jobs: _Optional[int] = ..., most_slots: _Optional[int] = ..., most_slot_hours: _Optional[float] = ..., priority: _Optional[int] = ..., reserved_slots: _Optional[int] = ..., reserved_until: _Optional[float] = ..., refusals: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    rank: int
    leaving: bool
    places: _containers.RepeatedCompositeFieldContainer[Attachment]
    away: bool
    leader: int
    report: Report
    rates: Rates
    heard_s: float
    awaiting_s: float
    def __init__(self, rank: _Optional[int] = ..., leaving: bool = ..., places: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ..., away: bool = ..., leader: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., rates: _Optional[_Union[Rates, _Mapping]] = ..., heard_s: _Optional[float] = ..., awaiting_s: _Optional[float] = ...) -> None: ...

class Straggler(_message.Message):
    rank: int
    why: str
    def __init__(self, rank: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Rates(_message.Message):
    operations: float
    rounds: float
    retransmissions: float
    packets_sent: float
    packets_received: float
    bytes_sent: float
    bytes_received: float
    busy: float
    awaiting: float
    def __init__(self, operations: _Optional[float] = ..., rounds: _Optional[float] = ..., retransmissions: _Optional[float] = ..., packets_sent: _Optional[float] = ..., packets_received: _Optional[float] = ..., bytes_sent: _Optional[float] = ..., bytes_received: _Optional[float] = ..., busy: _Optional[float] = ..., awaiting: _Optional[float] = ...) -> None: ...

class Attachment(_message.Message):
    heard: bool
    switch: int
    port: int
    mac: str
    ip: str
    udp_port: int
    vlan: int
    def __init__(self, heard: bool = ..., switch: _Optional[int] = ..., port: _Optional[int] = ..., mac: _Optional[str] = ..., ip: _Optional[str] = ..., udp_port: _Optional[int] = ..., vlan: _Optional[int] = ...) -> None: ...

class SetLossRequest(_message.Message):
    port: int
    direction: Direction
    rate: float
    switch: str
    def __init__(self, port: _Optional[int] = ..., direction: _Optional[_Union[Direction, str]] = ..., rate: _Optional[float] = ..., switch: _Optional[str] = ...) -> None: ...

class SetLossReply(_message.Message):
    def __init__(self) -> None: ...

class PortLoss(_message.Message):
    port: int
    direction: Direction
    rate: float
    lost: int
    def __init__(self, port: _Optional[int] = ..., direction: _Optional[_Union[Direction, str]] = ..., rate: _Optional[float] = ..., lost: _Optional[int] = ...) -> None: ...

class AbortJobRequest(_message.Message):
    job: str
    tenant: str
    reason: str
    def __init__(self, job: _Optional[str] = ..., tenant: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortJobReply(_message.Message):
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class SlotsRequest(_message.Message):
    job: str
    first: int
    count: int
    tenant: str
    def __init__(self, job: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class SlotsReply(_message.Message):
    slots: int
    halves: _containers.RepeatedCompositeFieldContainer[SlotHalf]
    def __init__(self, slots: _Optional[int] = ..., halves: _Optional[_Iterable[_Union[SlotHalf, _Mapping]]] = ...) -> None: ...

class SlotHalf(_message.Message):
    slot: int
    half: int
    switch: str
    at: int
    seq: int
    round: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    switches: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: int
    def __init__(self, slot: _Optional[int] = ..., half: _Optional[int] = ..., switch: _Optional[str] = ..., at: _Optional[int] = ..., seq: _Optional[int] = ..., round: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., switches: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class AddSwitchRequest(_message.Message):
    settings: str
    def __init__(self, settings: _Optional[str] = ...) -> None: ...

class DrainSwitchRequest(_message.Message):
    name: str
    undo: bool
    def __init__(self, name: _Optional[str] = ..., undo: bool = ...) -> None: ...

class RemoveSwitchRequest(_message.Message):
    name: str
    now: bool
    def __init__(self, name: _Optional[str] = ..., now: bool = ...) -> None: ...

class SwitchesReply(_message.Message):
    said: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, said: _Optional[_Iterable[str]] = ...) -> None: ...
