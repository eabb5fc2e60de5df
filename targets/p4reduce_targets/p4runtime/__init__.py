# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server in front of a data plane that runs on this machine.

It behaves as simple_switch_grpc does (P4Runtime 1.3, https://p4.org/p4-spec/p4runtime/v1.3.0/P4Runtime-Spec.html),
so that a controller cannot tell the two apart. The same tests run against both; where they differ:

- An election id that is unset or 0 never becomes primary (the specification; BMv2 takes it for the lowest id).
- Only a primary may write, and device ids are checked. BMv2 lets anybody write while nobody is connected, and takes
  any device id.
- A packet-out that is wrong, or comes from a backup, is answered by a StreamError. BMv2 keeps silent.
- A program that cannot be loaded leaves everything as it was. BMv2 then takes no other.
- RECONCILE_AND_COMMIT keeps entries, default actions, counters and groups. BMv2 fails when the program has counters.
- Direct counters of all tables can be read at once.
- Entries that are constant in the program are not told, direct counters of default actions are refused.
- Roles, action profiles, direct meters, clone sessions, digests, idle timeouts, range and optional matches are refused
  with UNIMPLEMENTED, or INVALID_ARGUMENT where P4Info says that the object has none.
"""

from p4reduce_targets.p4runtime.device import Device
from p4reduce_targets.p4runtime.server import Server

__all__ = ["Device", "Server"]
