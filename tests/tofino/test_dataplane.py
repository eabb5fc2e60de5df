# SPDX-License-Identifier: Apache-2.0
"""The tests of the data plane, on the program for Tofino."""

# ruff: noqa: F403
from tests.dataplane.test_admission import *
from tests.dataplane.test_bridging import *
from tests.dataplane.test_controller_packets import *
from tests.dataplane.test_drop_simulator import *
from tests.dataplane.test_jobs import *
from tests.dataplane.test_lanes import *
from tests.dataplane.test_malformed import *
from tests.dataplane.test_multicast import *
from tests.dataplane.test_own_address import *
from tests.dataplane.test_packet_out import *
from tests.dataplane.test_rounds import *
from tests.dataplane.test_routing import *
from tests.dataplane.test_slots import *
