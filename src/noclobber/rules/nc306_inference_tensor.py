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

from dataclasses import replace

from noclobber.model.finding import Cure, Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import blamed, finding, messages, recognised, says, writes_it
from noclobber.rules.shared.writetext import is_rebindable

CODE = "NC306"
NAME = "inference-tensor"
SEVERITY: Severity = "error"
MESSAGES = messages(
    "Inference tensors cannot be saved for backward",
    "In-?place update to inference tensor",
    "Inference tensors do not track version counter",
    "Cannot set version_counter for inference tensor",
    r"_unsafe_set_version\w*\(\) on a tensor that does not have a version counter",
    "Setting requires_grad=True on inference tensor",
)

_NO_GRAD = Suggestion("make it under `torch.no_grad()` instead of `torch.inference_mode()`", cure=Cure.MODE)
_CLONE = Suggestion("or take a `.clone()` of it outside of inference mode")
_UNCOUNTED = "a tensor made in inference mode has no version counter, so a later write to it could not be noticed"


def find(event: Event) -> Finding | None:
    """A refusal that concerns a tensor made in inference mode."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    helps = [_NO_GRAD, _CLONE]
    if says(refusal, "cannot be saved for backward"):
        headline, told = "a tensor made in inference mode is kept for backward", "autograd has to keep it here"
    elif says(refusal, "In-?place update"):
        headline, told = "in-place write to an inference tensor outside of inference mode", writes_it(refusal)
        words = (
            "write out of place"
            if is_rebindable(blamed(refusal), refused=True)
            else "write to a clone: `t = t.clone()` first"
        )
        helps = [Suggestion(words, cure=Cure.OUT_OF_PLACE), replace(_NO_GRAD, message=f"or {_NO_GRAD.message}")]
    elif says(refusal, "requires_grad=True on"):
        headline, told = "`requires_grad` is set on an inference tensor", "it is set here"
    else:
        headline, told = "the version of an inference tensor is asked for", "it has none"
    return finding(
        (CODE, NAME, SEVERITY),
        headline,
        refusal,
        told=told,
        created="the inference tensor is made here",
        notes=[_UNCOUNTED],
        suggestions=helps,
    )
