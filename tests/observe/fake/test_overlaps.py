"""What PyTorch refuses as elements share memory is refused without values too, in the same words."""

import pytest
import torch

import noclobber


def row_into_rows(make):
    make(1, 4).expand(3, 4).add_(1)


def onto_itself_shifted(make):
    x = make(9)
    x[1:].copy_(x[:-1])


def onto_its_transpose(make):
    x = make(3, 3)
    x.add_(x.t())


def onto_itself(make):
    x = make(3, 3)
    x.mul_(x)


def neighbours(make):
    x = make(8)
    x[:4].add_(x[4:])


def filled(make):
    make(1, 4).expand(3, 4).fill_(1)


@pytest.mark.parametrize(
    "write", [row_into_rows, onto_itself_shifted, onto_its_transpose, onto_itself, neighbours, filled]
)
def test_it_is_refused_where_pytorch_refuses_it(write):
    def outcome():
        try:
            write(torch.randn)
        except RuntimeError as error:
            return str(error)
        return ""

    real = outcome()
    with noclobber.fake():
        assert outcome() == real
