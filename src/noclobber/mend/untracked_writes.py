"""Values put into a tensor without autograd: `p.data = new` as a functional call, or as a name for the value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.clones import before_write
from noclobber.mend.finding import Scene, kind_of, name_of
from noclobber.mend.out_of_place import out_of_guard
from noclobber.syntax.edits import before, replace
from noclobber.syntax.names import called, dotted, has_stars, in_tuple, is_read_again, names_used
from noclobber.syntax.tree import File, walk
from noclobber.syntax.writes import WriteSyntax, out_of_place

PASSING = "if the gradient should pass as if nothing had happened"
"""The meaning by which a write has no part in the gradient."""
OWN = {"parameter": "parameters", "buffer": "buffers"}
"""By the kind of a tensor that a module keeps, what it has several of."""
_INNER = (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


def tracked(write: WriteSyntax, scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """A write through `.data` or `.detach()` as one that autograd sees: out of place, or into a clone."""
    file, target, name = write.file, write.target, write.name
    shown = [replace(file, one, file.source(one.value)) for one in hides(target)]
    if not shown or not name or not is_read_again(file, name, write.statement):
        return
    if not isinstance(target, ast.Subscript):
        edits = out_of_place(write)
        if edits:
            yield Candidate("let autograd see it: write out of place", tuple(edits), cost)
    if isinstance(write.statement, ast.Assign) and isinstance(target, ast.Attribute) and target.attr == "data":
        edit = replace(file, write.statement, f"{name} = {file.source(write.statement.value)}")
        yield Candidate(f"bind `{name}` to the new value", (edit,), cost)
        return
    for one in before_write(write, scene, cost + 1):
        yield Candidate(f"let autograd see it: {one.title}", (*one.edits, *shown), one.cost)
    yield Candidate("let autograd see it", tuple(shown), cost + 3)


def functional_call(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`conv.weight.data = w` and then `conv(x)` as `torch.func.functional_call(conv, {"weight": w}, (x,))`."""
    file, statement, name = write.file, write.statement, write.name
    owner, _, short = name.rpartition(".")
    value = _value(write)
    found = walk(file.scope(statement), ast.Call)
    calls = [one for one in found if owner and dotted(one.func) == owner and one.lineno > statement.lineno]
    if value is None or not calls or any(map(has_stars, calls)):
        return
    edits = []
    for one in calls:
        named = [f'"{each.arg}": {file.source(each.value)}' for each in one.keywords]
        given = in_tuple([file.source(each) for each in one.args]) + (f", {{{', '.join(named)}}}" if named else "")
        edits.append(replace(file, one, f'torch.func.functional_call({owner}, {{"{short}": {short}}}, {given})'))
    edits.append(replace(file, statement, f"{short} = {value}"))
    yield Candidate(f"call `{owner}` with the new `{short}`", tuple(edits), cost)


def straight_through(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`h.data.copy_(h.round())` as `h = h + (h.round() - h).detach()`: the new values, and the gradient of the old."""
    file, name, value = write.file, write.name, _value(write)
    if value is None or not name or not is_read_again(file, name, write.statement):
        return
    plain = re.sub(rf"(?<![\w.]){re.escape(name)}\.(?:data\b|detach\(\))", name, value)
    edit = replace(file, write.statement, f"{name} = {name} + ({plain} - {name}).detach()")
    edits = out_of_guard(write, [edit])
    if edits is not None:
        yield Candidate(PASSING, edits, cost)


def copies_of(net: str, what: str) -> str:
    """The text of copies of all of these, by name, as `torch.func.functional_call` takes them."""
    return f"{{name: one.clone() for name, one in {net}.named_{what}()}}"


def on_copies(scene: Scene, cost: int = 6) -> Iterator[Candidate]:
    """`net(x)` where it keeps its own weight or buffer: called on copies of them, through which gradients flow."""
    what = OWN.get(kind_of(scene.finding))
    for place in scene.places("save"):
        call, file = place.node, place.file
        if what is None or not isinstance(call, ast.Call) or not dotted(call.func) or _is_function(call):
            continue
        net = dotted(call.func)
        if net.startswith((f"{name_of(scene.finding)}.", *(f"{one.name}." for one in scene.writes() if one.name))):
            continue  # a method of the tensor itself
        if call.keywords or has_stars(call):
            continue
        copies, given = copies_of(net, what), in_tuple([file.source(one) for one in call.args])
        used = names_used(file.scope(call))
        names = [one for one in ("copies", f"{net.rpartition('.')[2]}_copies") if one not in used]
        named = before(file, call, f"{names[0]} = {copies}") if names and _runs_once(file, call) else None
        text = f"torch.func.functional_call({net}, {names[0] if named else copies}, {given})"
        edits = (*([named] if named else []), replace(file, call, text))
        yield Candidate(f"call `{net}` on copies of its {what}", edits, cost)


def local_copy(scene: Scene, cost: int = 7) -> Iterator[Candidate]:
    """`net(x)` on a `copy.deepcopy(net)` of the function's own, where another process writes the shared one."""
    for place in scene.places("save"):
        call, file = place.node, place.file
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or _is_function(call):
            continue
        net = call.func.id
        edits = [before(file, call, f"local = copy.deepcopy({net})"), replace(file, call.func, "local")]
        imports = [one for one in file.tree.body if isinstance(one, ast.Import)]
        if imports and not any(alias.name == "copy" for one in imports for alias in one.names):
            edits.append(before(file, imports[0], "import copy"))
        yield Candidate(f"work on a local copy of `{net}`", tuple(one for one in edits if one is not None), cost)


def _runs_once(file: File, call: ast.Call) -> bool:
    """Whether a statement before the one that holds a call runs as often as the call."""
    statement = file.nearest(call, ast.stmt)
    around = (one for one in file.around(call) if isinstance(one, _INNER))
    return not any(file.nearest(one, ast.stmt) is statement for one in around)


def hides(target: ast.expr | None) -> list[ast.Attribute]:
    """The `t.data` in a target."""
    return [one for one in walk(target, ast.Attribute) if one.attr == "data"] if target is not None else []


def _value(write: WriteSyntax) -> str | None:
    """The new value of a write, as an expression."""
    file, call = write.file, write.call
    if isinstance(write.statement, ast.Assign):
        return file.source(write.statement.value)
    if isinstance(write.statement, ast.Expr) and call is not None and called(call) == "copy_":
        return file.source(call.args[0]) if call.args else None
    edits = out_of_place(write)
    return edits[0].replacement.partition(" = ")[2] or None if edits else None


def _is_function(call: ast.Call) -> bool:
    return dotted(call.func).startswith(("torch.", "F.", "nn."))
