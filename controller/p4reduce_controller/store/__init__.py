# SPDX-License-Identifier: Apache-2.0
"""What outlives a controller, and which of several serves."""
