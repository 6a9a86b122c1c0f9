"""Recurrent operators write many times, but only to memory of their own, so noclobber does not log these writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen import written
from noclobber.observe.core.seen.records import moment
from noclobber.observe.describe.write_history import since
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness import digests
from tests.observe.hearing import bare, hear, is_marked
from tests.tensors import all_equal

Layer = Callable[[Tensor], Any]


def sequence(layer: nn.RNNBase) -> Layer:
    return lambda x: layer(x.expand(3, 2, 4))


def packed(layer: nn.RNNBase) -> Layer:
    return lambda x: layer(pack_sequence([x, x[:1]]))


def layers() -> dict[str, Layer]:
    torch.default_generator.manual_seed(0)
    of_sequences = {
        "lstm": lambda: nn.LSTM(4, 3, 2, bidirectional=True, dropout=0.2),
        "gru": lambda: nn.GRU(4, 3),
        "rnn_tanh": lambda: nn.RNN(4, 3),
        "rnn_relu": lambda: nn.RNN(4, 3, nonlinearity="relu"),
    }
    return {
        "lstm_cell": nn.LSTMCell(4, 3),
        "gru_cell": nn.GRUCell(4, 3),
        "rnn_tanh_cell": nn.RNNCell(4, 3),
        "rnn_relu_cell": nn.RNNCell(4, 3, nonlinearity="relu"),
        **{f"{name}.input": sequence(make()) for name, make in of_sequences.items()},
        **{f"{name}.data": packed(make()) for name, make in of_sequences.items()},
    }


NAMES = list(layers())


def tensors(value: object) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, tuple):
        return [tensor for one in value for tensor in tensors(one)]
    return [value] if isinstance(value, Tensor) else []


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells what is written to: memory that an operator has made while the mode is on, or other memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []
        self.own = self.other = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        writes = written.written_by(func._schema)
        keys = [storages.storage_key(tensor) for tensor in self.made]
        for tensor in written.tensors(writes, args, kwargs) if writes else ():
            is_own = storages.storage_key(tensor) in keys
            self.own, self.other = self.own + is_own, self.other + (not is_own)
        result = func(*args, **kwargs)
        if writes is None:
            before = {storages.storage_key(one) for one in (*args, *kwargs.values()) if isinstance(one, Tensor)}
            self.made += [one for one in tensors(result) if storages.storage_key(one) not in before]
        return result


@pytest.mark.parametrize("name", NAMES)
def test_they_write_to_nothing_that_was_there_before(name: str) -> None:
    layer = layers()[name]
    with Writes() as seen:
        layer(torch.ones(2, 4, requires_grad=True))
    assert seen.other == 0


def test_a_cell_writes_inside() -> None:
    cell = nn.LSTMCell(4, 3)
    with Writes() as seen:
        cell(torch.ones(2, 4))
    assert seen.own > 5


def test_every_recurrent_operator_is_known() -> None:
    names = {name.partition(".")[0] for name in NAMES}
    assert {f"aten::{name}" for name in names} == written.RECURRENT


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_they_train_as_without_noclobber(name: str, contents: bool) -> None:
    def program() -> tuple[Tensor | None, ...]:
        layer, x = layers()[name], torch.ones(2, 4, requires_grad=True)
        torch.default_generator.manual_seed(1)
        sum(one.sin().sum() for one in tensors(layer(x))).backward()  # type: ignore[union-attr]
        return x.grad, *(one.grad for one in getattr(layer, "parameters", tuple)())

    heard, gradients = hear(program, contents)
    assert all_equal(gradients, bare(program))
    assert heard.clobbers == []


@pytest.fixture
def watched() -> Iterator[None]:
    with noclobber.watch():
        yield


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("name", NAMES)
def test_their_writes_are_not_logged(name: str) -> None:
    layer, x = layers()[name], torch.ones(2, 4, requires_grad=True)
    begun = moment()
    state = tensors(layer(x))[0]
    state.mul_(2)
    # Packing a sequence copies it.
    assert {noted.written.op for noted in since(CONTEXT.memory, begun)} - {"aten::copy_"} == {"aten::mul_"}


def test_a_large_weight_is_read_once_for_the_saves_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = digests.fingerprint
    monkeypatch.setattr(digests, "fingerprint", lambda tensor: read.append(tensor.nbytes) or original(tensor))
    layer, x = nn.GRU(4, 128), torch.ones(20, 2, 4)

    def program() -> list[int]:
        counts = []
        for _ in range(2):
            read.clear()
            result = layer(x)[0].sum()
            counts.append(len([size for size in read if size >= digests.LARGE]))
            result.backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.sub_(0.01)
        return counts

    assert max(hear(program)[1]) <= 2


def test_what_they_return_is_watched() -> None:
    def program() -> None:
        cell, x = nn.LSTMCell(4, 3), torch.ones(2, 4)
        h, c = cell(x)
        h, again = cell(x, (h, c))
        c.add_(1)  # the cell state
        with pytest.raises(RuntimeError):
            (h + again).sum().backward()

    heard = hear(program)[0]
    (write,) = heard.clobbers[0].writes
    assert is_marked(write.site, "the cell state")


def test_an_error_inside_is_raised_as_without_noclobber() -> None:
    def program() -> str:
        with pytest.raises(RuntimeError) as raised:
            nn.LSTMCell(4, 3)(torch.ones(2, 5))
        return str(raised.value)

    assert hear(program)[1] == bare(program)
