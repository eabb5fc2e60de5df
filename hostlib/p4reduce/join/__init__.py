# SPDX-License-Identifier: Apache-2.0
"""A rank's way into a job and out of it."""
