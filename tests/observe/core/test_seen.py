"""What is seen of writes and saves, by which line: each program marks its own lines with `# saved` and `# written`."""

import contextlib
import gc
import inspect
import threading
import warnings
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import noclobber


def marked(program, mark):
    lines, start = inspect.getsourcelines(program)
    return {start + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")}


def found(program, around=noclobber.watch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        watch = around()
        try:
            with watch:
                program()
        except RuntimeError:
            pass
    return watch.findings


def lines(finding, role):
    return {label.span.line for label in finding.labels if label.role == role}


def x_and_product(w):
    x = torch.ones(3, requires_grad=True)
    return x * w


def method():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w.mul_(2)  # written
    y.backward()


def operator_equals():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w += 1  # written
    y.backward()


def set_item():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w[0] = 5  # written
    y.backward()


def set_item_with_a_mask():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w[w > 0] = 5  # written
    y.backward()


def out():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    torch.add(torch.ones(3), 1, out=w)  # written
    y.backward()


def out_of_two():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    torch.max(torch.ones(3, 3), 0, out=(w, torch.empty(3, dtype=torch.long)))  # written
    y.backward()


def foreach():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    torch._foreach_mul_([torch.ones(1), w], 2.0)  # written
    y.backward()


def functional_in_place():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    F.leaky_relu(w.neg_(), inplace=True)  # written
    y.backward()


def under_no_grad():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    with torch.no_grad():
        w.zero_()  # written
    y.backward()


def in_inference_mode():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    with torch.inference_mode():
        w.zero_()  # written
    y.backward()


def through_views_and_aliases():
    w = torch.ones(2, 3)
    y = (torch.ones(3, requires_grad=True) * w[1]).sum()
    w.t().detach().view(3, 2)[:, 1:].clamp_(5)  # written
    y.backward()


def library_initialiser():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    nn.init.zeros_(w)  # written
    y.backward()


def embedding_max_norm():
    table = torch.ones(4, 3)
    y = x_and_product(table[0]).sum()
    F.embedding(torch.tensor([0]), table, max_norm=0.1)  # written
    y.backward()


def in_a_thread():
    w = torch.ones(3)
    y = x_and_product(w).sum()

    def work():
        w.zero_()  # written

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    y.backward()


def scripted():
    @torch.jit.script
    def wipe(w: torch.Tensor) -> torch.Tensor:
        return w.zero_()

    w = torch.ones(3)
    y = x_and_product(w).sum()
    wipe(w)  # written
    y.backward()


def custom_operator_registered_later():
    with torch.library._scoped_library("noclobber_test", "FRAGMENT"):
        name = f"noclobber_test::wipe_{threading.get_ident()}"

        @torch.library.custom_op(name, mutates_args={"w"})
        def wipe(w: torch.Tensor) -> None:
            w.zero_()

        w = torch.ones(3)
        y = x_and_product(w).sum()
        wipe(w)  # written
        y.backward()


def gradient_accumulation():
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    y = (torch.ones(3, requires_grad=True) * x.grad).sum()
    (x * 2).sum().backward()  # written
    y.backward()


def custom_backward():
    class Wipes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, w):
            ctx.w = w
            return a.clone()

        @staticmethod
        def backward(ctx, g):
            ctx.w.zero_()  # written
            return g, None

    w = torch.ones(3)
    Wipes.apply(x_and_product(w), w).sum().backward()


def storage_fill():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w.untyped_storage().fill_(0)  # written
    y.backward()


def data_write():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w.data.zero_()  # written
    y.backward()


def data_assignment():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    w.data = torch.zeros(3)  # written
    y.backward()


def an_alias_made_by_set():
    w = torch.ones(3)
    y = x_and_product(w).sum()
    torch.empty(0).set_(w.untyped_storage(), 0, (3,)).zero_()  # written
    y.backward()


def fused_optimizer():
    w = nn.Parameter(torch.ones(3))
    y = (w**3).sum()
    w.grad = torch.ones(3)
    torch.optim.SGD([w], lr=1.0, fused=True).step()  # written
    y.backward()


def batch_norm_statistics():
    norm = nn.BatchNorm1d(3).eval()
    x = torch.randn(8, 3, requires_grad=True)
    y = (norm(x) ** 3).sum()
    norm.train()
    norm(torch.randn(8, 3) * 100 + 50)  # written
    y.backward()


RAISED = [
    method,
    operator_equals,
    set_item,
    set_item_with_a_mask,
    out,
    out_of_two,
    foreach,
    functional_in_place,
    under_no_grad,
    in_inference_mode,
    through_views_and_aliases,
    library_initialiser,
    embedding_max_norm,
    in_a_thread,
    scripted,
    custom_operator_registered_later,
    gradient_accumulation,
    custom_backward,
]
SILENT = [
    storage_fill,
    data_write,
    data_assignment,
    an_alias_made_by_set,
    fused_optimizer,
    batch_norm_statistics,
]


@pytest.mark.parametrize("program", RAISED, ids=lambda p: p.__name__)
def test_a_write_that_pytorch_raises_about_is_blamed_on_its_line(program):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program()
    findings = found(program)
    assert any(lines(finding, "write") & marked(program, "written") for finding in findings)
    assert {finding.code for finding in findings} <= {"NC101", "NC103"}


@pytest.mark.parametrize("program", SILENT, ids=lambda p: p.__name__)
def test_a_write_that_pytorch_is_silent_about_is_blamed_on_its_line(program):
    program()
    findings = found(program)
    assert [finding.code for finding in findings if lines(finding, "write") & marked(program, "written")]
    assert {finding.code for finding in findings} <= {"NC201", "NC203"}


@pytest.mark.parametrize("program", [p for p in RAISED if p not in (in_a_thread, scripted)], ids=lambda p: p.__name__)
def test_a_stopped_write_is_stopped_at_its_line_and_changes_nothing(program):
    with pytest.raises(noclobber.ClobberError) as error, noclobber.watch(on_write="raise"):
        program()
    traceback, at = error.value.__traceback__, set()
    while traceback is not None:
        at.add(traceback.tb_lineno)
        traceback = traceback.tb_next
    assert at & marked(program, "written")


def written_through(target):
    y = torch.ones(3, requires_grad=True).exp()
    target(y).mul_(2)
    y.sum().backward()


@pytest.mark.parametrize(
    ("target", "code"),
    [(lambda y: y, "NC101"), (lambda y: y[:2], "NC101"), (lambda y: y.data, "NC201"), (lambda y: y.detach(), "NC101")],
    ids=["itself", "a view", "data", "detached"],
)
def test_a_stopped_write_has_the_code_that_it_has_otherwise(target, code):
    versions = []
    for on_write in ("record", "raise"):
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with noclobber.watch(on_write=on_write) as seen:
                written_through(lambda y: versions.append(y) or target(y))
        assert [one.code for one in seen.findings] == [code]
        was_stopped = "noclobber stopped this write before it happened" in seen.findings[0].notes
        assert was_stopped is (on_write == "raise")
    assert versions[1]._version == 0


FACTORS = {
    "a quotient": lambda part, factor: part.div_(factor),
    "a product": lambda part, factor: part.mul_(factor),
    "a power": lambda part, factor: part.pow_(factor),
    "a sum of products": lambda part, factor: part.addcmul_(factor, factor),
}


@pytest.mark.parametrize("write", FACTORS.values(), ids=FACTORS)
def test_the_saves_of_a_write_to_a_view_are_told_with_those_before_it(write):
    """The node of such a write lies inside a CopySlices, which shows none of its saves."""
    with warnings.catch_warnings(), noclobber.watch() as seen:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        w = torch.ones(3, requires_grad=True)
        rows, factors, other = torch.ones(2, 3), torch.ones(2), (w * 2).exp()
        factors[0] = w.sum()
        rows[0] = w * 3
        write(rows[0], factors[0])
        quiet = (factors[1:] * w.sum()).exp()  # another graph, whose saves nobody reads
        factors[1].copy_(torch.tensor(5.0))  # `factors[1] = 5` is `fill_` from torch 2.15 on
        other += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (rows.sum() + other.sum()).backward()
    del quiet
    written = {finding.writes[-1].op for finding in seen.findings}
    assert written == {"aten::add_", "aten::copy_"}
    assert len(seen.findings) == 2


def test_a_backward_call_keeps_its_graph_no_longer_than_without():
    """A watcher of a call has something to do at its end, and refers to the call (a write under `no_grad` waits)."""

    def program():
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        with torch.no_grad():
            y.fill_(3)
        y.sum().backward()
        return ref(x)

    gc.disable()
    try:
        with noclobber.watch():
            alive = program()
        assert alive() is None
    finally:
        gc.enable()
