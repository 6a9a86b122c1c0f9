"""Call a module on copies of the weights or buffers that something overwrites.

Sound for the weights of a module that the line calls, where other code than a step or an update by gradients overwrites
them: an update by hand may mean that the forward runs again. The gradient is that of the weights that the forward has
read, and flows through the copies to them. The module is one of a library, as the save is at its call, and its name
leads to the weight in the name of that. What shards, synchronises or compiles a module reads them in its own way.

Tried is the same for buffers, and for any module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure
from noclobber.syntax.edits import before, replace
from noclobber.syntax.names import (
    UNRECORDING,
    called,
    definition,
    dotted,
    has_stars,
    has_torch,
    in_tuple,
    last_name,
    named,
    names_used,
)
from noclobber.syntax.tree import COMPREHENSION, FOR, File, functions, walk
from noclobber.syntax.writes import WriteSyntax, chain, writes

OWN = {"parameter": "parameters", "buffer": "buffers"}
"""By the kind of a tensor that a module keeps, what it has several of."""


def copies_of(net: str, what: str) -> str:
    """The text of copies of all of these, by name, as `torch.func.functional_call` takes them."""
    return f"{{name: one.clone() for name, one in {net}.named_{what}()}}"


def on_copies(scene: Scene) -> Iterator[Change]:
    """`net(x)` where it keeps its own weight or buffer: called on copies of them, through which gradients flow."""
    what = OWN.get(scene.kind)
    if not (scene.is_clobber or scene.steps()) or scene.reads_first():
        return
    for file, call in _calls(scene):
        net = dotted(call.func)
        if what is None or not net or net.startswith(("torch.", "F.", "nn.")):
            continue
        if net.startswith((f"{scene.name}.", *(f"{one.name}." for one in scene.writes() if one.name))):
            continue  # a method of the tensor itself
        if call.keywords or has_stars(call):
            continue
        copies, given = copies_of(net, what), in_tuple([file.source(one) for one in call.args])
        used = names_used(file.scope(call))
        names = [one for one in ("copies", f"{net.rpartition('.')[2]}_copies") if one not in used]
        named = before(file, call, f"{names[0]} = {copies}") if names and _runs_once(file, call) else None
        text = f"torch.func.functional_call({net}, {names[0] if named else copies}, {given})"
        edits = (*([named] if named else []), replace(file, call, text))
        is_sound = call in [one.node for one in scene.places("save")] and _is_sound(scene, file, call)
        yield Change(f"call `{net}` on copies of its {what}", edits, LAST_RESORT, Cure.CLONE_FOR_READER, is_sound)


def _calls(scene: Scene) -> Iterator[tuple[File, ast.Call]]:
    """The call that saves; and where a module calls a part of its own there, the calls of the whole by its name."""
    for place in scene.places("save"):
        if isinstance(place.node, ast.Call):
            yield place.file, place.node
            part = dotted(place.node.func).removeprefix("self")
            whole = scene.name.partition(f"{part}.")[0] if part.startswith(".") else ""
            for file in scene.files if whole else ():
                yield from ((file, one) for one in walk(file.tree, ast.Call) if dotted(one.func) == whole)


ELSEWHERE = re.compile(r"\b(DistributedDataParallel|DDP|FSDP|fully_shard|compile|jit)\b")
"""Names of what reads weights from other places than the attributes of a module."""


def _is_sound(scene: Scene, file: File, call: ast.Call) -> bool:
    """Return True if the weights of a module that a call runs may be copies, as the head of this file says."""
    net = last_name(call.func)
    if not scene.is_clobber or scene.kind != "parameter" or scene.steps() or ELSEWHERE.search(file.text):
        return False
    if not has_torch(file) or f".{net}." not in f".{scene.name}":
        return False
    is_own = any(one.name == net for one in functions(file.tree))
    if is_own or any(one.site is None or one.step is not None for one in scene.finding.writes):
        return False
    return scene.writes() != [] and not any(map(_is_by_gradients, scene.writes()))


def _is_by_gradients(write: WriteSyntax) -> bool:
    """Whether a write may be an update: it adds something, or it, what its loops go through, or what these names are
    bound to, reads gradients."""
    file, found = write.file, write.statement
    lowest = next((one for one in reversed(chain(write.call)) if writes(one)), None)
    adds = isinstance(getattr(found, "op", None), (ast.Add, ast.Sub))
    if adds or called(lowest) in ("add_", "sub_", "addcmul_", "addcdiv_"):
        return True
    heads = [one.iter for one in file.loops(found) if isinstance(one, FOR)]
    nodes = [each for one in (found, *heads) for each in named(one)]
    made = [value for one in nodes if (value := definition(file, one, found)) is not None]
    nodes += [each for one in made for each in named(one)]
    return any("grad" in last_name(one) and last_name(one) not in UNRECORDING for one in nodes)


def _runs_once(file: File, call: ast.Call) -> bool:
    """Whether a statement before the one that holds a call runs as often as the call."""
    statement = file.nearest(call, ast.stmt)
    around = (one for one in file.around(call) if isinstance(one, (ast.Lambda, *COMPREHENSION)))
    return not any(file.nearest(one, ast.stmt) is statement for one in around)
