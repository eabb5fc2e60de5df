# SPDX-License-Identifier: Apache-2.0
"""The gRPC service, and a controller's life from start to end. Uses all but `etcd`, `standby` and the commands."""
