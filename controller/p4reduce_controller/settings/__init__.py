# SPDX-License-Identifier: Apache-2.0
"""The controller's settings: options, file and defaults. Uses `etcd`, `p4runtime` and what they use, for defaults."""
