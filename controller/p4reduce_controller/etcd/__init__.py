# SPDX-License-Identifier: Apache-2.0
"""The store for several controllers: in etcd, with a lease. Uses `store` and what it uses."""
