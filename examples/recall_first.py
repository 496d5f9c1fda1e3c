"""Train a BD-LRU to recall the first of 200 tokens; the option ``memory`` makes that easy."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import statemix

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
embed, norm, head = nn.Embedding(8, 64), nn.RMSNorm(64), nn.Linear(64, 7)
mixer = statemix.BDLRU(64, num_blocks=16, block_size=4, memory=(1, 500))
model = nn.ModuleList([embed, norm, mixer, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def answers(first):
    """Return scores of the symbols after a word whose other 199 tokens are blank."""
    x = embed(torch.cat([first.unsqueeze(1), torch.full((len(first), 199), 7)], 1))
    return head((x + mixer(norm(x))[0])[:, -1])


for _ in range(200):
    first = torch.randint(7, (32,))
    loss = cross_entropy(answers(first), first)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
first = torch.arange(7)
print(f"right: {(answers(first).argmax(-1) == first).float().mean():.4f}")
