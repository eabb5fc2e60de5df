# SPDX-License-Identifier: Apache-2.0
"""A word-level language model with sampled softmax, so that a gradient is mostly zeros, and its text.

The text is one that every Python has: the language reference in the standard library's `pydoc_data`.
"""

import re
from collections import Counter

import torch
from torch import nn
from torch.nn import functional

UNKNOWN = 0


class LanguageModel(nn.Module):
    """A model that predicts each next word. A row of its word tables has `width` float32 values."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.output = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.normal_(self.output.weight, std=0.1)

    def forward(self, text: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting text[:, 1:]; int64 `text` of shape (batch, length).

        samples: int64, shape (words,): each next word is told from these and from the batch's other next words. An
            empty tensor stands for the whole vocabulary. Sampling (Jean et al., ACL 2015) keeps the output table's
            gradient sparse.
        """
        states, _ = self.lstm(self.words(text[:, :-1]))
        targets = text[:, 1:].reshape(-1)
        if samples.numel() == 0:
            logits = states.reshape(targets.numel(), -1) @ self.output.weight.T
            return functional.cross_entropy(logits, targets)
        candidates, indices = torch.unique(torch.cat([targets, samples]), return_inverse=True)
        logits = states.reshape(targets.numel(), -1) @ self.output(candidates).T
        return functional.cross_entropy(logits, indices[: targets.numel()])


def corpus(vocabulary: int) -> torch.Tensor:
    """Return the text as word numbers: int64, shape (words,), below `vocabulary`; rarer words are UNKNOWN."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    words = re.findall(r"[a-z_]+|[0-9]+|[^\sa-z0-9_]", text.lower())
    # Words with equal counts are ordered by themselves, so that every rank numbers the words alike.
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    number = {word: index for index, (word, _) in enumerate(ranked[: vocabulary - 1], start=UNKNOWN + 1)}
    return torch.tensor([number.get(word, UNKNOWN) for word in words])
