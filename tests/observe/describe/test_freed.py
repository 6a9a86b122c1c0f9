"""Which graph a second backward finds freed: its own, a part that two losses share, or that of an earlier iteration."""

from pathlib import Path

import pytest
import torch
from torch.nn.utils import parametrize

import noclobber
from noclobber.mend.cures import candidates

SAME = "second backward through a graph that the first one has freed"
SHARED = "backward reaches into a part of the graph that another backward has freed"
EARLIER = "backward reaches into a graph of an earlier iteration, which is already freed"


def twice():
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


def both_losses_made_before():
    h = torch.ones(3, requires_grad=True).exp()
    first, last = h.sin().sum(), h.cos().sum()
    first.backward()
    last.backward()


def two_heads():
    h = torch.ones(3, requires_grad=True).exp()
    h.sin().sum().backward()
    h.cos().sum().backward()


def two_heads_in_a_loop():
    x = torch.ones(3, requires_grad=True)
    for step in range(3):
        h = x.exp()
        h.sin().sum().backward()
        if step:
            h.cos().sum().backward()


def a_state():
    w, h = torch.ones(3, requires_grad=True), torch.zeros(3)
    for _ in range(2):
        h = (h + w).exp()
        h.sum().backward()


def a_state_and_two_heads():
    w, h = torch.ones(3, requires_grad=True), torch.zeros(3)
    for _ in range(2):
        h = (h + w).exp()
        h.sum().backward(retain_graph=True)
        h.sin().sum().backward()


def a_buffer():
    w, centre = torch.ones(3, requires_grad=True), torch.zeros(3)
    for _ in range(2):
        centre.mul_(0.9).add_(w.exp())
        (centre * 2).sum().backward()


def a_buffer_later():
    w, centre = torch.ones(3, requires_grad=True), torch.zeros(3)
    for _ in range(4):
        centre.mul_(0.9).add_(w.exp().detach() if _ < 2 else w.exp())
        (centre * w).sum().backward()


def a_row_of_a_buffer():
    w, memory = torch.ones(3, requires_grad=True), torch.zeros(2, 3)
    for _ in range(2):
        memory[0] = (memory[0] + w).exp()
        (memory * 2).sum().backward()


def a_state_and_a_write_beside_it():
    w, h, count = torch.ones(3, requires_grad=True), torch.zeros(3), torch.zeros(())
    for _ in range(2):
        count.add_(1)
        h = (h + w).exp()
        h.sum().backward()


WHICH = {
    twice: SAME,
    both_losses_made_before: SAME,
    two_heads: SHARED,
    two_heads_in_a_loop: SHARED,
    a_state: EARLIER,
    a_state_and_two_heads: EARLIER,
    a_buffer: EARLIER,
    a_buffer_later: EARLIER,
    a_row_of_a_buffer: EARLIER,
    a_state_and_a_write_beside_it: EARLIER,
}


def finding_of(program):
    seen = noclobber.watch()

    def watched():
        with seen:
            program()

    with pytest.raises(RuntimeError, match="a second time"):
        watched()
    (finding,) = seen.findings
    return finding


@pytest.mark.parametrize(("program", "told"), WHICH.items(), ids=[one.__name__ for one in WHICH])
def test_which_graph_is_freed(program, told):
    assert finding_of(program).message == told


class Skewed(torch.nn.Module):
    def forward(self, weight):
        return torch.matrix_exp(weight - weight.T)


def test_a_parametrized_weight_that_is_cached_over_two_backwards():
    layer = torch.nn.Linear(4, 4, bias=False)
    parametrize.register_parametrization(layer, "weight", Skewed())

    def program():
        with parametrize.cached():
            for _ in range(2):
                h = torch.zeros(2, 4)
                for _ in range(2):
                    h = torch.tanh(1 + layer(h))
                h.sum().backward()

    finding = finding_of(program)
    (help,) = finding.suggestions
    tried = [edit.replacement for one in candidates(finding, lambda path: Path(path).read_text()) for edit in one.edits]
    assert not any("retain_graph" in one for one in tried)
    assert "enter `parametrize.cached()` anew for each backward" in help.message

    def mended():
        for _ in range(2):
            with parametrize.cached():
                loss = torch.tanh(1 + layer(layer(torch.ones(2, 4)))).sum()
            loss.backward()

    mended()


@pytest.mark.parametrize(("program", "frees"), [(two_heads, 2), (two_heads_in_a_loop, 4)])
def test_the_backward_that_frees_is_shown(program, frees):
    labels = finding_of(program).labels
    (line,) = (one.span.line for one in labels if one.text == "this backward frees it")
    assert line == program.__code__.co_firstlineno + frees


def a_buffer_that_is_filled():
    memory, w = torch.zeros(3), torch.ones(3, requires_grad=True)
    for _ in range(3):
        h = (w + memory).exp()
        memory.copy_(h)
        h.sum().backward()


@pytest.mark.parametrize(
    ("program", "line"), [(a_buffer, 3), (a_buffer_later, 3), (a_row_of_a_buffer, 3), (a_buffer_that_is_filled, 4)]
)
def test_a_write_that_carries_is_shown(program, line):
    (shown,) = (one.span.line for one in finding_of(program).labels if one.role == "write")
    assert shown == program.__code__.co_firstlineno + line


@pytest.mark.parametrize("program", [a_state, two_heads, a_state_and_two_heads, a_state_and_a_write_beside_it])
def test_nothing_is_blamed_where_nothing_was_written(program):
    assert not [one for one in finding_of(program).labels if one.role == "write"]
