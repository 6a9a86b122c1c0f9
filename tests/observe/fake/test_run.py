"""A block without values: findings, steps, models from before, memory."""

import contextlib
import copy

import pytest
import torch

import noclobber
from noclobber.observe.fake import mode, ranks
from noclobber.observe.fake.gpu import devices


def test_a_stale_save_is_found_at_full_size():
    with noclobber.fake():
        layer = torch.nn.Linear(50_000, 50_000)  # 10 GB
        with noclobber.watch() as seen:
            hidden = torch.sigmoid(layer(torch.randn(8, 50_000)))
            hidden += 1
            with pytest.raises(noclobber.ClobberError):
                hidden.sum().backward()
    (finding,) = seen.findings
    assert finding.code == "NC101"
    assert not seen.report.coverage.not_watched


def test_nothing_found_says_that_there_were_no_values():
    with noclobber.fake(), noclobber.watch() as seen:
        torch.nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
    assert str(seen.report).startswith("noclobber: nothing found in 1 backward call, in a run without values")


def test_a_model_from_before_is_as_it_was():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    parameters = list(model.parameters())
    with noclobber.fake():
        model.cuda()
        assert model[0].weight.device.type == "cuda"
        model(torch.randn(8, 4, device="cuda")).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    model(torch.randn(8, 4)).sum().backward()


def test_a_model_that_is_not_moved_is_as_it_was_too():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    with noclobber.fake():
        model(torch.randn(8, 4)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_it_stops_after_the_steps_of_every_optimizer():
    steps = []
    with noclobber.fake(steps=2) as block:
        layers = [torch.nn.Linear(2, 2) for _ in range(2)]
        critic, generator = (torch.optim.SGD(one.parameters(), lr=0.1) for one in layers)
        for step in range(100):
            for one in layers:
                one(torch.randn(1, 2)).sum().backward()
            critic.step()
            if step % 3 == 2:
                steps.append(step)
                generator.step()
    assert steps == [2, 5]
    assert block.notes == ("the program was stopped after 8 optimizer steps (`--steps`)",)


def test_an_error_of_the_block_gets_out():
    with pytest.raises(ZeroDivisionError), noclobber.fake():
        raise ZeroDivisionError
    assert type(torch.randn(3)) is torch.Tensor


def test_no_block_inside_another():
    with noclobber.fake(), pytest.raises(RuntimeError, match="under way"), noclobber.fake():
        pass
    with noclobber.fake():
        pass


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match="cuda:8xH100"):
        noclobber.fake(device="cuda:8xZ9")


def test_what_the_peak_is_made_of():
    with noclobber.fake(device="cuda:H100") as block:
        layer = torch.nn.Linear(1000, 1000, bias=False, device="cuda")
        optimizer = torch.optim.Adam(layer.parameters(), foreach=False)
        for _ in range(2):
            hidden = layer(torch.randn(500, 1000, device="cuda")).sigmoid().sum()
            hidden.backward()
            optimizer.step()
            optimizer.zero_grad()
    (peak,) = [one for one in block.peaks if one.device == "cuda:0"]
    assert peak.room == 80 * 10**9
    assert peak.parameters == peak.gradients == 4_000_000
    assert 8_000_000 <= peak.optimizer < 8_000_100
    assert peak.activations >= 4_000_000


def test_frozen_parameters_and_those_that_are_moved_are_parameters_at_the_peak():
    with noclobber.fake(device="cuda:H100") as block:
        net = torch.nn.Sequential(torch.nn.Linear(1000, 1000, bias=False), torch.nn.Linear(1000, 10, bias=False))
        net[0].requires_grad_(False)
        net.to("cuda")
        optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
        net(torch.randn(5, 1000, device="cuda")).sum().backward()
        optimizer.step()
    parameters = {one.device: one.parameters for one in block.peaks}
    assert parameters == {"cuda:0": 4_040_000, "cpu": 4_040_000}


def test_a_run_that_cannot_begin_leaves_everything_as_it_was(monkeypatch):
    def fails(*_):
        raise OSError("no rank")

    monkeypatch.setattr(ranks.Ranks, "begin", fails)
    before = torch.cuda.is_available
    with pytest.raises(OSError, match="no rank"), noclobber.fake():
        raise AssertionError
    assert torch.cuda.is_available is before
    assert type(torch.ones(2)) is torch.Tensor
    monkeypatch.undo()
    with noclobber.fake():
        assert torch.ones(2).numel() == 2


def test_writes_leave_no_version_behind():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    loss = model(x).sum()
    tensors = [*model.parameters(), *model.buffers(), x]
    before = [one._version for one in tensors]
    with noclobber.fake(device="cpu"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x).sum().backward()
        optimizer.step()
        x.add_(1)
        assert [one._version for one in tensors] != before
    assert [one._version for one in tensors] == before
    loss.backward()  # what it saved before the block was not written


