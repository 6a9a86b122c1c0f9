"""A write to one buffer costs what the saves cost that it may touch; all whose version it moves tell of it."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT

MODES = {
    "versions": lambda: noclobber.watch(contents=False),
    "contents": lambda: noclobber.watch(contents=True),
    "preserve": noclobber.preserve,
}


def weight() -> torch.Tensor:
    return torch.arange(1.0, 9.0, requires_grad=True)


# -- what is told ------------------------------------------------------------------------------------------------------


def others_are_filled(buffer: torch.Tensor) -> torch.Tensor:
    loss = (buffer[0] * weight()).sum()
    for row in range(1, 4):
        buffer[row].fill_(1.0)
    return loss


def it_is_written_between_others(buffer: torch.Tensor) -> torch.Tensor:
    loss = (buffer[0] * weight()).sum()
    for row in (1, 0, 2):
        buffer[row].fill_(1.0)
    return loss


def the_buffer_enters_the_graph(buffer: torch.Tensor) -> torch.Tensor:
    x = weight()
    loss = (buffer[0] * x).sum()
    with torch.no_grad():
        buffer[3].add_(1)
    buffer[1] = x * 2
    buffer[2] = x * 3
    return loss + buffer.sum()


def others_have_another_counter(buffer: torch.Tensor) -> torch.Tensor:
    """What writes through `.data` moves a counter of its own."""
    loss = (buffer[0] * weight()).sum()
    buffer.data[1].fill_(1.0)
    buffer[2] = 2
    buffer.data[3].fill_(1.0)
    return loss


MET, APART = True, False


@pytest.mark.parametrize("contents", [False, True], ids=["versions", "contents"])
@pytest.mark.parametrize(
    ("program", "code", "writes"),
    [
        (others_are_filled, "NC102", [(0, 1, APART), (1, 2, APART), (2, 3, APART)]),
        (it_is_written_between_others, "NC101", [(0, 1, APART), (1, 2, MET), (2, 3, APART)]),
        (the_buffer_enters_the_graph, "NC102", [(0, 1, APART), (1, 2, APART), (2, 3, APART)]),
        (others_have_another_counter, "NC102", [(0, 1, APART)]),
    ],
)
def test_all_writes_that_move_the_version_of_a_save_are_told(
    program: Callable[[torch.Tensor], torch.Tensor], code: str, writes: list[tuple[int, int, bool]], contents: bool
) -> None:
    with noclobber.watch(contents=contents) as seen, suppress(RuntimeError):
        program(torch.zeros(5, 8)).backward()
    (found,) = seen.findings
    told = [(one.version_before, one.version_after, one.overlaps) for one in found.writes]
    assert (found.code, told) == (code, writes)


# -- what it costs -----------------------------------------------------------------------------------------------------


def filled(rows: int, x: torch.Tensor) -> torch.Tensor:
    """Each row has a version counter of its own, so that PyTorch goes back through all of them."""
    buffer = torch.zeros(rows, 8)
    loss = x.sum()
    for row in range(rows):
        mine = buffer[row].data
        mine.fill_(row)
        loss = loss + (mine * x).sum()
    return loss


def assigned(rows: int, x: torch.Tensor) -> torch.Tensor:
    """Each row is in the graph, and saved while others are written."""
    buffer = torch.zeros(rows, 8)
    loss = x.sum()
    for row in range(rows):
        buffer[row] = x.exp()
        loss = loss + buffer[row].square().sum()
    return loss


def written_again(rows: int, x: torch.Tensor) -> torch.Tensor:
    """One buffer, saved and then overwritten in each step."""
    buffer = torch.zeros(8)
    loss = x.sum()
    for _ in range(rows):
        loss = loss + (buffer * x).sum()
        buffer.add_(1)
    return loss


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        *((program, mode) for program in (filled, assigned) for mode in MODES),
        (written_again, "preserve"),  # without copies each write touches all of the saves
    ],
)
def test_a_write_meets_a_save_once_if_it_does_not_touch_it(
    program: Callable[..., torch.Tensor], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, parts = list[int](), CONTEXT.parts

    def counting(context, handles, *args):
        met.append(len(handles))
        return parts.meet(context, handles, *args)

    monkeypatch.setattr(CONTEXT, "parts", parts._replace(meet=counting))
    with MODES[mode](), suppress(RuntimeError):
        program(64, weight()).backward()
    assert sum(met) <= 4 * 64


@pytest.mark.parametrize("program", [filled, assigned, written_again])
def test_rows_that_are_preserved_have_the_right_gradient(program: Callable[..., torch.Tensor]) -> None:
    x = weight()
    with noclobber.preserve():
        program(6, x).backward()
    expected = 6 * 2 * (2 * x).exp() if program is assigned else sum(range(6)) * torch.ones(8)
    torch.testing.assert_close(x.grad, 1 + expected.detach())
