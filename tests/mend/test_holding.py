"""Whether a name alone holds what is written through it, read from the source alone: no torch is imported here."""

from __future__ import annotations

import ast

import pytest

from noclobber.mend.holders.holding import holds_alone
from noclobber.syntax.tree import parse

CLASS = """
outer = nn.Linear(2, 2)
def change():
    global outer
    outer = nn.Identity()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.drop = nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout(0.1)
        self.own = Linear(2, 2)
        self.parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.mixed = nn.ModuleList([nn.Linear(2, 2), nn.Identity()])
        self.grown = nn.ModuleList([nn.Linear(2, 2)])
        self.grown.append(nn.Identity())
    def inner(self, t):
        return self.fc(t) * 2
    def same(self, t):
        return t
    def forward(self, x):
{body}
"""
ALONE = {
    "the result of an operator": "h = x @ x\nh += 1",
    "of a method": "h = x.sigmoid()\nh += 1",
    "of a module": "h = self.fc(x)\nh += 1",
    "of a module of a list": "h = self.parts[0](x)\nh += 1",
    "of each module of a list": "for layer in self.parts:\n    h = layer(x)\n    h += 1",
    "of a module in place, of what is new": "h = self.act(self.fc(x))\nh += 1",
    "of a module in place, on the name": "h = self.fc(x)\nh = self.act(h)\nh += 1",
    "of a module that may pass it on": "h = self.fc(x)\nh = self.drop(h)\nh += 1",
    "a view of itself": "h = self.fc(x)\nh = h.view(-1)\nh += 1",
    "of a method of the class": "h = self.inner(x)\nh += 1",
    "read before": "h = self.fc(x)\ny = self.fc(h)\nz = h.mean() + h.shape[0]\nprint(h)\nh += 1\nreturn h * y",
    "read by a part": "h = self.fc(x)\ny = h[0] * 2\nh += 1\nreturn y",
    "read by a write to another": "h = self.fc(x)\ny = x * 2\ny[0].mul_(h)\nh += 1\nreturn y",
    "put together": "h = self.fc(x)\ny = torch.cat([h, x])\nh += 1\nreturn y",
    "kept afterwards": "h = self.fc(x)\nh += 1\nself.last = h",
    "in a loop, made in it": "for _ in range(2):\n    h = self.fc(x)\n    h += 1\n    self.last = h",
    "bound and written where no gradient is recorded": "with torch.no_grad():\n    h = self.fc(x)\n    h += 1",
    "bound anew on one way": "h = self.fc(x)\nif x.sum():\n    h = h * 2\nh += 1",
}
SHARED = {
    "an argument": "x += 1",
    "an attribute": "h = self.last\nh += 1",
    "a part of another": "h = x[0]\nh += 1",
    "a view of another": "h = x.view(-1)\nh += 1",
    "what may be the argument": "h = self.drop(x)\nh += 1",
    "what a method gives back": "h = self.same(x)\nh += 1",
    "a module of a list of several kinds": "h = self.mixed[0](x)\nh += 1",
    "a module of a list that something is added to": "h = self.grown[0](x)\nh += 1",
    "another name": "h = self.fc(x)\ny = h\nh += 1\nreturn y",
    "another name for a view": "h = self.fc(x)\ny = h.view(-1)\nh += 1\nreturn y",
    "in a container": "h = self.fc(x)\nself.seen.append(h)\nh += 1",
    "in a tuple": "h = self.fc(x)\ny = (h, x)\nh += 1\nreturn y",
    "on the module": "h = self.fc(x)\nself.last = h\nh += 1",
    "handed to what is not known": "h = self.fc(x)\ny = remember(h)\nh += 1\nreturn y",
    "handed to a method that gives it back": "h = self.fc(x)\ny = self.same(h)\nh += 1\nreturn y",
    "used by a function inside": "h = self.fc(x)\nlater = lambda: h\nh += 1\nreturn later()",
    "the variable of a loop": "for h in x:\n    h += 1",
    "kept in a loop that writes it again": "h = self.fc(x)\nfor _ in range(2):\n    h += 1\n    self.seen.append(h)",
    "a view on one way": "h = self.fc(x)\nif x.sum():\n    h = x[0]\nh += 1",
    "unpacked": "h, y = self.both(x)\nh += 1",
    "yielded": "h = self.fc(x)\nyield h\nh += 1",
    "by `or`": "h = self.fc(x)\ny = None or h\nh += 1\nreturn y",
    "in a dictionary": "h = self.fc(x)\ny = {'h': h}\nh += 1\nreturn y",
    "of a name of the file": "global h\nh = self.fc(x)\nh += 1",
    "written where no gradient is recorded": "h = self.fc(x)\nwith torch.no_grad():\n    h += 1",
    "not bound before": "if x.sum():\n    h = self.fc(x)\nh += 1",
    "in a set": "h = self.fc(x)\nseen.add(h)\nh += 1",
    "in a record of another's": "h = self.fc(x)\nwriter.log(h)\nh += 1",
    "taken from a memory": "h = memory.take(0)\nh += 1",
    "of a module of the file that is named like one of torch": "h = self.own(x)\nh += 1",
    "of a name that another function binds": "h = outer(x)\nh += 1",
}


def holds(body):
    text = CLASS.format(body="\n".join(f"        {line}" for line in body.split("\n")))
    file = parse("net.py", text)
    (write,) = [node for node in ast.walk(file.tree) if isinstance(node, ast.AugAssign)]
    return holds_alone(file, write.target.id, write)


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_nothing_else_holds_it(body):
    assert holds(body)


@pytest.mark.parametrize("body", SHARED.values(), ids=SHARED)
def test_something_else_holds_it_or_may(body):
    assert not holds(body)


@pytest.mark.parametrize(
    "line",
    [
        "self.fc.register_forward_hook(print)",
        "for one in self.modules(): one.inplace = True",
        "setattr(self, name, nn.Identity())",
        "other.fc = nn.Identity()",
    ],
)
def test_what_sees_or_changes_modules_makes_it_unknown(line):
    assert not holds(f"h = self.fc(x)\n{line}\nh += 1")
