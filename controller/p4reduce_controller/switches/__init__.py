# SPDX-License-Identifier: Apache-2.0
"""Which switches there are, what they shall hold, and how they come to hold it: P4Runtime, packets and gNMI."""
