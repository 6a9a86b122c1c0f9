"""Recurrent layers as a GPU computes them, in a fake run: cuDNN's for layers, PyTorch's fused kernels for cells. Both
keep more for backward than the CPU's do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch.utils import _pytree as pytree

from noclobber.observe.fake.gpu.kernels import is_on
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches

aten = torch.ops.aten
_MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""PyTorch's functions, in the order of cuDNN's numbers for them."""
_GATES = (1, 1, 4, 3)
_RESERVED = (1, 1, 5, 6)
"""What the reserve holds of each layer, in hidden states: the gates, and the cell state of an LSTM. See `_reserve`."""


def patch(patches: Patches, kind: str) -> None:
    """Put functions that choose a GPU's kernels for the played device in the place of PyTorch's."""
    functions = {name: _layers(getattr(torch, name), mode, kind) for mode, name in enumerate(_MODES)}
    functions["lstm_cell"] = _cell(torch.lstm_cell, kind, aten._thnn_fused_lstm_cell, True)
    functions["gru_cell"] = _cell(torch.gru_cell, kind, aten._thnn_fused_gru_cell, False)
    for name, function in functions.items():
        for place in (private.lookup("_VF"), torch):
            patches.put(place, name, function)


def _layers(native: Callable[..., Any], mode: int, kind: str) -> Callable[..., Any]:
    def layers(*args: Any, **options: Any) -> Any:
        is_for_cudnn = not options and is_on(kind, args[0]) and torch.backends.cudnn.enabled
        if not (is_for_cudnn and args[0].is_floating_point() and args[0].numel()):
            return native(*args, **options)
        if isinstance(args[3], bool):
            input, hx, weights, has_biases, count, dropout, train, both, batch_first = args
            sizes = []
        else:
            input, batch_sizes, hx, weights, has_biases, count, dropout, train, both = args
            sizes, batch_first = batch_sizes.tolist(), False
        hidden, cell = hx if mode == _MODES.index("lstm") else (hx, None)
        if torch.is_autocast_enabled(kind):  # float16 whatever is asked for (torch 2.13, AutocastRNN.cpp)
            input, hidden, cell, weights = pytree.tree_map_only(
                torch.Tensor, torch.Tensor.half, (input, hidden, cell, list(weights))
            )
        width = hidden.shape[2] if cell is None else cell.shape[2]
        projected = hidden.shape[2] if hidden.shape[2] != width else 0
        each = 2 + 2 * has_biases + (projected > 0)
        output, hy, cy, *_ = aten._cudnn_rnn(
            input, weights, each, None, hidden, cell, mode, width, projected, count, batch_first, dropout, train, both,
            sizes, None,
        )  # fmt: skip
        return (output, hy) if cell is None else (output, hy, cy)

    return layers


