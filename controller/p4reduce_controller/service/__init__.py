# SPDX-License-Identifier: Apache-2.0
"""The gRPC service, and a controller's life from start to end.

May import all but `etcd`, `standby` and the commands.
"""
