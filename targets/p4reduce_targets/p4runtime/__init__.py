# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server in front of a data plane that runs on this machine.

It behaves like simple_switch_grpc (P4Runtime 1.3, https://p4.org/p4-spec/p4runtime/v1.3.0/P4Runtime-Spec.html). The
same tests run against both. They differ in these points:

- An election id that is unset or 0 never becomes primary (as specified; BMv2 takes it for the lowest id).
- Only a primary may write, and device ids are checked. BMv2 lets any client write while no controller is
  connected, and accepts any device id.
- An invalid packet-out, or one from a backup, is answered by a StreamError. BMv2 does not answer.
- A program that cannot be loaded changes nothing. BMv2 then accepts no other program.
- RECONCILE_AND_COMMIT keeps entries, default actions, counters, meters and groups. BMv2 fails if the program has
  counters.
- One Read can return the direct counters of all tables.
- Read does not return constant entries. Direct counters of default actions are refused.
- Roles, action profiles, direct meters, clone sessions, digests, idle timeouts, range and optional matches are refused
  with UNIMPLEMENTED, or INVALID_ARGUMENT where P4Info says that the object has none.
"""

from p4reduce_targets.p4runtime.device import Device
from p4reduce_targets.p4runtime.server import Server

__all__ = ["Device", "Server"]
