# SPDX-License-Identifier: Apache-2.0
"""What jobs are, whom they wait for, and where they have their place: decided without I/O."""
