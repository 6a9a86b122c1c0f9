"""Bytes that are put back before backward reads them: PyTorch raises, as it counts writes, and the report says so."""

import pytest
import torch

import noclobber


def program(write):
    """Saves a weight, and its last two rows, for two products; writes it, and runs backward."""
    torch.manual_seed(0)
    w, x = torch.randn(3, 3), torch.ones(2, 3, requires_grad=True)
    wide = w.t()[:, 1:]
    loss = (x @ w).sum() + (x[:, :3] @ wide).sum()
    write(w)
    loss.backward()


def put_back(w):
    old = w.clone()
    w.zero_()
    w.copy_(old)


def put_back_in_part(w):
    old = w.clone()
    w.zero_()
    w[1:] = old[1:]


def given_other_memory(w):
    w.set_(torch.randn(3, 3))


WRITES = {
    "given other memory": (given_other_memory, [False, True]),  # the other save is a view on the old memory
    "put back": (put_back, [True, True]),
    "put back in part": (put_back_in_part, [False, True]),
    "overwritten": (torch.Tensor.zero_, [False, False]),
}


@pytest.mark.parametrize(("write", "told"), WRITES.values(), ids=WRITES.keys())
def test_bytes_that_are_the_same_again_are_said_to_be(write, told):
    with pytest.raises(noclobber.ClobberError) as caught, noclobber.watch(contents=True):
        program(write)
    said = [
        any("has its saved values at backward" in note for note in finding.notes) for finding in caught.value.findings
    ]
    assert sorted(said) == told


def test_the_gradient_is_right_where_the_bytes_are_the_same_again():
    """What the note says: PyTorch computes the same from the bytes put back, once its check is out of the way."""

    def gradient(write):
        w, x = torch.full((3, 3), 2.0), torch.ones(2, 3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            loss = (x @ w).sin().sum()
        write(w)
        loss.backward()
        return x.grad

    assert torch.equal(gradient(put_back), gradient(lambda w: None))
    assert not torch.equal(gradient(put_back_in_part), gradient(lambda w: None))
