"""Train a BD-LRU on the parity of words of 32 bits; it is right on words of 8,192 bits."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import statemix

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
embed, norm, head = nn.Embedding(2, 64), nn.RMSNorm(64), nn.Linear(64, 2)
mixer = statemix.BDLRU.tracker(64, num_blocks=16, block_size=2)
model = nn.ModuleList([embed, norm, mixer, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
num_steps = 400
for step in range(num_steps):
    statemix.sharpen(model, step / num_steps)
    bits = torch.randint(2, (64, 32))
    x = embed(bits)
    y, _ = mixer(norm(x))
    loss = cross_entropy(head(x + y).flatten(0, 1), (bits.cumsum(1) % 2).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
bits = torch.randint(2, (16, 8192))
with torch.no_grad():
    x = embed(bits)
    answers = head(x + mixer(norm(x))[0]).argmax(-1)
print(f"right: {(answers == bits.cumsum(1) % 2).float().mean():.4f}")
