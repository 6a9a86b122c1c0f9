"""NC203 unversioned-op: an operator that counts no version changes a tensor that backward still needs

What happens
    A few operators write without changing the version counter: the steps of fused optimizers, batch norm on its
    running statistics, collectives such as `all_reduce`. Backward reads what they wrote, and nothing is raised.

Why
    PyTorch's check compares version counters, and these operators have no kernel that changes one. The same program
    with `fused=False` raises (NC103). With `fused=True` it gives a wrong gradient.

Example
    import torch

    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.5, fused=True)
    first, second = (w**2).sum(), (w**3).sum()
    first.backward()
    optimizer.step()
    second.backward()
    print(w.grad)  # gives 2, 2, 2; right is 5, 5, 5

Instead
    import torch

    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.5, fused=True)
    first, second = (w**2).sum(), (w**3).sum()
    first.backward()
    second.backward()
    optimizer.step()
    print(w.grad)  # gives 5, 5, 5

Notes
    Batch norm in eval mode keeps its running statistics for backward. A forward in train mode before that backward
    rewrites them: run the backward first, or run the forward in eval mode on copies of the buffers
    (`torch.func.functional_call`).
    In train mode backward does not read the statistics, so rewriting them is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.causes import cause, is_step, overlapping
from noclobber.rules.shared.keeps import reason
from noclobber.rules.shared.labels import subject, writer_in_words
from noclobber.rules.shared.stepping import step_cures, step_note
from noclobber.rules.shared.story import story
from noclobber.rules.shared.wording import op_in_words


def find(event: Event) -> Finding | None:
    """A clobber that PyTorch does not notice, because the operator that wrote moves no counter."""
    if not isinstance(event, Clobber) or cause(event) != "unversioned":
        return None
    writes = sorted(overlapping(event), key=lambda write: not (is_step(write) or write.via == "unversioned"))
    first = writes[0]
    what = subject(event.save.tensor)
    if is_step(first):
        weight = subject(event.save.tensor, "parameter")
        headline = f"{writer_in_words(first)} silently changes {weight} before a backward that still needs it"
        own, uncounted = "an alias such as `.data` has its own version counter", "a fused optimizer counts no version"
        notes = [step_note(event, first), f"{own if first.via == 'data' else uncounted}, so PyTorch raises nothing"]
        helps: Sequence[Help] = step_cures(event, first)
    elif first.is_statistics:
        headline = f"batch norm silently rewrites {what}, which backward still needs"
        notes = [
            "in eval mode batch_norm keeps its running statistics for backward; in train mode it rewrites them and "
            "counts no version, so PyTorch raises nothing"
        ]
        helps = (
            "run the backward of the eval-mode forward before the next train-mode forward",
            "or run the eval-mode forward on copies of the buffers: `torch.func.functional_call(net, copies, (x,))`, "
            "with `copies = {name: one.clone() for name, one in net.named_buffers()}`",
        )
    else:
        headline = f"silent in-place write by `{op_in_words(first.op)}`: backward reads other bytes than were saved"
        what = f"`{op_in_words(first.op)}`" if "c10d" not in first.op else "a collective writes its result in place and"
        notes = [f"{what} counts no version, so PyTorch raises nothing", reason(event.save)]
        helps = (
            Suggestion(
                "give this operator a copy (`.clone()`), or run it after the backward", cure=Cure.CLONE_ARGUMENT
            ),
        )
    return story(headline, event, writes, notes=notes, helps=helps)
