# SPDX-License-Identifier: Apache-2.0
"""The C fast path, hostlib/csrc: the same protocol as in `p4reduce.protocol`, with I/O of its own, and fast."""
