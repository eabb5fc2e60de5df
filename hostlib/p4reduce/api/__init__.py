# SPDX-License-Identifier: Apache-2.0
"""The interface for users: the communicator of a job, and its statistics."""
