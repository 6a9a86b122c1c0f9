"""Views that PyTorch refuses after a write to their base: the last write to their own memory is blamed, or none."""

import pytest
import torch
from torch import nn

import noclobber
from noclobber.model.source import source_line
from noclobber.observe.arming import recorder
from noclobber.observe.torch_api.tensors import tensor_state
from tests.observe.hearing import hear

W = torch.ones(3, requires_grad=True)


def computed(rows=4):
    return torch.ones(rows, 3, requires_grad=True) * W


def other_writes():
    """Writes to other memory: of a teacher, of an initialisation, of a buffer."""
    teacher = nn.Linear(3, 3)
    with torch.no_grad():
        teacher.weight.lerp_(torch.ones(3, 3), 0.1)
    torch.zeros(3).add_(1)
    computed().mul_(2)


def several_views():
    h = computed()
    h.add_(1)
    rows = h.unbind(0)
    h.mul_(0.5)  # blamed
    other_writes()
    return rows[0] + 1


def a_part_of_one_of_several():
    h = computed()
    part = h.split(2)[0][1:]
    h.mul_(0.5)  # blamed
    other_writes()
    return part + 1


def the_last_of_two_writes():
    h = computed()
    left, _ = h.chunk(2)
    h.mul_(0.5)
    h[3].mul_(2)  # blamed
    other_writes()
    return left + 1


def under_no_grad():
    h = computed()
    rows = h.unbind(0)
    with torch.no_grad():
        h.zero_()  # blamed
    other_writes()
    return rows[0] + 1


def in_a_loop():
    kept = []
    for _ in range(3):
        h = computed()
        kept += h.unbind(0)
        h.mul_(0.5)  # blamed
        other_writes()
    return kept[0] + kept[5]


def one_of_two_storages():
    first, second = computed(), computed()
    a, b = first.unbind(0)[0], second.unbind(0)[0]
    first.mul_(2)  # blamed
    second.mul_(3)
    other_writes()
    return use(a), b


def use(view):
    return view + 1


def made_under_no_grad():
    h = computed()
    with torch.no_grad():
        head = h[:2]
    h.mul_(0.5)  # blamed
    other_writes()
    return head + 1


def of_a_buffer_that_enters_the_graph():
    cache = torch.zeros(4, 3)
    rows = cache.unbind(0)
    cache[1] = W  # blamed
    other_writes()
    return rows[0] + 1


def made_in_inference_mode():
    h = computed()
    with torch.inference_mode():
        head = h[:2]
    h.mul_(0.5)  # blamed
    other_writes()
    return head + 1


def of_a_parameter_that_is_stepped():
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with torch.no_grad():
        head = layer.weight[:2]
    layer(torch.ones(3)).sum().backward()
    optimizer.step()  # blamed
    other_writes()
    return head + 1


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, rows, start):
        out[start : start + len(rows)] = rows  # blamed in the function
        return out

    @staticmethod
    def backward(ctx, grad):
        return None, grad, None


def returned_by_a_function():
    out = torch.empty(4, 3)
    pooled = Rows.apply(out, computed(2), 0)
    Rows.apply(out, computed(2), 2)
    other_writes()
    return pooled + 1


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def returned_and_then_written():
    h = computed()
    y = Same.apply(h)
    h.relu_()  # blamed
    other_writes()
    return y + 1


def in_library_code():
    h = computed()
    rows = h.unbind(0)
    nn.functional.relu(h, inplace=True)  # blamed
    other_writes()
    return rows[0] + 1


def read_by_a_write():
    h = computed()
    rows = h.unbind(0)
    h.mul_(0.5)  # blamed
    total = torch.zeros(3)
    total.add_(1)
    return total.add_(rows[0])


PROGRAMS = [
    several_views,
    a_part_of_one_of_several,
    the_last_of_two_writes,
    under_no_grad,
    in_a_loop,
    one_of_two_storages,
    made_under_no_grad,
    of_a_buffer_that_enters_the_graph,
    made_in_inference_mode,
    of_a_parameter_that_is_stepped,
    returned_by_a_function,
    returned_and_then_written,
    in_library_code,
    read_by_a_write,
]


def finding_of(program, watched=None):
    watched = watched or noclobber.watch()
    with pytest.raises(RuntimeError, match="its base or another view of its base") as raised, watched:
        program()
    with pytest.raises(RuntimeError) as bare:
        program()
    assert str(raised.value).startswith(str(bare.value))
    (finding,) = watched.findings
    return finding


def written(finding):
    return [(one.span.path, one.span.line) for one in finding.labels if one.role == "write"]


def marked(program, mark="blamed"):
    code = (Rows.forward if program is returned_by_a_function else program).__code__
    lines = range(code.co_firstlineno, code.co_firstlineno + 14)
    return [(code.co_filename, line) for line in lines if f"# {mark}" in source_line(code.co_filename, line)][:1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_last_write_to_the_memory_of_the_view_is_blamed(program):
    assert written(finding_of(program)) == marked(program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_installed_too(program):
    with noclobber.install():
        try:
            program()
        except RuntimeError as error:
            refusal = recorder.event_of(error)
    assert [(refusal.written.span().path, refusal.written.line)] == marked(program)


@pytest.mark.parametrize("made", [lambda h: h.unbind(0)[0], Same.apply], ids=["several", "function"])
def test_asking_a_view_that_pytorch_refuses_changes_nothing(made):
    h = computed()
    view = made(h)
    assert tensor_state.creation_of(view) not in ("", "DEFAULT")
    assert view.grad_fn is view.grad_fn
    h.mul_(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="its base or another view of its base"):
            view.grad_fn  # noqa: B018


def test_a_write_that_was_not_seen_is_not_guessed():
    def program():
        h = computed()
        rows = h.unbind(0)
        with torch.no_grad():
            h.detach().mul_(2)  # not in the graph, and nothing is saved there
        other_writes()
        rows[0] + 1

    finding = finding_of(program)
    assert written(finding) == []
    assert any("did not see the write" in note for note in finding.notes)


def refused():
    h = computed()
    rows = h.unbind(0)
    h.mul_(0.5)
    return h, rows[0]


def backward_of_it():
    refused()[1].backward(torch.ones(3))


def a_gradient_of_it():
    h, row = refused()
    torch.autograd.grad(h.sum(), [row, h])


def backward_for_it():
    h, row = refused()
    h.sum().backward(inputs=[row])


def a_leaf_that_refuses_it():
    torch.ones(3, requires_grad=True).add_(refused()[1])


def a_leaf_that_is_given_its_memory():
    leaf = nn.Parameter(torch.zeros(3))
    leaf.data = refused()[1]
    (leaf * 2).sum().backward()


def it_lies_beside_a_step():
    _, row = refused()  # noqa: RUF059 - a report looks at the variables
    layer = nn.Linear(3, 1)
    loss = (layer.weight * layer.weight).sum()
    layer.weight.grad = torch.ones(1, 3)
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    loss.backward()


@pytest.mark.parametrize(
    "program",
    [
        backward_of_it,
        a_gradient_of_it,
        backward_for_it,
        a_leaf_that_refuses_it,
        a_leaf_that_is_given_its_memory,
        it_lies_beside_a_step,
    ],
)
def test_a_refused_view_is_nowhere_asked_for_its_node(program):
    def run():
        try:
            program()
        except RuntimeError as error:
            return str(error)
        return "returned"

    heard, said = hear(run)
    assert said == run()
    assert not heard.failures
