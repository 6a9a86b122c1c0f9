"""Operators that are not PyTorch's own: a kernel for those that say they write nothing, so that this can be checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noclobber.observe.torch_api import private

Around = Callable[[str, tuple[Any, ...], dict[str, Any]], Callable[[], object] | None]

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
    """Whether a namespace is none of PyTorch's own, whose schemas are believed but for a few (write_kernels.py)."""
    return namespace not in _OWN


def compare(around: Around | None) -> None:
    """Call `around` with the name and arguments before each such operator; what it returns is called after it."""
    global _around
    _around = around


def kernel(op: Any, name: str) -> Callable[..., Any]:
    """A kernel that takes the dispatch keys first. The spare key stays set: what runs inside is to be logged."""
    below = private.KEYS_BELOW

    def compared(keys: Any, *args: Any, **kwargs: Any) -> Any:
        after = _around(name, args, kwargs) if _around is not None else None
        result = op.redispatch(keys & below, *args, **kwargs)
        if after is not None:
            after()
        return result

    return compared


def before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object] | None:
    """Such an operator is about to run by other ways; what is returned is called after it."""
    return _around(name, args, kwargs) if _around is not None else None
