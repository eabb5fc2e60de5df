# SPDX-License-Identifier: Apache-2.0
"""Long tests: jobs while processes are killed and stopped, a hostile tenant, and many rounds with packet loss."""
