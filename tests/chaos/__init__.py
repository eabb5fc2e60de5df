# SPDX-License-Identifier: Apache-2.0
"""Many jobs by several tenants, while ranks, controllers and members of etcd are killed and stopped."""
