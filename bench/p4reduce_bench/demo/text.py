# SPDX-License-Identifier: Apache-2.0
"""A real text that every Python has: the language reference in the standard library's `pydoc_data`."""

import re
from collections import Counter

import torch

UNKNOWN = 0


def corpus(vocabulary: int) -> torch.Tensor:
    """Return the text as word numbers: int64, shape (words,), below `vocabulary`; rarer words are UNKNOWN."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    words = re.findall(r"[a-z_]+|[0-9]+|[^\sa-z0-9_]", text.lower())
    # Ties are broken by the word itself, so that every rank numbers the words alike.
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    number = {word: index for index, (word, _) in enumerate(ranked[: vocabulary - 1], start=UNKNOWN + 1)}
    return torch.tensor([number.get(word, UNKNOWN) for word in words])