def test_a_failure_of_noclobber_costs_what_follows_and_not_the_program(monkeypatch):
    def broken(*_):
        raise ValueError("planted")

    monkeypatch.setattr(mode, "follow", broken)
    with noclobber.fake() as run:
        y = torch.nn.Linear(4, 4)(torch.randn(2, 4)).sum()
        y.backward()
    assert any("the run without values failed: ValueError: planted" in note for note in run.notes)


def test_a_failure_inside_a_replaced_function_is_not_the_programs(monkeypatch):
    monkeypatch.setattr(devices.values, "MOST", None)  # compared with a number
    run = noclobber.fake()
    with pytest.raises(TypeError) as raised, run:
        torch.randn(3).numpy()
    assert raised.value.__notes__ == ["noclobber: this error comes from noclobber itself, not from the program"]
    assert any("the run without values failed: TypeError" in note for note in run.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: torch.randn(3, device="cuda").numpy(),
        lambda: torch.randn(3, device="cuda:7"),
        lambda: torch.randn(3, dtype=torch.bfloat16).numpy(),
        lambda: torch.randn(3).undefined,
        lambda: torch.dropout(torch.randn(3), 7, True),
        lambda: torch.nn.functional.scaled_dot_product_attention(1, 2, 3),
    ],
)
def test_an_error_of_the_program_stays_its_own(wrong):
    run = noclobber.fake()
    with pytest.raises((TypeError, RuntimeError, AttributeError)) as raised, run:
        wrong()
    assert not any("from noclobber itself" in note for note in getattr(raised.value, "__notes__", ()))
    assert not any("failed" in note for note in run.notes)


def scaled_through_data(weight):
    y = torch.randn(3, 4, requires_grad=True) @ weight
    weight.data[:2].mul_(0.5)
    return y.sum() + weight.sum()


def scaled_before_it_is_saved(weight):
    weight.data.mul_(0.5)
    return (torch.randn(3, 4) @ weight).sum()


def other_rows(weight):
    y = torch.sigmoid(weight[:2])
    weight.data[2:].mul_(0.5)
    return y.sum()


def hooked_in_place(weight):
    h = weight.sin()
    left, right = h + 0, h * 1
    joined = left + right  # both get one gradient
    right.register_hook(lambda gradient: gradient.mul_(2))
    return joined.square().sum()


def hooked_out_of_place(weight):
    h = weight.sin()
    h.register_hook(lambda gradient: gradient * 2)
    return h.square().sum()


def cut_off(weight):
    factor = torch.randn(4, 4, requires_grad=True)
    weight.data -= (weight * factor).sum() * factor
    return weight.square().sum()


def stepped_fused(weight):
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=True)
    first, second = weight.square().sum(), weight.pow(3).sum()
    first.backward()
    optimizer.step()
    return second


def moved_to_other_memory(weight):
    product = torch.randn(3, 4, requires_grad=True) @ weight
    product.register_hook(lambda _: setattr(weight, "data", weight.data.clone()))  # as FSDP gathers it again
    return product.sum()


def statistics_rewritten(weight, training=False):
    norm = torch.nn.BatchNorm1d(4).train(training)
    loss = norm(weight).square().sum()
    norm.train()(weight.detach() + 1)
    return loss


def statistics_of_training(weight):
    return statistics_rewritten(weight, training=True)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (stepped_fused, "NC203"),
        (moved_to_other_memory, None),
        (statistics_rewritten, "NC203"),
        (statistics_of_training, None),
        (scaled_through_data, "NC201"),
        (hooked_in_place, "NC206"),
        (cut_off, "NC208"),
        (scaled_before_it_is_saved, None),
        (other_rows, None),
        (hooked_out_of_place, None),
    ],
)
def test_writes_that_no_version_tells_are_found_as_with_values(program, code):
    expected = [code] if code else []
    for block in (contextlib.nullcontext(), noclobber.fake()):
        with block, noclobber.watch(contents=True) as seen:
            program(torch.randn(4, 4, requires_grad=True)).backward()
        assert sorted({one.code for one in seen.findings}) == expected


def test_a_write_whose_version_is_kept_changes_nothing():
    with noclobber.fake(), noclobber.watch() as seen:
        weight = torch.randn(4, 4, requires_grad=True)
        y = torch.randn(3, 4, requires_grad=True) @ weight
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.copy_(torch.randn(4, 4))  # as FSDP gathers a parameter again
        y.sum().backward()
    assert not seen.findings


def test_attention_by_a_function_of_the_program():
    from torch.nn.attention.flex_attention import flex_attention

    with noclobber.fake() as run:
        query, key, value = (torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(3))
        flex_attention(query, key, value, score_mod=lambda score, b, h, i, j: score + i - j).sum().backward()
        assert query.grad.shape == query.shape
        assert torch.cond(query.sum() > 0, torch.sin, torch.cos, (query,)).shape == query.shape
    assert len(run.notes) <= 1
