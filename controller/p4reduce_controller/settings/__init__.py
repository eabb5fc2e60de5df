# SPDX-License-Identifier: Apache-2.0
"""What a controller is told when it starts."""
