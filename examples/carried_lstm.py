"""An LSTM that learns to write Python, letter by letter. Broken: it carries the state on with its graph.

The state of one batch is the first state of the next. Backward then reaches the graph of the batch before, which
PyTorch has freed. retain_graph=True silences that error, and the next one comes: the older graph needs weights that the
optimizer has changed. The right version is carried_lstm_right.py.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, WINDOW, HIDDEN = 32, 32, 64

torch.manual_seed(0)
text = Path(argparse.__file__).read_text(encoding="utf-8")  # a long Python file that every Python has
alphabet = sorted(set(text))
codes = torch.tensor([alphabet.index(letter) for letter in text])
columns = codes[: len(codes) // BATCH * BATCH].reshape(BATCH, -1)  # BATCH pieces of text, read side by side


class Writer(nn.Module):
    """Letters and a state in, scores of the next letters and the new state out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, len(alphabet))

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(self.embedding(letters), state)
        return self.head(out), state


model = Writer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
for epoch in range(1, epochs + 1):
    total, batches = 0.0, 0
    state = (torch.zeros(1, BATCH, HIDDEN), torch.zeros(1, BATCH, HIDDEN))
    for start in range(0, columns.shape[1] - WINDOW - 1, WINDOW):
        letters = columns[:, start : start + WINDOW]
        following = columns[:, start + 1 : start + WINDOW + 1]
        scores, state = model(letters, state)
        loss = F.cross_entropy(scores.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # without it: "Trying to backward through the graph a second time"
        optimizer.step()
        total, batches = total + loss.item(), batches + 1
    print(f"epoch {epoch}: loss {total / batches:.3f}")
