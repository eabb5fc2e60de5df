# SPDX-License-Identifier: Apache-2.0
"""The C fast path, hostlib/csrc: the protocol of `p4reduce.protocol` with its own I/O, for speed."""
