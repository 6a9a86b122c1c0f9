"""Scratch memory may hold anything with a patch that leaves it unused, unless a file of the program reads it."""

import pytest

from noclobber.fix.edits import scratch
from tests.fix import programs

NET = """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sums", torch.empty(4, 2), persistent=False)
    def forward(self, x):
        torch.mul(x, 2, out=self.sums)
        return self.sums.relu()
"""


@pytest.mark.parametrize(
    ("reading", "is_unread"),
    [
        ("print(net(x))", True),
        ("print(net.sums)", False),
        ("print([*net.buffers()])", False),
        ("print(getattr(net, name))", False),
        ('print(net.get_buffer("sums"))', False),
        ("print(net.__dict__)", False),
        ("print(copy.deepcopy(net))", True),
        ("this is no Python", False),
    ],
)
def test_scratch_memory_is_unread_where_no_file_reads_it(tmp_path, reading, is_unread):
    net, train = tmp_path / "net.py", tmp_path / "train.py"
    net.write_text(NET)
    train.write_text(f"{reading}\n")
    patch = programs.replaced(net, ("torch.mul(x, 2, out=self.sums)", "sums = x * 2"), ("self.sums.relu", "sums.relu"))
    assert scratch.unread(patch, [str(net), str(train)]) == ({"sums"} if is_unread else set())


@pytest.mark.parametrize(
    "made", ['"sums", torch.zeros(4, 2), persistent=False', '"sums", torch.empty(4, 2)', "name, torch.empty(4, 2)"]
)
def test_what_is_saved_or_has_a_value_is_no_scratch_memory(tmp_path, made):
    net = tmp_path / "net.py"
    net.write_text(NET.replace('"sums", torch.empty(4, 2), persistent=False', made))
    patch = programs.replaced(net, ("torch.mul(x, 2, out=self.sums)", "sums = x * 2"), ("self.sums.relu", "sums.relu"))
    assert scratch.unread(patch, [str(net)]) == set()
