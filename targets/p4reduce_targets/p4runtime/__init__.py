# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server in front of a data plane that runs on this machine.

It behaves as simple_switch_grpc does (P4Runtime 1.3, https://p4.org/p4-spec/p4runtime/v1.3.0/P4Runtime-Spec.html),
so that a controller cannot tell the two apart.
"""

from .device import Device
from .server import Server

__all__ = ["Device", "Server"]
