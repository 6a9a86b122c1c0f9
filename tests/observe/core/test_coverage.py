"""What can't be seen shows in the coverage; facts about PyTorch that the ways of seeing rely on."""

import warnings

import pytest
import torch
import torch._dynamo

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen import written
from noclobber.observe.core.writes import write_kernels
from noclobber.observe.torch_api.dispatch import spare_key


def unseen(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with noclobber.watch() as seen:
            program()
    return " ".join(seen.report.coverage.unseen)


def stored_elsewhere():
    store = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: store.append(t.clone()) or 0, store.__getitem__):
        y = torch.ones(2, requires_grad=True).exp()
    y.sum().backward()


def transforms():
    torch.func.grad(lambda x: x.exp().sum())(torch.ones(2))


def compiled():
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))


def opaque_write():
    torch.ones(2).to_mkldnn().mul_(2)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (stored_elsewhere, "saved-tensor hooks"),
        (transforms, "torch.func"),
        (opaque_write, "without a storage"),
        (compiled, "compiled regions"),
    ],
)
def test_what_is_not_seen_is_said(program, words):
    assert words in unseen(program)


def test_nothing_is_said_where_all_is_seen():
    assert unseen(lambda: torch.ones(2).add_(1)) == ""


def test_saves_outside_the_hooks_are_still_checked():
    def program():
        x = torch.ones(2, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            x.sin()
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    with pytest.raises(noclobber.ClobberError), noclobber.watch():
        program()


def test_the_spare_key_answers():
    write_kernels.test(CONTEXT)
    assert not spare_key.key_is_set()


def test_nothing_is_watched_where_torch_has_no_such_key():
    with pytest.raises(noclobber.UnsupportedTorch, match="no dispatch key NoSuchKey"):
        spare_key.key_of("NoSuchKey")


def schema(name, overload="default"):
    return getattr(getattr(torch.ops.aten, name), overload)._schema


def test_schemas_that_do_not_say_what_they_write():
    """If a release mends these, the table in written.py can go."""
    for name in ("native_batch_norm", "batch_norm_update_stats"):
        assert not schema(name).is_mutable
        assert {argument for _, argument in written.written_by(schema(name)).arguments} == {
            "running_mean",
            "running_var",
        }


def test_fused_optimizers_move_no_version():
    """If a release mends this, they need no word of their own."""
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    torch.optim.SGD([p], lr=1.0, fused=True).step()
    assert p._version == 0
    assert written.written_by(schema("_fused_sgd_")).uncounted


def test_writes_below_the_key_that_counts_versions():
    """`install` remembers none of these, as they can make no error. torch makes them within its own kernels."""
    t = torch.ones(3)
    assert not spare_key.below_versions()
    with torch._C._AutoDispatchBelowADInplaceOrView():
        assert spare_key.below_versions()
        t.add_(1)
    assert t._version == 0
    with torch.inference_mode():
        assert not spare_key.below_versions()
        t.add_(1)
    assert t._version == 1


def test_ordinary_schemas():
    assert written.written_by(schema("add_", "Tensor")) == written.Written("aten::add_", ((0, "self"),), False)
    assert written.written_by(schema("add", "Tensor")) is None
    assert written.makes_many_views(schema("unbind", "int"))
    assert not written.makes_many_views(schema("unsafe_chunk"))
    assert not written.makes_many_views(schema("select", "int"))


def test_nested_watches_and_install_share_one_recorder():
    def wrong():
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.data.zero_()
        y.sum().backward()

    installed = noclobber.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch() as outer:
            with noclobber.watch() as inner:
                wrong()
            wrong()
    installed.uninstall()
    assert [finding.count for finding in inner.findings] == [1]
    assert [finding.count for finding in outer.findings] == [2]
    assert not spare_key.key_is_set()
