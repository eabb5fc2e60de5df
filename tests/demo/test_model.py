# SPDX-License-Identifier: Apache-2.0
"""The demo's text and model."""

import torch

from p4reduce_bench.demo.model import UNKNOWN, LanguageModel, corpus


def test_the_text_is_real_and_numbered_alike_each_time() -> None:
    text = corpus(500)
    assert text.numel() > 50_000
    assert (int(text.min()), int(text.max())) == (UNKNOWN, 499)
    assert torch.equal(text, corpus(500))
    assert torch.bincount(text)[1:].diff().le(0).all(), "words are numbered by how often they occur"


def test_a_step_has_a_sparse_gradient_and_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = LanguageModel(500, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    text = corpus(500)[:210].view(10, 21)
    everything = torch.empty(0, dtype=torch.int64)
    before = float(model(text, everything).detach())
    for _ in range(5):
        optimizer.zero_grad()
        model(text, torch.arange(20)).backward()
        optimizer.step()
    assert float(model(text, everything).detach()) < before
    rows = model.words.weight.grad.ne(0).any(dim=1)
    assert set(rows.nonzero().flatten().tolist()) == set(text[:, :-1].flatten().tolist())


def test_sampled_loss_over_all_words_is_the_full_loss() -> None:
    torch.manual_seed(0)
    model = LanguageModel(50, 8)
    text = torch.randint(0, 50, (4, 9))
    sampled, full = model(text, torch.arange(50)), model(text, torch.empty(0, dtype=torch.int64))
    torch.testing.assert_close(sampled, full)
