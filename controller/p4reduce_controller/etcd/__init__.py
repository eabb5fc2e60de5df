# SPDX-License-Identifier: Apache-2.0
"""The store for several controllers: in etcd, with a lease. May import `store` and what that may import."""
