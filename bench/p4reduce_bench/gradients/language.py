# SPDX-License-Identifier: Apache-2.0
"""transformers' BERT (Devlin et al., NAACL 2019) and GPT-2 (Radford et al., 2019) on the source text of Python.

The word table of `bert` has a gradient in the rows of a batch's words alone. In `bert-mlm` and `gpt2` the same table is
the output layer, too, whose softmax over all words leaves no row without one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from p4reduce_bench.gradients.datasets import MASK, documents, text
from p4reduce_bench.gradients.packages import package

_TINY_WORDS = 8192
_LENGTH = {"tiny": 64, "base": 128}
_HIDDEN_SHARE = 0.15
_IGNORED = -100  # labels that transformers leaves out of the loss


def _bert(size: str, **options: Any) -> Any:
    """base: BERT-base, 110 million parameters. tiny: 4 layers of width 256 (BERT-mini), 8,192 words."""
    small = {"vocab_size": _TINY_WORDS, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
             "intermediate_size": 1024, "max_position_embeddings": 128}  # fmt: skip
    return package("transformers").BertConfig(**(small if size == "tiny" else {}), **options)


def _gpt2(size: str) -> Any:
    """base: GPT-2's smallest, 124 million parameters. tiny: 4 layers of width 256, 8,192 words."""
    small = {"vocab_size": _TINY_WORDS, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}
    chosen = small if size == "tiny" else {}
    return package("transformers").GPT2Config(bos_token_id=None, eos_token_id=None, **chosen)


class _OfText:
    """A transformer on windows of the text, which do not overlap."""

    batch = 4

    def __init__(self, module: nn.Module, vocabulary: int, size: str) -> None:
        self.module = module
        self._length = _LENGTH[size]
        self._text = text(vocabulary)
        self.samples = self._text.words.numel() // self._length

    def _windows(self, chosen: Tensor) -> Tensor:
        """int64, shape (samples, length)."""
        return self._text.words[chosen[:, None] * self._length + torch.arange(self._length)]

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.module.parameters(), lr=1e-4)


class Classification(_OfText):
    """Tells which file a window is from: what fine-tuning for a task looks like."""

    def __init__(self, size: str) -> None:
        config = _bert(size, num_labels=documents())
        super().__init__(package("transformers").BertForSequenceClassification(config), config.vocab_size, size)

    def loss(self, chosen: Tensor) -> Tensor:
        labels = self._text.documents[chosen * self._length]
        made: Tensor = self.module(input_ids=self._windows(chosen), labels=labels).loss
        return made


class MaskedWords(_OfText):
    """Tells the words that are hidden, 15 % of them: what BERT is trained with in the first place."""

    def __init__(self, size: str) -> None:
        config = _bert(size)
        super().__init__(package("transformers").BertForMaskedLM(config), config.vocab_size, size)

    def loss(self, chosen: Tensor) -> Tensor:
        windows = self._windows(chosen)
        hidden = torch.rand(windows.shape) < _HIDDEN_SHARE
        hidden[0, 0] = True  # a mean needs one at least
        made: Tensor = self.module(
            input_ids=windows.masked_fill(hidden, MASK), labels=windows.masked_fill(~hidden, _IGNORED)
        ).loss
        return made


class NextWords(_OfText):
    """Tells each next word."""

    def __init__(self, size: str) -> None:
        config = _gpt2(size)
        super().__init__(package("transformers").GPT2LMHeadModel(config), config.vocab_size, size)

    def loss(self, chosen: Tensor) -> Tensor:
        windows = self._windows(chosen)
        made: Tensor = self.module(input_ids=windows, labels=windows).loss
        return made


TASKS: dict[str, Any] = {"bert": Classification, "bert-mlm": MaskedWords, "gpt2": NextWords}
