"""What compiled code saves: PyTorch compares no version of it, its bytes are compared all the same."""

import shutil

import pytest
import torch

from tests.observe.hearing import bare, hear, is_marked


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles with g++")
def test_what_inductor_saves_is_compared_by_its_bytes():
    """It keeps the memory without its version counter, so PyTorch raises nothing (torch 2.13)."""

    def program():
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        y = torch.compile(torch.matmul)(x, w).sum()
        x.mul_(5)  # written
        y.backward()
        return w.grad

    right = torch.full((3, 3), 3.0)
    assert not torch.equal(bare(program), right)
    heard, gradient = hear(program, contents=True)
    assert torch.equal(gradient, bare(program))
    (clobber,) = heard.clobbers
    assert is_marked(clobber.writes[-1].site, "written")
