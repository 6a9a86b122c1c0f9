"""In compiled code the statement is blamed that the traced graph tells of, not the call of the compiled function."""

import linecache

import pytest
import torch

import noclobber

HEAD = """
import torch
from torch import nn
w = torch.ones(4, 4, requires_grad=True)
class Net(nn.Module):
    def forward(self, x):
"""
END = """
def run():
    torch.compile(Net(), backend="aot_eager")(torch.ones(2, 4)).sum().backward()
"""
BODIES = {
    "a statement": (["h = torch.relu(x @ w)", "h += 1", "return h.sigmoid()"], ["h += 1"]),
    "a method": (["h = torch.sigmoid(x @ w)", "h.mul_(2)", "return h"], ["h.mul_(2)"]),
    "two statements": (["h = torch.relu(x @ w)", "h *= 0.5", "h += 1", "return h"], ["h *= 0.5", "h += 1"]),
    "in a function that is traced into": (["h = torch.relu(x @ w)", "change(h)", "return h"], ["t.add_(1)"]),
    "over two lines": (["h = torch.tanh(x @ w)", "h.add_(\n            1)", "return h"], ["h.add_(\n            1)"]),
}


@pytest.mark.parametrize(("body", "writes"), BODIES.values(), ids=BODIES)
def test_the_statement_is_blamed(tmp_path, body, writes):
    path = str(tmp_path / "program.py")
    text = "def change(t):\n    t.add_(1)\n" + HEAD + "".join(f"        {line}\n" for line in body) + END
    with open(path, "w") as file:
        file.write(text)
    linecache.checkcache(path)
    names, seen = {"__name__": "program"}, noclobber.watch()
    exec(compile(text, path, "exec"), names)
    torch._dynamo.reset()

    def watched():
        with seen:
            names["run"]()

    with pytest.raises(RuntimeError, match="inplace operation"):
        watched()
    blamed = [one.span for finding in seen.findings for one in finding.labels if one.role == "write"]
    lines = text.split("\n")
    assert [span.line for span in blamed] == [_line(text, one) for one in writes]
    for span, one in zip(blamed, writes, strict=True):
        assert lines[span.line - 1][span.column - 1 :].startswith(one.split("\n")[0])
        assert span.end_line == span.line + one.count("\n")


def _line(text, snippet):
    return text[: text.index(snippet)].count("\n") + 1
