"""Recurrent layers keep what a GPU keeps: cuDNN's reserve. The sizes in numbers were read on GPUs."""

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import noclobber


@pytest.fixture
def run():
    with noclobber.fake(device="cuda") as block:
        yield block


def kept(make):
    with noclobber.watch(ledger=True) as seen:
        alive = make()
    del alive
    return sum(one.bytes for one in seen.ledger().kept)


def test_the_peak_of_an_lstm_is_the_measured_one(run):
    layer = nn.LSTM(512, 1024, 4).cuda()
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    for _ in range(3):
        loss = layer(torch.randn(256, 64, 512, device="cuda"))[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    measured = 2.60 * 2**30  # max_memory_allocated() on an H200, torch 2.11 with CUDA 13.0
    assert torch.cuda.max_memory_allocated() == pytest.approx(measured, rel=0.02)
    assert any("cuDNN" in note for note in run.notes)


@pytest.mark.parametrize(("make", "reserve"), [(nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)])
def test_the_reserve_is_what_cudnn_asked_for(run, make, reserve):
    """Read in pytorch#2895; the input, the output and the states are kept beside it."""
    layer, x = make(123, 320, 4).cuda(), torch.randn(250, 100, 123, device="cuda")
    states = 4 * 100 * 320 * 4 * (2 if make is nn.LSTM else 1)
    assert kept(lambda: layer(x)[0]) == reserve + x.nbytes + 250 * 100 * 320 * 4 + states


def test_a_reserve_grows_with_directions_and_shrinks_with_dtype(run):
    def of(dtype=torch.float32, **options):
        layer = nn.LSTM(64, 64, 2, **options).cuda().to(dtype)
        x = torch.randn(100, 10, 64, device="cuda", dtype=dtype)
        return kept(lambda: layer(x)[0])

    one = of()
    assert of(torch.bfloat16) == one // 2
    assert of(bidirectional=True) == 2 * one - 100 * 10 * 64 * 4  # the input is kept once
    assert of(proj_size=16) < one + 2 * 100 * 10 * 64 * 4


def test_inference_keeps_nothing(run):
    layer = nn.GRU(64, 64, 2).cuda().eval()
    x = torch.randn(100, 10, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        output = layer(x)[0]
    assert torch.cuda.memory_allocated() - before < 2 * output.nbytes


def batch(packed, first):
    x = torch.randn(5, 3, 8)
    if packed:
        return rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
    return x.transpose(0, 1).contiguous() if first else x


def computed(layer, x):
    output, states = layer(x)
    tensors = [output.data if isinstance(output, rnn.PackedSequence) else output]
    tensors += states if isinstance(states, tuple) else [states]
    sum(one.float().sum() for one in tensors).backward()
    gradients = [one.grad for one in layer.parameters()]
    return [(one.shape, one.stride(), one.dtype) for one in (*tensors, *gradients)]


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}, {"batch_first": True}])
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_results_have_the_shapes_of_real_ones(make, options, packed):
    x = batch(packed, options.get("batch_first"))
    real = computed(make(8, 16, 2, **options), x)
    with noclobber.fake(device="cuda"):
        assert computed(make(8, 16, 2, **options).cuda(), x.to("cuda")) == real


@pytest.mark.parametrize("bias", [True, False])
def test_a_projection_has_the_shapes_of_a_real_one(bias):
    real = computed(nn.LSTM(8, 16, 2, proj_size=4, bias=bias, bidirectional=True), batch(False, False))
    with noclobber.fake(device="cuda"):
        layer = nn.LSTM(8, 16, 2, proj_size=4, bias=bias, bidirectional=True).cuda()
        assert computed(layer, batch(False, False).cuda()) == real


def test_autocast_computes_in_float16_as_cudnn_does(run):
    layer, x = nn.LSTM(8, 16, 2).cuda(), torch.randn(5, 3, 8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output = layer(x)[0]
    assert output.dtype is torch.float16
    output.float().sum().backward()
    assert layer.weight_hh_l1.grad.dtype is torch.float32


def test_backward_through_a_layer_in_eval_mode_fails_as_it_does_on_a_gpu(run):
    layer = nn.LSTM(8, 16).cuda().eval()
    output = layer(torch.randn(5, 3, 8, device="cuda"))[0]
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        output.sum().backward()


@pytest.mark.parametrize(("make", "gates"), [(nn.LSTMCell, 4 + 4 + 4), (nn.GRUCell, 3 + 3 + 5)])
def test_a_cell_keeps_the_gates_of_input_and_state_and_its_own(run, make, gates):
    cell, x = make(32, 64).cuda(), torch.randn(10, 32, device="cuda")
    state = torch.randn(10, 64, device="cuda")
    hx = (state, state.clone()) if make is nn.LSTMCell else state
    states = 3 if make is nn.LSTMCell else 1  # both states, and the new cell state
    assert kept(lambda: cell(x, hx)) == 10 * (gates + states) * 64 * 4 + x.nbytes
    with torch.autocast("cuda", torch.bfloat16):
        made = cell(x, hx)
    output = made[0] if make is nn.LSTMCell else made
    assert output.dtype is torch.bfloat16
    output.float().sum().backward()
    assert cell.weight_hh.grad.shape == cell.weight_hh.shape
