# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a network, done on purpose, and how each rank comes out of it."""
