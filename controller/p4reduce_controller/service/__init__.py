# SPDX-License-Identifier: Apache-2.0
"""A controller at work: its gRPC service, and its life from start to end."""
