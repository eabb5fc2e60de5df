# SPDX-License-Identifier: Apache-2.0
from tests.support.own_network import alone

__all__ = ["alone"]
