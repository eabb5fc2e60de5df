# SPDX-License-Identifier: Apache-2.0
"""Published sparse allreduces, as their papers describe them, on torch.distributed's Gloo send and receive.

Systems that add up in the network are modes of p4reduce instead (`streaming`). The inputs of the others are indices and
values of elements, which are made before the clock starts. Each module states how it differs from the publication.
"""
