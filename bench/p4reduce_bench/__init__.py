# SPDX-License-Identifier: Apache-2.0
"""Tools beside the library: `p4reduce demo`, `bench` and `analyze`, and modules that measure the parts."""
