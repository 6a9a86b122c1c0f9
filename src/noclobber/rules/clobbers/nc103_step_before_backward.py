"""NC103 step-before-backward: an optimizer changes weights that a later backward still needs

What happens
    A forward runs, an optimizer steps, and then a backward goes through that forward. Backward needs the old
    weights, but the step has overwritten them in place. Most questions that quote only PyTorch's message have this
    cause.

Why
    The gradient of an input is computed from the weights of the forward. After the step those weights are gone, so
    PyTorch raises. In old releases (before 1.5) optimizers wrote weights through `.data`. PyTorch noticed nothing
    then, and the gradient belonged to no network at all.

Example
    import torch

    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    first, second = (w**2).sum(), (w**3).sum()
    first.backward()
    optimizer.step()
    second.backward()

Instead
    import torch

    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    first, second = (w**2).sum(), (w**3).sum()
    first.backward()
    second.backward()
    optimizer.step()

Notes
    Two networks (GAN, actor and critic): run every backward before the first step, or compute the second loss after
    the step of the first network, or detach what the second loss should not reach (`critic(fake.detach())`).
    A state carried from one iteration to the next (`h`, a memory, a running loss) also carries the old graph: use
    `h = h.detach()` after the step. `retain_graph=True` only turns one error into this one.
    With `fused=True` no version is counted and nothing is raised: see NC203. Under FSDP2 (`fully_shard`) nothing is
    raised either: the step writes shards, which are gathered into the saved memory when backward begins.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.causes import cause, is_step, overlapping
from noclobber.rules.shared.labels import subject, writer_in_words
from noclobber.rules.shared.stepping import step_cures, step_note
from noclobber.rules.shared.story import story

_GATHERED = (
    "FSDP gathers the parameters again for backward, into the memory that is saved, and counts no version, so PyTorch "
    "raises nothing"
)


def find(event: Event) -> Finding | None:
    """The finding for a clobber that the step of an optimizer caused, and that PyTorch raises, or FSDP2 hides."""
    if not isinstance(event, Clobber) or cause(event) != "step":
        return None
    writes = sorted(overlapping(event), key=lambda write: not is_step(write))
    weight = subject(event.save.tensor, "parameter")
    return story(
        f"{writer_in_words(writes[0])} changes {weight} before a backward that still needs it",
        event,
        writes,
        notes=[step_note(event, writes[0]), *[_GATHERED] * (writes[0].via == "gathered")],
        helps=step_cures(event, writes[0]),
    )