def _cell(native: Callable[..., Any], kind: str, fused: Callable[..., Any], has_cell: bool) -> Callable[..., Any]:
    """Return a cell that a fused kernel computes; its state has two parts if it `has_cell`, as that of an LSTM."""

    def cell(input: torch.Tensor, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = hx if has_cell else (hx,)
        if not is_on(kind, input, *states):
            return native(input, hx, w_ih, w_hh, b_ih, b_hh)
        gates = functional.linear(input, w_ih), functional.linear(states[0], w_hh)
        made = fused(*gates, *_like(gates[0], states[-1], b_ih, b_hh))
        return made[:2] if has_cell else made[0]

    return cell


def _like(gates: torch.Tensor, *tensors: Any) -> list[Any]:
    """Return tensors in the dtype of the gates, as autocast does."""
    return [one if one is None else one.to(gates.dtype) for one in tensors]


class Cudnn:
    """What cuDNN's operators return. `fresh` makes fake tensors, and counts them.

    NVIDIA does not say how `cudnnGetRNNTempSpaceSizes` gets the sizes of reserve and workspace: both are estimates.
    """

    def __init__(self, fresh: Callable[[Callable[[], Any]], Any]) -> None:
        self._fresh = fresh
        self._has_estimated = False
        self.of: dict[Any, Callable[..., Any]] = {
            aten._cudnn_rnn.default: self._rnn,
            aten._cudnn_rnn_backward.default: self._rnn_backward,
            aten._thnn_fused_gru_cell.default: self._gru,
            aten._thnn_fused_gru_cell_backward.default: self._gru_backward,
        }

    def notes(self) -> list[str]:
        return ["the memory that cuDNN takes for recurrent layers is an estimate"] * self._has_estimated

    def _rnn(
        self, input: torch.Tensor, weights: Sequence[torch.Tensor], each: int, flat: Any, hx: torch.Tensor, cx: Any,
        mode: int, width: int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool, both: bool,
        sizes: Sequence[int], state: Any,
    ) -> Any:  # fmt: skip
        """Return what PyTorch returns: the output, both states, the reserve, and weights in one piece, which are here
        the weights as they are (torch 2.13, cudnn/RNN.cpp)."""
        self._has_estimated = True
        steps_first = input.transpose(0, 1) if batch_first and not sizes else input
        outputs = (projected or width) * (1 + both)
        shape = (*steps_first.shape[:-1], outputs)

        def make() -> tuple[torch.Tensor, ...]:
            output = input.new_empty(shape)
            if steps_first is not input:
                output.transpose_(0, 1)
            cy = hx.new_empty(0) if cx is None else torch.empty_like(cx)
            size = _reserve(input, mode, width, projected, layers, both) if train else 0
            result = output, torch.empty_like(hx), cy, input.new_empty(size, dtype=torch.uint8), hx.new_empty(0)
            _ = steps_first.contiguous(), _workspace(input, weights, mode, width, both)
            return result

        return self._fresh(make)

    def _rnn_backward(
        self, input: torch.Tensor, weights: Sequence[torch.Tensor], each: int, flat: Any, hx: torch.Tensor, cx: Any,
        output: torch.Tensor, grad_output: Any, grad_hy: Any, grad_cy: Any, mode: int, width: int, projected: int,
        layers: int, batch_first: bool, dropout: float, train: bool, both: bool, *rest: Any,
    ) -> Any:  # fmt: skip
        """Return the gradients: those of the input and the states, and then those of the weights."""
        if not train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        wanted = rest[-1]

        def make() -> tuple[Any, ...]:
            given = torch.zeros_like(output) if grad_output is None else grad_output
            turned = (one.transpose(0, 1) if batch_first else one for one in (input, given))
            held: list[Any] = [one.contiguous() for one in turned]
            states = [None if one is None else torch.empty_like(one) for one in (input, hx, cx)]
            held.append(_workspace(input, weights, mode, width, both))
            held.pop()  # before the next one is made
            of_weights = [torch.zeros_like(one) if wanted[3] else None for one in weights]
            held.append(_workspace(input, weights, mode, width, both))
            return *states, of_weights

        return self._fresh(make)

    def _gru(self, input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: Any) -> Any:
        """Return the state, and what PyTorch keeps of five gates (torch 2.13, cuda/RNN.cu)."""
        shape = (hx.shape[0], 5 * hx.shape[1])
        return self._fresh(lambda: (torch.empty_like(hx), hx.new_empty(shape)))

    def _gru_backward(self, grad_hy: torch.Tensor, kept: torch.Tensor, has_bias: bool) -> Any:
        rows, gates = grad_hy.shape[0], 3 * grad_hy.shape[1]

        def make() -> tuple[Any, ...]:
            of_gates = [grad_hy.new_empty(rows, gates) for _ in range(2)]
            biases = [grad_hy.new_empty(gates) if has_bias else None for _ in range(2)]
            return *of_gates, torch.empty_like(grad_hy), *biases

        return self._fresh(make)


def _rows(input: torch.Tensor) -> int:
    """Return how many time steps all sequences of a batch have."""
    return input.numel() // input.shape[-1]


def _reserve(input: torch.Tensor, mode: int, width: int, projected: int, layers: int, both: bool) -> int:
    """Return the bytes that cuDNN keeps for backward, by time step and direction: what `_RESERVED` says of each layer,
    and the output of each layer but the last.

    pytorch#2895 has sizes that an older cuDNN gave on a P100: 736,000,000 bytes for an LSTM, 864,000,000 for a GRU. The
    counts of parameters there say 4 layers of 320 hidden states in float32. The sizes are then 23 and 27 hidden states
    of 25,000 time steps: 4 * 5 + 3 and 4 * 6 + 3. For `nn.RNN`, 4 * 1 + 3 follows from the memory in use there. That a
    projection keeps its input is a derivation. The peak of an LSTM with cuDNN 9 agrees (docs/see-before-you-run.md).
    """
    states = layers * (_RESERVED[mode] + (projected > 0)) * width + (layers - 1) * (projected or width)
    return _rows(input) * (1 + both) * states * input.itemsize


def _workspace(input: torch.Tensor, weights: Sequence[torch.Tensor], mode: int, width: int, both: bool) -> torch.Tensor:
    """Return a workspace: a copy of the weights (so in pytorch#2895), and for one layer the gradients of its gates, its
    input and its output.

    The second part is chosen so that it explains one measurement, of an LSTM with cuDNN 9 on an H200
    (docs/see-before-you-run.md): its peak leaves 543 MB for the workspace, and this is 528 MB.
    """
    states = _rows(input) * (1 + both) * (_GATES[mode] + 2) * width
    size = (states + sum(one.numel() for one in weights)) * input.itemsize
    return input.new_empty(size, dtype=torch.uint8)
