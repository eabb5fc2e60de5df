# SPDX-License-Identifier: Apache-2.0
"""The control plane: gives jobs their place on the switch, over P4Runtime, and takes it back."""
