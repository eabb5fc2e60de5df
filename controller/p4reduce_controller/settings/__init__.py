# SPDX-License-Identifier: Apache-2.0
"""The controller's settings: options, file and defaults.

May import `etcd`, `p4runtime` and what those may import, for defaults.
"""
