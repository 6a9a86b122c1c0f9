"""NC306 inference-tensor: a tensor made in inference mode is written, or kept for backward, outside of it

What happens
    A tensor was made inside `torch.inference_mode()`. Outside of it, autograd has to keep the tensor for backward
    ("Inference tensors cannot be saved for backward"), or the tensor is written in place ("Inplace update to
    inference tensor outside InferenceMode is not allowed").

Why
    A tensor made in inference mode has no version counter, and this makes inference mode fast. Without a counter
    PyTorch could not notice that a kept tensor was overwritten. So it does not let the tensor into a graph.

Example
    import torch

    with torch.inference_mode():
        features = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * features).sum()

Instead
    import torch

    with torch.no_grad():
        features = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * features).sum()

Notes
    `torch.no_grad()` also records nothing, but its tensors are ordinary ones. If other code makes the tensors, take
    `features.clone()` outside of inference mode. A clone made inside of inference mode is again an inference
    tensor.
    If you sum a metric in inference mode, divide it there too, or divide out of place: `total = total / n`.
"""

from __future__ import annotations

from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import Text, blamed
from noclobber.rules.shared.writetext import is_rebindable, write_of

_UNCOUNTED = "a tensor made in inference mode has no version counter, so a later write to it could not be noticed"
_NO_GRAD = "make it under `torch.no_grad()` instead of `torch.inference_mode()`"
_HELPS = (Suggestion(_NO_GRAD, cure=Cure.MODE), "or take a `.clone()` of it outside of inference mode")


def _of_a_write(refusal: Refusal) -> list[Help]:
    aside = is_rebindable(write_of(blamed(refusal)), refused=True)
    words = "write out of place" if aside else "write to a clone: `t = t.clone()` first"
    return [Suggestion(words, cure=Cure.OUT_OF_PLACE), Suggestion(f"or {_NO_GRAD}", cure=Cure.MODE)]


_text = partial(Text, note=_UNCOUNTED, created="the inference tensor is made here")
TEXTS = (
    _text(
        [
            "[Inference tensors cannot be saved for backward]. Please do not use Tensors created in inference mode in "
            "computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use "
            "it in autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
        ],
        "a tensor made in inference mode is kept for backward",
        _HELPS,
        told="autograd has to keep it here",
    ),
    _text(
        ["[Inplace update to inference tensor] outside InferenceMode is not allowed."],
        "in-place write to an inference tensor outside of inference mode",
        _of_a_write,
    ),
    _text(
        ["[Setting requires_grad=True on inference tensor] outside InferenceMode is not allowed."],
        "`requires_grad` is set on an inference tensor",
        _HELPS,
        told="it is set here",
    ),
    _text(
        [
            "Inference tensors do not track version counter",
            "Cannot set version_counter for inference tensor",
            "Tried to call * [on a tensor that does not have a version counter]. Was it created in inference mode?",
        ],
        "the version of an inference tensor is asked for",
        _HELPS,
        told="it has none",
    ),
)
