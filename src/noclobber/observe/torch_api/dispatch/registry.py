"""PyTorch's registry of operators: names, schemas, overloads, and kernels for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from torch._C import _DispatchOperatorHandle
    from torch._ops import OpOverload

_takes_numbers: Callable[[str], bool] = private.lookup("_C._should_allow_numbers_as_tensors")
operator_names: Callable[[], list[str]] = private.lookup("_C._dispatch_get_all_op_names")
"""Returns the full names of all operators that are defined, such as "aten::add_.Tensor"."""
_schema_of: Callable[[str, str], torch.FunctionSchema] = private.lookup("_C._get_schema")
_registrations: Callable[..., Any] = private.lookup("_C._dispatch_library")
_handle_of: Callable[[str, str], _DispatchOperatorHandle] = private.lookup("_C._dispatch_find_schema_or_throw")


def library(namespace: str) -> Any:
    """Return a torch.library.Library, which has no types, to register kernels for the operators of a namespace."""
    make: Callable[[str, str], object] = torch.library.Library
    return make(namespace, "IMPL")


def lasting(namespace: str) -> Any:
    """Return what registers kernels for the operators of a namespace, by `impl(name, key, kernel, with_keyset)`. They
    stay as long as it is there.

    Those of a torch.library.Library go before Python does, while a daemon thread may still run operators (torch 2.13;
    tests/cli/test_parity_ends.py).
    """
    return _registrations("IMPL", namespace, "", __file__, 0)


def takes_numbers(operator: str) -> bool:
    """Return True if an operator ("aten::add_") takes a Python number where its schema says Tensor."""
    return _takes_numbers(operator.partition("::")[2])


def schema(name: str) -> torch.FunctionSchema | None:
    """Return the schema of an operator's full name; None if there is no such operator. It is ten times as fast as
    asking `torch.ops`, and makes nothing there."""
    base, _, last = name.partition(".")
    try:
        return _schema_of(base, last)
    except RuntimeError:
        return None


def handle(name: str) -> _DispatchOperatorHandle:
    """Return what calls the kernels of an operator, by its full name."""
    base, _, last = name.partition(".")
    return _handle_of(base, last)


def overload(name: str) -> OpOverload[..., object]:
    """Return the operator of a full name, "aten::add_.Tensor". Raises AttributeError and RuntimeError."""
    namespace, _, rest = name.partition("::")
    base, _, last = rest.partition(".")
    found: OpOverload[..., object] = getattr(getattr(getattr(torch.ops, namespace), base), last or "default")
    return found


def names_of(function: object) -> list[str]:
    """Return the full names of the operators that a function of `torch.ops` stands for; empty for any other one."""
    if not isinstance(function, torch._ops.OpOverloadPacket):
        return []
    base = function._qualified_op_name
    return [f"{base}.{one}" if one else base for one in function._overload_names]


_GENERATED = "GeneratedBackwardFor_"


def operator_behind(function: str) -> str:
    """Return the operator, "mine::norm", for which `register_autograd` made a Function of a name; any other name as it
    is (torch 2.13, _library/autograd.py; tests/observe/detectors/test_undeclared.py)."""
    of_operator = function.removeprefix(_GENERATED)
    for name in operator_names() if of_operator != function else ():
        base, _, last = name.partition(".")
        if f"{base.replace('::', '_')}_{last or 'default'}" == of_operator:
            return base
    return function


def is_operator(function: object) -> bool:
    """Return True for an operator with one schema; False for those that take functions (`cond`)."""
    return isinstance(function, torch._ops.OpOverload)


def overloads_of(function: object) -> list[OpOverload[..., object]]:
    """Return the operators that a function of `torch.ops` stands for; empty for any other function."""
    if isinstance(function, torch._ops.OpOverload):
        return [function]
    if isinstance(function, torch._ops.OpOverloadPacket):
        return [getattr(function, one) for one in function.overloads()]  # type: ignore[no-untyped-call]
    return []


def operators_may_have_changed() -> tuple[int, ...]:
    """Return counts that grow when operators are defined: from Python, by a loaded library, by an extension."""
    return (len(getattr(torch.library, "_defs", ())), len(torch.ops.loaded_libraries), len(sys.modules))
