# SPDX-License-Identifier: Apache-2.0
"""State in etcd, for controllers of which one serves and the others stand by."""
