# SPDX-License-Identifier: Apache-2.0
"""Who calls, what that caller may, and how fast."""
