"""A kernel for operators that are not PyTorch's own and whose schema says that they write nothing.

With it a detector compares their arguments before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from noclobber.observe.torch_api.dispatch import spare_key

if TYPE_CHECKING:
    from torch._C import DispatchKeySet, _DispatchOperatorHandle

After = Callable[[object], object]
"""Called after an operator, with what it returned."""
Around = Callable[[str, tuple[object, ...], dict[str, object]], After | None]
"""Called with an operator's name and arguments before it runs. Returns what to call after it, None for nothing."""

_OWN = frozenset(
    """
    aten prim prims quantized _quantized quantized_decomposed quantization static_runtime _test c10d c10d_functional
    _c10d_functional _c10d_functional_autograd symm_mem onednn mkldnn mkldnn_prepacked mkl profiler inductor
    inductor_prims _inductor_test debugprims rngprims sparse _native debug_mode_ops export _dtensor onnx onnx_symbolic
    streams flex_lib fsdp higher_order torchvision torchaudio
    """.split()  # noqa: SIM905
)
_around: Around | None = None


def is_foreign(namespace: str) -> bool:
    """Return True if a namespace is not PyTorch's own.

    The schemas of PyTorch's own operators are believed, except a few (written.py).
    """
    return namespace not in _OWN


def compare(around: Around | None) -> None:
    """Call `around` before each operator with such a kernel, or with None stop doing so."""
    global _around
    _around = around


def kernel(handle: _DispatchOperatorHandle, name: str) -> Callable[..., object]:
    """Return a kernel for an operator; its first argument is the set of dispatch keys.

    The spare key stays set, so that the writes inside the operator are logged.
    """
    below = spare_key.KEYS_BELOW

    def compared(keys: DispatchKeySet, *args: object, **kwargs: object) -> object:
        after = _around(name, args, kwargs) if _around is not None else None
        result = handle.redispatch_boxed(keys & below, *args, **kwargs)
        if after is not None:
            after(result)
        return result

    return compared
