# SPDX-License-Identifier: Apache-2.0
"""The constants of the protocol. p4src/include/constants.p4 defines them; a test keeps this file equal to it."""

from enum import IntEnum

PROTOCOL_VERSION = 1
AGGREGATION_PORT = 0x7A52

DEFAULT_LANES = 4
DEFAULT_BLOCK_SIZE = 64
LANES_ACCEPTED = (1, 2, 4, 8)
BLOCK_SIZES_ACCEPTED = (32, 64, 128, 256)
MAX_WORKERS = 32
"""Workers of one switch."""
MAX_RANKS = 4096
"""Ranks of a job, on any number of switches."""
PARENT = 31
"""Worker number that a switch gives its parent: the last of its own workers."""
NOBODY = 255
"""Worker number of a packet that names none of the workers that receive it."""
MAX_AGGREGATORS = 32
"""Aggregators over which a job's slots may be striped. No packet carries it: controller and hosts agree on it."""
MAX_THREADS = 16
"""Threads of one rank's engine. No packet carries it either."""
MAX_GROWTH = 512
"""Bytes by which the switch's answer may be longer than the packet that it is made from."""

NO_KEY = 0xFFFFFFFF
"""Key that a lane announces when no more blocks follow."""
SHORT_HELLO = 1
"""The `seq` of a HELLO without values. Its sender also sends HELLOs with the values of all lanes."""

ECN_MASK = 3
"""The bits of explicit congestion notification (RFC 3168) in the TOS or traffic class of an IP header."""
ECN_ECT_0 = 2
"""The sender of the packet reacts to marks."""
ECN_CE = 3
"""The packet is marked: a router had a long queue."""


class Op(IntEnum):
    DATA = 1
    RESULT = 2
    STATUS = 3
    ERROR = 4
    RESET = 5
    QUERY = 6
    ABORT = 7
    HELLO = 8


class Outcome(IntEnum):
    """The outcome of a packet at the aggregator: the index into the switch's counter `outcomes`."""

    STARTED = 0
    ADDED = 1
    COMPLETED = 2
    STALE = 3
    MISMATCH = 4
    AHEAD = 5
    REPLAYED = 6
    NOT_ADMITTED = 7
    BAD_SLOT = 8
    MALFORMED = 9
    FORBIDDEN = 10
    HELLO = 11
    RESET = 12
    QUERY = 13
    SENT_UP = 14
    STORED = 15
    HELLO_LIMITED = 16


ADDITIONAL_OUTCOMES = frozenset({Outcome.COMPLETED, Outcome.SENT_UP})
"""Outcomes that are counted in addition to another outcome of the same packet, so not in a sum of packets."""
