"""Programs that fail, with the right ones beside them, and what runs either."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from noclobber.fix.edits.patch import Patch
from noclobber.model.reports.finding import Edit
from noclobber.model.source import Span
from tests import served

STALE = dedent("""\
    import torch

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    for _ in range(4):
        h = torch.sigmoid(w)
        h += 1  # the write
        loss = (h * h).sum()
        w.grad = None
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
    print(w.tolist())
""")
"""A sigmoid keeps its result, which is then written."""

SEEN = dedent("""\
    import torch

    def bump(t):
        t += 1  # the write
        return t

    w = torch.ones(3, requires_grad=True)
    h = torch.exp(w)
    bump(h)
    (h * h).sum().backward()
    print(w.grad.tolist())
""")
"""The caller goes on with the tensor that a function writes."""

CARRIED = dedent("""\
    import torch

    torch.manual_seed(0)
    cell = torch.nn.GRUCell(2, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.5)
    state = torch.zeros(1, 3)
    for _ in range(4):
        state = cell(torch.randn(1, 2), state)
        optimizer.zero_grad()
        state.sum().backward(retain_graph=True)
        optimizer.step()
    print(cell.weight_ih.tolist())
""")
"""A state is carried over steps."""

LEAF = dedent("""\
    import torch

    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (w * w).sum().backward()
        w -= 0.1 * w.grad
        w.grad = None
    print(w.tolist())
""")

SILENT = dedent("""\
    import torch

    class Halve(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.div_(2)

    w = torch.ones(3, requires_grad=True)
    v = w * 3
    ((Halve.apply(v) + v) * torch.ones(3)).sum().backward()
    print(w.grad.tolist())
""")
"""A backward writes into a gradient that another branch gets too; PyTorch is silent."""


def replaced(path: Path, *pairs: tuple[str, str]) -> Patch:
    """The patch that puts one text in another's place; each stands in the file once, within a line."""
    edits = []
    lines = path.read_text().split("\n")
    for old, new in pairs:
        (number,) = (index for index, line in enumerate(lines, 1) if old in line)
        column = lines[number - 1].index(old) + 1
        edits.append(Edit(Span(str(path), number, column, number, column + len(old)), new))
    return Patch().edited(edits)


def printed(path: Path) -> str:
    """What a program prints under `python`; it must end well."""
    done = served.run([str(path)])
    assert done.returncode == 0, done.stderr
    return done.stdout
