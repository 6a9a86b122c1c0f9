"""The fingerprint of bytes: every layout and type, equal where the bytes are, other where one bit is."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import noclobber
from noclobber.observe.witness import digests
from noclobber.observe.witness.digests import BLOCK, LARGE, Contents, OnDevice, fingerprint, weighted

WIDE = torch.arange(3 * 4 * 5, dtype=torch.float32).reshape(3, 4, 5)
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "sliced": lambda t: t[:, 1:3],
    "strided": lambda t: t[:, ::2],
    "one column": lambda t: t[..., 1],
    "one element": lambda t: t[1, 2, 3],
    "expanded": lambda t: t[:, :1].expand(3, 6, 5),
    "unfolded": lambda t: t.unfold(2, 3, 1),
}
TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tells_a_changed_element(layout, dtype):
    tensor = LAYOUTS[layout]((WIDE % 2).to(dtype).clone())
    before = fingerprint(tensor)
    assert before is not None
    assert fingerprint(tensor.detach()) == before
    index = (0,) * tensor.dim()
    with torch.no_grad():
        tensor[index] = 1 - abs(tensor[index].item())
    assert fingerprint(tensor) != before


def test_a_large_tensor_that_is_not_dense_is_read_in_blocks(monkeypatch):
    monkeypatch.setattr(digests, "BLOCK", 64)
    tensor = torch.randn(9, 7, 6)[:, 1:5, ::2]
    before = fingerprint(tensor)
    tensor[8, 3, 2] += 1
    assert fingerprint(tensor) != before
    tensor[8, 3, 2] -= 1


def test_the_same_element_counted_once_where_a_tensor_is_expanded():
    huge = torch.ones(1).expand(BLOCK * 1024)
    assert fingerprint(huge) == fingerprint(torch.ones(1).expand(1))


@pytest.mark.parametrize("mark", ["conj", "neg"])
def test_marked_tensors_are_read_as_they_are_stored(mark):
    stored = torch.randn(4, dtype=torch.complex64)
    marked = stored.conj() if mark == "conj" else stored.conj().imag
    assert marked.is_conj() or marked.is_neg()
    before = fingerprint(marked)
    assert before is not None
    stored[2] += 1j
    assert fingerprint(marked) != before


def test_a_tensor_can_still_be_resized():
    """`numpy()` would forbid it for ever."""
    tensor = torch.zeros(4)
    assert fingerprint(tensor) is not None
    assert fingerprint(tensor[::2]) is not None
    tensor.resize_(4096)
    pytest.importorskip("numpy")
    tensor.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(100_000)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_subclasses_and_nested_tensors_have_memory_too():
    assert fingerprint(torch.ones(3).as_subclass(type("Mine", (torch.Tensor,), {}))) is not None
    assert Contents().at_save(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) is not None


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_and_empty():
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    assert isinstance(fingerprint(quantized), int)
    assert fingerprint(torch.empty(0, 3)) == fingerprint(torch.empty(0, 3))


def _fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="meta"),
        _fake,
    ],
    ids=["meta", "fake"],
)
def test_what_has_no_bytes_to_read_is_counted(make):
    seen = Contents()
    assert seen.at_save(make()) is None
    assert seen.unread == 1


@given(st.lists(st.integers(0, 255), min_size=1, max_size=70), st.data())
def test_the_fingerprint_of_devices_tells_every_byte(values, data):
    tensor = torch.tensor(values, dtype=torch.uint8)
    before, _ = weighted(tensor)
    assert torch.equal(before, weighted(tensor.clone())[0])
    index = data.draw(st.integers(0, len(values) - 1))
    tensor[index] ^= data.draw(st.integers(1, 255))
    assert not torch.equal(before, weighted(tensor)[0])


@pytest.mark.parametrize("size", [2, 5000, 9000])
def test_the_fingerprint_of_devices_tells_swaps_and_changes_that_cancel(size):
    tensor = torch.arange(size, dtype=torch.float64)
    before, _ = weighted(tensor)
    swapped = tensor.clone()
    swapped[0], swapped[-1] = tensor[-1], tensor[0]
    assert not torch.equal(before, weighted(swapped)[0])
    numbers = tensor.view(torch.int64).clone()
    numbers[0] += 5
    numbers[-1] -= 5
    assert not torch.equal(before, weighted(numbers)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [5, 5000, 3_000_001])
def test_the_fingerprint_of_devices_tells_signs(dtype, size):
    tensor = torch.ones(size, dtype=dtype)
    before, unsigned = weighted(tensor)
    for some in (slice(0, 1), slice(1, 2), slice(None, None, 2), slice(1, None, 2), slice(0, 4096), slice(None)):
        flipped = tensor.clone()
        flipped[some].neg_()
        assert not torch.equal(before, weighted(flipped)[0])
        assert not torch.equal(unsigned, weighted(flipped)[1])


@pytest.mark.parametrize("size", [4, 5000, 3_000_001])
def test_the_fingerprint_of_devices_may_pass_over_the_signs_of_zeros(size):
    tensor = torch.arange(size).remainder(3).float()
    tensor[::2] *= -1
    other = torch.where(tensor == 0, -tensor, tensor)
    assert not torch.equal(weighted(tensor)[0], weighted(other)[0])
    assert torch.equal(weighted(tensor)[1], weighted(other)[1])


def test_a_large_tensor_saved_twice_is_read_once(monkeypatch):
    read = []
    original = digests.fingerprint
    monkeypatch.setattr(digests, "fingerprint", lambda tensor: read.append(1) or original(tensor))
    seen, tensor = Contents(), torch.zeros(LARGE)
    first, second = tensor.detach(), tensor.detach()
    assert seen.at_save(first) == seen.at_save(second)
    assert len(read) == 1
    tensor += 1
    third = tensor.detach()
    assert seen.at_save(third) != seen.at_save(tensor[:-1].detach())
    assert len(read) == 3


def fused_steps():
    """The first graph is kept and never read; a fused step moves no version."""
    layer = nn.Linear(256, 256)
    optimizer, x = torch.optim.SGD(layer.parameters(), lr=0.1, fused=True), torch.randn(2, 256, requires_grad=True)
    kept = []
    for _ in range(2):
        kept.append(layer(x).sum())
        layer(x).square().sum().backward()
        optimizer.step()


def statistics():
    """In training the statistics are saved, and then overwritten by the same operator, which moves no version."""
    norm, x = nn.BatchNorm1d(LARGE // 4), torch.randn(2, LARGE // 4)
    trained = norm(x)
    norm.eval()(trained).sum().backward()


def through_data():
    """The first graph is kept and never read."""
    w = torch.randn(LARGE // 4, requires_grad=True)
    kept = (w * w).sum()
    w.data.mul_(2)
    (w * w).sum().backward()
    assert kept.requires_grad


@pytest.mark.parametrize("program", [fused_steps, statistics, through_data])
def test_a_fingerprint_is_not_used_again_after_a_write_without_a_version(program):
    with noclobber.watch(contents=True) as seen:
        program()
    assert seen.report.findings == ()


def test_memory_that_torch_did_not_allocate_is_read_for_every_save():
    numpy = pytest.importorskip("numpy")
    buffer = numpy.zeros(LARGE, dtype="uint8")
    seen, first = Contents(), torch.from_numpy(buffer)
    before = seen.at_save(first)
    buffer[0] = 1
    assert seen.at_save(torch.from_numpy(buffer)) != before


def test_a_dead_storage_is_not_taken_for_the_next_at_its_address():
    seen = Contents()
    for value in range(8):
        tensor = torch.full((LARGE,), value, dtype=torch.uint8)
        assert seen.at_save(tensor.detach()) == fingerprint(tensor)


def test_reads_are_shared_only_while_no_python_runs():
    seen, tensor = Contents(), torch.zeros(LARGE)
    alias = tensor.detach()
    seen.begin(sharing=True)
    before = seen.at_read(alias)
    tensor.data.add_(1)
    assert seen.at_read(alias) == before
    seen.begin(sharing=False)
    assert seen.at_read(alias) != before


class ReadsAndOverwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.square()

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return a.data.mul_(2) * g


def test_what_a_function_overwrites_in_backward_is_read_again():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch(contents=True) as seen:
            x = torch.linspace(-1, 1, LARGE // 4, requires_grad=True)
            ReadsAndOverwrites.apply(x.sigmoid()).sum().backward()
    assert [(found.code, found.save.node) for found in seen.report.findings] == [("NC206", "SigmoidBackward0")]


@pytest.mark.parametrize("size", [12, LARGE])
def test_what_backward_adds_to_a_gradient_that_is_saved_is_read_again(size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch(contents=True) as seen:
            x, w = torch.linspace(-1, 1, size, requires_grad=True), torch.ones(size, requires_grad=True)
            w.grad = torch.ones(size)
            g = w.grad.data
            ((x * g + w) * g).sum().backward()
    assert not torch.equal(x.grad, torch.ones(size))
    assert len(seen.report.findings) == 1


def test_what_stays_on_a_device_is_compared_when_the_backward_ends(monkeypatch):
    """There is no GPU here: every fingerprint is made as on one, and left there."""

    class Device(Contents):
        def at_save(self, alias):
            return OnDevice(*weighted(alias))

        at_read = at_save

    monkeypatch.setattr("noclobber.observe.arming.recorder.Contents", Device)
    monkeypatch.setattr(
        "noclobber.observe.policy.fingerprint",
        lambda alias: OnDevice(*weighted(alias)),
    )

    def run(write):
        with warnings.catch_warnings(), noclobber.watch(contents=True) as watched:
            warnings.simplefilter("ignore")
            x = torch.ones(3, requires_grad=True)
            y = x.exp()
            z = y * y
            write(y)
            z.sum().backward()
        return [finding.code for finding in watched.findings]

    assert run(lambda y: None) == []
    assert set(run(lambda y: y.data.mul_(2))) == {"NC201"}
