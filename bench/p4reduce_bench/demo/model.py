# SPDX-License-Identifier: Apache-2.0
"""A word-level language model: embedding, LSTM and a sampled softmax, so a step's gradient is mostly zeros."""

import torch
from torch import nn
from torch.nn import functional


class LanguageModel(nn.Module):
    """Predicts each next word. One row of the word tables is `width` float32 values."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.output = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.normal_(self.output.weight, std=0.1)

    def forward(self, text: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Mean loss of predicting text[:, 1:]; int64 `text` of shape (batch, length).

        samples: int64, shape (words,): the words among which each next word has to be told; an empty tensor stands for
        the whole vocabulary. Sampling (Jean et al., ACL 2015) keeps the output table's gradient sparse.
        """
        states, _ = self.lstm(self.words(text[:, :-1]))
        targets = text[:, 1:].reshape(-1)
        if samples.numel() == 0:
            logits = states.reshape(targets.numel(), -1) @ self.output.weight.T
            return functional.cross_entropy(logits, targets)
        candidates, places = torch.unique(torch.cat([targets, samples]), return_inverse=True)
        logits = states.reshape(targets.numel(), -1) @ self.output(candidates).T
        return functional.cross_entropy(logits, places[: targets.numel()])
