"""Whether a value in a source is computed from a tensor."""

from __future__ import annotations

import ast

import pytest

from noclobber.syntax.depending import depends_on
from noclobber.syntax.tree import walk

from .sources import parsed

DEPENDS = {
    "itself": "h.data = h - h.mean()",
    "a function of it": "h.data = h - torch.relu(h)",
    "its gradient with a graph": "h.data = h - torch.autograd.grad(e(h), h, create_graph=True)[0]",
    "a cast": "h.data = h - h.float().mean()",
    "a name": "m = h.mean()\nh.data = h - m",
    "on one line": "m = h.mean(); h.data = h - m",
    "a name of a name": "m = h.mean()\nk = m / 2\nh.data = h - k",
    "an attribute": "self.m = h.mean()\nh.data = h - self.m",
    "an item": "kept['m'] = h.mean()\nh.data = h - kept['m']",
    "a list": "kept = []\nkept.append(h.mean())\nh.data = h - kept[0]",
    "a part of a tuple": "a, b = 1, h.mean()\nh.data = h - b",
    "what a call gives": "a, b = torch.std_mean(h)\nh.data = h - b",
    "a sum": "m = 0\nm += h.mean()\nh.data = h - m",
    "a write in place": "m = torch.zeros(3)\nm.copy_(h)\nh.data = h - m",
    "a written result": "torch.mul(h, 2, out=m)\nh.data = h - m",
    "a walrus": "print(m := h.mean())\nh.data = h - m",
    "an annotated name": "m: Tensor = h.mean()\nh.data = h - m",
    "a loop over it": "for m in h:\n    pass\nh.data = h - m",
    "a context": "with mean(h) as m:\n    h.data = h - m",
    "a function": "def centre():\n    return h.mean()\nh = x * 2\nh.data = h - centre()",
    "a lambda": "centre = lambda: h.mean()\nh = x * 2\nh.data = h - centre()",
    "an earlier turn": "m = 0\nh = x * 2\nfor i in range(3):\n    h.data = h - m\n    m = h.mean()",
    "one branch": "h = x * 2\nm = h.mean()\nif c:\n    h = m * 2\nh.data = h - m",
    "an update of it": "h = x * 2\nm = h.mean()\nh += 1\nh.data = h - m",
    "an attribute itself": "self.h.data = self.h - self.h.mean()",
    "an item itself": "hs[0].data = hs[0] - hs[0].mean()",
}
CONSTANT = {
    "another name": "m = x.mean()\nh.data = h - m",
    "its shape": "h.data = h - torch.randn(h.shape)",
    "its size": "m = torch.randn(h.size(0), device=h.device)\nh.data = h - m",
    "noise like it": "m = torch.randn_like(h)\nh.data = h - 0.1 * m",
    "a new tensor": "h.data = h - h.new_full((3,), 2)",
    "its type": "h.data = h - m.to(h).expand_as(h)",
    "a step": "h.data = h - 2 * h.round()",
    "a mask": "mask = h > 0\nh.data = h - 2 * mask",
    "whole numbers": "h.data = h - table[h.argmax()] - h // 2",
    "its gradient": "h.data = h - 0.1 * h.grad",
    "a number of it": "h.data = h - float(h.mean()) - h.max().item()",
    "a fill": "h.data = h - torch.full_like(h, h.mean())",
    "what is cut off": "m = h.detach().mean()\nh.data = h - m",
    "what grad gives": "h.data = h - torch.autograd.grad(e(h), h)[0]",
    "what comes later": "m = 1\nh.data = h - m\nm = h.mean()",
    "another tensor of the name": "h = x * 2\nm = h.mean()\nh = x * 3\nh.data = h - m",
    "a turn with a new tensor": "m = 0\nfor x in xs:\n    h = x * 2\n    h.data = h - m\n    m = h.mean()",
    "the variable of a loop": "m = 0\nfor h in hs:\n    h.data = h - m\n    m = h.mean()",
    "another part of a tuple": "a, b = 1, h.mean()\nh.data = h - a",
    "another attribute": "self.m = h.mean()\nh.data = h - self.k",
    "another item": "hs[0].data = hs[0] - hs[1]",
    "another function's name": "def noise(h):\n    return h.mean()\nh.data = h - noise(2)",
}


def depends(text: str) -> bool:
    file = parsed(text)
    row = next(one for one in walk(file.tree, ast.Assign) if ast.unparse(one.targets[0]).endswith(".data"))
    assert isinstance(row.value, ast.BinOp)
    name = ast.unparse(row.targets[0]).removesuffix(".data")
    return depends_on(file, row.value.right, name, row)


@pytest.mark.parametrize("text", DEPENDS.values(), ids=DEPENDS)
def test_it_is_computed_from_the_tensor(text: str) -> None:
    assert depends(text)
    assert depends("def f(self, x):\n" + "".join(f"    {line}\n" for line in text.splitlines()))


@pytest.mark.parametrize("text", CONSTANT.values(), ids=CONSTANT)
def test_it_is_not(text: str) -> None:
    assert not depends(text)
    assert not depends("def f(self, x):\n" + "".join(f"    {line}\n" for line in text.splitlines()))
