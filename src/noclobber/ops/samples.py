"""Calls to try an operator with: by hand where an operator is particular, else from its schema or its signature."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from noclobber.observe.torch_api.dispatch import registry
from noclobber.ops.probing import signature_of

SIZE = 4
"""The length of each side of a tensor, and the number of channels and features."""
TRAINING, EVALUATION = " in training", " in evaluation"
"""What follows the call of a module."""
_SHAPES = ((SIZE, SIZE), (SIZE,), (2, SIZE, SIZE), (2, SIZE, SIZE, SIZE), (2, SIZE, SIZE, SIZE, SIZE))
_INDICES = frozenset("index indices input_ids target targets repeats".split())  # noqa: SIM905
_NUMBERS = frozenset("dim dim0 dim1 start offset diagonal".split())  # noqa: SIM905


@dataclass(frozen=True)
class Sample:
    """One call. `call` shows it in the words of the schema."""

    call: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


def real(*shape: int) -> torch.Tensor:
    """Return numbers between 0 and 1; the matrices among them are symmetric, and far from singular."""
    return _numbers(shape).clone()


@cache
def _numbers(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    made = torch.rand(shape, generator=generator) * 0.5 + 0.2
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        made = (made + made.mT) / 2 + torch.eye(shape[-1])
    return made


def whole(*shape: int) -> torch.Tensor:
    """Return indices that every dimension has."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 2


def flags(*shape: int) -> torch.Tensor:
    """Return a mask."""
    return whole(*shape).bool()


_IMAGE = (2, SIZE, SIZE, SIZE)
_PARTICULAR: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("conv1d conv_transpose1d", (real(2, 4, 6), real(4, 4, 3), real(4))),
    ("conv2d conv_transpose2d", (real(2, 4, 6, 6), real(4, 4, 3, 3), real(4))),
    ("conv3d conv_transpose3d", (real(2, 4, 6, 6, 6), real(4, 4, 3, 3, 3), real(4))),
    ("linear", (real(4, 4), real(4, 4), real(4))),
    ("bilinear", (real(4, 4), real(4, 4), real(4, 4, 4), real(4))),
    ("batch_norm instance_norm", (real(*_IMAGE), real(4), real(4), real(4), real(4), True, 0.1, 1e-5, True)),
    ("layer_norm", (real(4, 4), [4], real(4), real(4))),
    ("group_norm", (real(*_IMAGE), 2, real(4), real(4))),
    ("rms_norm", (real(4, 4), [4], real(4))),
    ("dropout alpha_dropout native_dropout", (real(4, 4), 0.5, True)),
    ("scaled_dot_product_attention", (real(*_IMAGE), real(*_IMAGE), real(*_IMAGE))),
    ("cross_entropy nll_loss F.multi_margin_loss CrossEntropyLoss MultiMarginLoss NLLLoss", (real(4, 4), whole(4))),
    ("where", (flags(4, 4), real(4, 4), real(4, 4))),
    ("index_put", (real(4, 4), [torch.tensor([0, 1])], real(2, 4))),
    ("take_along_dim", (real(4, 4), whole(4, 4), 0)),
    ("einsum", ("ij,jk->ik", [real(4, 4), real(4, 4)])),
    ("pad", (real(2, 4, 4), [1, 1])),
    ("interpolate F.upsample", (real(*_IMAGE), None, 2.0)),
    ("grid_sample", (real(*_IMAGE), real(2, 4, 4, 2))),
    ("fold", (real(2, 16, 9), [4, 4], [2, 2])),
    ("expand broadcast_to", (real(4, 1), [4, 4])),
    ("view reshape", (real(4, 4), [16])),
    ("norm", (real(4, 4),)),
    ("ctc_loss CTCLoss", (real(4, 2, 4).log_softmax(-1), torch.ones(2, 2, dtype=torch.long), torch.tensor([4, 4]),
                          torch.tensor([2, 2]))),
    ("clamp clip", (real(4, 4), 0.3, 0.6)),
    ("addmv", (real(4), real(4, 4), real(4))),
    ("cross", (real(2, 3), real(2, 3), 1)),
    ("feature_dropout feature_alpha_dropout", (real(2, 4, 4), 0.5, True)),
    ("atleast_1d", (real(4),)),
    ("binary_cross_entropy_with_logits kl_div", (real(4, 4), real(4, 4))),
    ("cosine_embedding_loss CosineEmbeddingLoss", (real(4, 4), real(4, 4), torch.ones(4))),
    ("F.batch_norm F.instance_norm", (real(*_IMAGE), real(4), real(4), real(4), real(4), True)),
    ("F.embedding", (whole(3), real(4, 4))),
    ("F.embedding_bag", (whole(3, 2), real(4, 4))),
    ("F.affine_grid", (real(2, 2, 3), [2, 1, 4, 4])),
    ("F.adaptive_max_pool2d", (real(*_IMAGE), 2)),
    ("F.adaptive_max_pool3d", (real(*_IMAGE, SIZE), 2)),
    ("F.multilabel_margin_loss MultiLabelMarginLoss", (real(4, 4), whole(4, 4))),
    ("index_reduce", (real(4, 4), 0, torch.tensor([0, 1]), real(2, 4), "mean")),
    ("scatter_reduce", (real(4, 4), 0, whole(4, 4), real(4, 4), "sum")),
    ("as_strided_scatter", (real(4, 4), real(4), [4], [1])),
    ("constant_pad_nd", (real(4, 4), [1, 1])),
    ("lstm_cell", (real(2, 4), [real(2, 4), real(2, 4)], real(16, 4), real(16, 4), real(16), real(16))),
    ("gru_cell", (real(2, 4), real(2, 4), real(12, 4), real(12, 4), real(12), real(12))),
    ("native_layer_norm", (real(4, 4), [4], real(4), real(4), 1e-5)),
    ("native_group_norm", (real(*_IMAGE), real(4), real(4), 2, 4, 16, 2, 1e-5)),
    ("native_batch_norm", (real(*_IMAGE), real(4), real(4), real(4), real(4), True, 0.1, 1e-5)),
    ("view_as_real imag", (torch.complex(real(4), real(4)),)),
    ("view_as_complex", (real(4, 2),)),
    ("Embedding", (whole(3),)),
    ("EmbeddingBag", (whole(3, 2),)),
    ("Fold", (real(2, 16, 9),)),
)  # fmt: skip
"""The arguments of operators, functions and modules that no guess from their names would give."""
PARTICULAR = {name: args for names, args in _PARTICULAR for name in names.split()}
_MADE_WITH: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("PixelShuffle", (2,)),
    ("Fold", ((SIZE, SIZE), (2, 2))),
    ("LSTM GRU RNN", (SIZE, SIZE)),
    ("Upsample UpsamplingNearest2d UpsamplingBilinear2d", (None, 2)),
    ("ReflectionPad1d ReflectionPad2d ReflectionPad3d", (1,)),
    ("Unflatten", (1, (2, 2))),
)
MADE_WITH = {name: args for names, args in _MADE_WITH for name in names.split()}


