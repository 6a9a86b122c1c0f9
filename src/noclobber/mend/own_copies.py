"""Call a module on copies of the weights or buffers that something overwrites."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.scene import Scene
from noclobber.syntax.edits import before, replace
from noclobber.syntax.names import dotted, has_stars, in_tuple, names_used
from noclobber.syntax.tree import File

OWN = {"parameter": "parameters", "buffer": "buffers"}
"""By the kind of a tensor that a module keeps, what it has several of."""
_INNER = (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


def copies_of(net: str, what: str) -> str:
    """The text of copies of all of these, by name, as `torch.func.functional_call` takes them."""
    return f"{{name: one.clone() for name, one in {net}.named_{what}()}}"


def on_copies(scene: Scene) -> Iterator[Change]:
    """`net(x)` where it keeps its own weight or buffer: called on copies of them, through which gradients flow."""
    what = OWN.get(scene.kind)
    if not (scene.is_clobber or scene.steps()) or scene.reads_first():
        return
    for place in scene.places("save"):
        call, file = place.node, place.file
        if what is None or not isinstance(call, ast.Call) or not dotted(call.func) or _is_function(call):
            continue
        net = dotted(call.func)
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
        yield Change(f"call `{net}` on copies of its {what}", edits, LAST_RESORT)


def local_copy(scene: Scene) -> Iterator[Change]:
    """`net(x)` on a `copy.deepcopy(net)` of the function's own, where another process writes the shared one."""
    elsewhere = any(one.via == "process" for one in scene.finding.writes)
    for place in scene.places("save") if elsewhere else ():
        call, file = place.node, place.file
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or _is_function(call):
            continue
        net = call.func.id
        edits = [before(file, call, f"local = copy.deepcopy({net})"), replace(file, call.func, "local")]
        imports = [one for one in file.tree.body if isinstance(one, ast.Import)]
        if imports and not any(alias.name == "copy" for one in imports for alias in one.names):
            edits.append(before(file, imports[0], "import copy"))
        yield Change(
            f"work on a local copy of `{net}`", tuple(one for one in edits if one is not None), LAST_RESORT + 1
        )


def _runs_once(file: File, call: ast.Call) -> bool:
    """Whether a statement before the one that holds a call runs as often as the call."""
    statement = file.nearest(call, ast.stmt)
    around = (one for one in file.around(call) if isinstance(one, _INNER))
    return not any(file.nearest(one, ast.stmt) is statement for one in around)


def _is_function(call: ast.Call) -> bool:
    return dotted(call.func).startswith(("torch.", "F.", "nn."))
