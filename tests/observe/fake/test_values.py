"""Values in a run that has none: what is known stays right, all else gets a stand-in and is named."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn

import noclobber


@pytest.fixture
def run():
    with noclobber.fake() as block:
        yield block


def asked(block):
    return [note for note in block.notes if note.startswith("values were asked for")]


def test_numbers_of_the_program_are_known(run):
    lengths = torch.tensor([3, 1, 2])
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.max().item() == 3
    assert (lengths > 1).nonzero().flatten().tolist() == [0, 2]
    assert lengths[lengths > 1].tolist() == [3, 2]
    assert torch.cumsum(lengths, 0).numpy().tolist() == [3, 4, 6]
    assert torch.unique(torch.tensor([1, 1, 2])).tolist() == [1, 2]
    assert sorted(torch.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert not asked(run)


def test_a_write_changes_what_is_known_through_every_view(run):
    counts = torch.zeros(4, dtype=torch.int64)
    counts[1:3] += 2
    counts.view(2, 2)[0, 0] = 7
    assert counts.tolist() == [7, 2, 2, 0]
    counts[0] = torch.randn(1000, 1000).argmax()
    assert counts.tolist() == [1] * 4
    assert len(asked(run)) == 1


def test_values_that_depend_on_a_parameter_get_stand_ins(run):
    layer = torch.nn.Linear(8, 8)
    loss = layer(torch.randn(4, 8)).square().mean()
    assert isinstance(loss.item(), float)
    assert f"{loss:.3f}" == "1.000"
    assert not torch.isnan(loss).any()
    assert torch.isfinite(loss)
    assert loss.detach().cpu().numpy().shape == ()
    assert len(layer(torch.randn(4, 8)).tolist()[0]) == 8
    (said,) = asked(run)
    assert "values were asked for at 6 places" in said
    assert "test_values.py" in said


def test_a_mask_without_values_is_half_set(run):
    scores = torch.nn.Linear(8, 1)(torch.randn(10, 8)).squeeze(1)
    mask = scores > 0
    assert scores[mask].shape == (5,)
    assert scores[~mask].shape == (5,)
    assert mask.sum().item() == 5
    assert torch.masked_select(scores, mask).shape == (5,)
    scores[mask].sum().backward()


def test_real_arrays_stay_what_they_are(run):
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    out = torch.nn.Linear(3, 4)(torch.from_numpy(array))
    assert out.shape == (2, 4)
    assert array.sum() == 15


def test_what_needs_values_says_so_in_our_words(run):
    @torch.library.custom_op("noclobber_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(RuntimeError) as raised:
        doubled(torch.randn(3))
    (note,) = raised.value.__notes__
    assert note.startswith("noclobber: `noclobber_test::doubled` cannot run without values at ")
    assert "register_fake" in note


def test_an_operator_without_a_rule_runs_on_few_zeros_only(run):
    factors, scales = torch.geqrf(torch.randn(4, 3, device="cuda"))
    assert (factors.shape, scales.shape) == ((4, 3), (3,))
    assert factors.device == scales.device == torch.device("cuda:0")
    with pytest.raises(RuntimeError) as raised:
        torch.geqrf(torch.randn(10**6, 10**6))
    (note,) = raised.value.__notes__
    assert note.startswith("noclobber: `aten::geqrf` cannot run without values at ")
    assert "test_values.py" in note


def test_a_function_that_reads_memory_is_named(run):
    window = torch.ones(16, device="cuda")
    spectrum = torch.stft(torch.randn(100, device="cuda"), 16, window=window, return_complex=True)
    with pytest.raises(RuntimeError, match="not allocated") as raised:
        torch.istft(spectrum, 16, window=window)
    (note,) = raised.value.__notes__
    assert note.startswith("noclobber: `torch.functional.istft` cannot run without values at ")
    assert "test_values.py" in note


def test_what_no_other_process_can_get_is_refused_in_our_words(run):
    layer = torch.nn.Linear(3, 3)
    assert copy.copy(layer.weight).shape == copy.deepcopy(layer).weight.shape
    with pytest.raises(TypeError, match=r"^noclobber: a tensor of a run without values"):
        pickle.dumps(layer)


def test_a_copy_of_a_model_has_its_own_values():
    with noclobber.fake() as run:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        target = copy.deepcopy(model)
        counted = target[1].num_batches_tracked
        model(torch.randn(3, 4)).sum().backward()
        assert (model[1].num_batches_tracked.item(), counted.item()) == (1, 0)
        assert counted.fake_mode is model[1].num_batches_tracked.fake_mode
        with torch.no_grad():
            for old, new in zip(target.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    assert run.notes == ()


def test_a_tensor_is_made_of_the_numbers_of_others(run):
    one, other = torch.tensor(2.0), torch.tensor(3.0, device="cuda")
    made = torch.tensor([[one, other], [other, 4.0]], device="cuda")
    assert made.tolist() == [[2.0, 3.0], [3.0, 4.0]]
    assert made.is_cuda
    assert run.notes == ()
    assert torch.tensor([torch.randn(5).sum()]).shape == (1,)
    assert asked(run)


def test_threads_share_fake_tensors(run):
    weight = torch.randn(64, 64)

    def work(_):
        for _ in range(50):
            torch.relu(weight[1:].sum(0)).mul(2)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_no_loop_waits_for_a_value_for_ever(run):
    torch.nn.init.trunc_normal_(torch.empty(1000, 2000))
    assert run.notes == ()
    rounds = 0
    drawn = torch.nn.Linear(4, 4)(torch.randn(3, 4)) > 0
    while drawn.any():
        rounds += 1
        if rounds % 100 == 0:
            drawn = torch.nn.Linear(4, 4)(torch.randn(3, 4)) > 0
    left = torch.nn.Linear(4, 1)(torch.randn(1, 4))
    while left.item() > 0:
        rounds += 1
    assert rounds


def sequences(device):
    """What an encoder of sequences of several lengths and a CTC loss give: shapes, lengths, and gradients' shapes."""
    layer = torch.nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True, device=device)
    x = torch.randn(4, 8, 3, device=device, requires_grad=True)
    packed = rnn.pack_padded_sequence(x, torch.tensor([8, 3, 5, 1]), batch_first=True, enforce_sorted=False)
    out, lengths = rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
    chances = out.transpose(0, 1).log_softmax(2)
    targets = torch.ones(4, 1, dtype=torch.long, device=device)
    loss = torch.nn.functional.ctc_loss(chances, targets, lengths, torch.tensor([1, 1, 1, 1]))
    loss.backward()
    near = torch.linalg.lstsq(x[:, :, :2], torch.ones(4, 8, 1, device=device)).solution
    return (
        packed.data.shape,
        packed.batch_sizes.tolist(),
        out.shape,
        lengths.tolist(),
        loss.shape,
        x.grad.shape,
        near.shape,
    )


def test_sequences_of_several_lengths():
    real = sequences("cpu")
    with noclobber.fake() as run:
        assert sequences("cuda") == real
        assert torch.allclose(torch.tensor([1.0]), torch.tensor([1.0]))
        assert not asked(run)
        assert torch.allclose(torch.randn(10, device="cuda"), torch.randn(10, device="cuda"))
        unknown = torch.randn(3000, 2000).gt(0).sum(1)[:4]
        assert rnn.pack_padded_sequence(torch.randn(4, 8, 3), unknown, batch_first=True).data.shape == (32, 3)
    assert len(asked(run)) == 1