def samples_of(name: str, function: Any) -> Iterator[Sample]:
    """Yield one call that works for each way of calling: for each overload, or in training and in evaluation."""
    if isinstance(function, type):
        if issubclass(function, torch.nn.Module):
            yield from _of_module(name, function)
        return
    found = [one for overload in _overloads(function) if (one := _of_overload(name, overload)) is not None]
    if found:
        yield from found
        return
    args = PARTICULAR.get(f"F.{name}", PARTICULAR.get(name))
    names = _required(function)
    if not names and args is None:  # `*args, **kwargs`: which of two functions it is depends on them
        return
    tries = [args] if args is not None else _guesses(names)
    args = next((one for one in tries if _works(function, one)), None)
    if args is not None:
        shown = ", ".join(list(_parameters(function))[: len(args)])
        yield Sample(f"{name}({shown})", function, args)


def _overloads(function: Any) -> list[Any]:
    """Return the operators of PyTorch, or of a library, behind a function; none for one written in Python."""
    if inspect.isfunction(function) and list(_parameters(function)) != ["args"]:  # not `torch.einsum(*args)`
        return []
    known: list[Any] = registry.overloads_of(function)
    return known or registry.overloads_of(getattr(torch.ops.aten, getattr(function, "__name__", ""), None))


def _of_overload(name: str, overload: Any) -> Sample | None:
    schema = overload._schema
    if any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments if one.kwarg_only):
        return None  # an overload with `out=`
    if (
        "Dimname" in str(schema)
        or "hacked_twin" in schema.overload_name
        or not any("Tensor" in str(one.type) for one in schema.arguments)
    ):
        return None
    required = [one for one in schema.arguments if not one.has_default_value()]
    args = PARTICULAR.get(name)
    fits = args is not None and len(args) >= len(required) and _fits(args, schema.arguments)
    if args is not None and fits and _works(overload, args):
        return Sample(_signature(name, schema.arguments[: len(args)]), overload, args)
    if any(one.kwarg_only for one in required):
        return None
    for shape, other in itertools.product(_SHAPES, _SHAPES):
        tensors = itertools.chain([shape], itertools.repeat(other))
        values = tuple(_of_type(one, tensors) for one in required)
        if None not in values and _works(overload, values):
            return Sample(_signature(name, required), overload, values)
    return None


