# SPDX-License-Identifier: Apache-2.0
"""torchvision's residual networks (He et al., CVPR 2016) and VGG (Simonyan and Zisserman, ICLR 2015) on digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from p4reduce_bench.gradients.datasets import digits
from p4reduce_bench.gradients.packages import package

_CLASSES = 10
_SIDE = {("resnet", "tiny"): 64, ("resnet", "base"): 128, ("vgg", "tiny"): 32, ("vgg", "base"): 128}
_NARROW = 512


class Classification:
    """Tells what digit an image shows.

    base: the architecture as published, on images of 128 by 128. tiny: on images so small that the last convolutions of
    3 by 3 still see 2 by 2 pixels or more, of which one alone would meet the kernel's centre only; and with VGG's three
    wide layers, nine tenths of all its parameters, cut down to 512 units behind one average of the image, as is usual
    for such images.
    """

    batch = 16

    def __init__(self, architecture: str, size: str) -> None:
        family = architecture.rstrip("0123456789")
        self._images, self._labels = digits(_SIDE[family, size])
        self.samples = self._labels.numel()
        self.module: nn.Module = getattr(package("torchvision").models, architecture)(num_classes=_CLASSES)
        if family == "vgg" and size == "tiny":
            self.module.avgpool = nn.AdaptiveAvgPool2d(1)
            self.module.classifier = nn.Sequential(
                nn.Linear(_NARROW, _NARROW), nn.ReLU(), nn.Dropout(), nn.Linear(_NARROW, _NARROW), nn.ReLU(),
                nn.Dropout(), nn.Linear(_NARROW, _CLASSES),
            )  # fmt: skip

    def loss(self, chosen: Tensor) -> Tensor:
        return functional.cross_entropy(self.module(self._images[chosen]), self._labels[chosen])

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)