def _fits(args: tuple[Any, ...], arguments: Any) -> bool:
    """Return True if values are of the types of a schema: a number where one is wanted, a tensor where one is."""
    return len(args) <= len(arguments) and all(
        isinstance(value, torch.Tensor) == str(argument.type).endswith("Tensor") or str(argument.type).startswith("Opt")
        for value, argument in zip(args, arguments, strict=False)
    )


def _signature(name: str, arguments: Any) -> str:
    """Return a call in the words of the schema, without the type where it is a tensor."""
    return f"{name}({', '.join(f'{_type(one)} {one.name}'.removeprefix('Tensor ') for one in arguments)})"


def _type(argument: Any) -> str:
    word = re.sub(r"Optional\[(\w+)\]", r"\1?", str(argument.type)).replace("number", "Scalar").replace("SymInt", "int")
    return re.sub(r"List\[(.+)\]", r"\1[]", word)


def _of_type(argument: Any, shapes: Iterator[tuple[int, ...]]) -> Any:
    """Return a value for an argument of a schema; None for a type that cannot be guessed."""
    kind, name = str(argument.type), argument.name
    if kind == "Tensor":
        shape = next(shapes)
        if "pivots" in name:  # LAPACK reads them unchecked: others corrupt memory (torch 2.13)
            return torch.arange(1, 1 + shape[-1], dtype=torch.int32).expand(shape[:-1]).contiguous()
        return whole(*shape) if name in _INDICES else flags(*shape) if "mask" in name else real(*shape)
    if kind == "List[Tensor]":
        shape = next(shapes)
        return [real(*shape), real(*shape)]
    if kind in ("int", "SymInt"):
        return 0 if name in _NUMBERS else 1 if "dim" in name else 2
    if kind in ("number", "float"):
        return 2.0
    if kind in ("List[int]", "List[SymInt]"):
        return [0] if "dim" in name else [2]
    return True if kind == "bool" else "ij->ji" if name == "equation" else None


def _of_module(name: str, kind: type) -> Iterator[Sample]:
    made = _made(name, kind)
    if made is None:
        return
    args = PARTICULAR.get(name)
    tries = [args] if args is not None else _guesses(_required(made.forward))
    args = next((one for one in tries if _works(made, one)), None)
    if args is None:
        return
    names = ", ".join(list(inspect.signature(made.forward).parameters)[: len(args)])
    call = f"{name}({names})"
    yield Sample(call + TRAINING, copy.deepcopy(made).train(), args)
    yield Sample(call + EVALUATION, made.eval(), args)


def _made(name: str, kind: type) -> Any:
    with torch.random.fork_rng(devices=[]):
        for args in (MADE_WITH.get(name, ()), tuple(3 if "kernel" in one else SIZE for one in _required(kind))):
            try:
                return kind(*args)
            except (TypeError, ValueError):
                continue
    return None


def _required(function: Any) -> list[str]:
    """Return the names of the arguments that a function must be given."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = _parameters(function).values()
    return [one.name for one in every if one.default is one.empty and one.kind in plain and one.name != "self"]


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a function; one if nothing is known of it."""
    try:
        return signature_of(function).parameters
    except (ValueError, TypeError):
        return {"input": inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)}


def _guesses(names: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield tensors of one shape for all arguments, then numbers after the first."""
    for shape in _SHAPES:
        yield tuple(real(*shape) for _ in names)
    for shape in _SHAPES:
        yield (real(*shape), *(2 for _ in names[1:]))


def _works(function: Any, args: tuple[Any, ...]) -> bool:
    """Return True if a function can be called with copies of these arguments."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            function(*(one.clone() if isinstance(one, torch.Tensor) else one for one in args))
    except Exception:  # whatever a call that does not fit raises
        return False
    return True
