"""Values put into a tensor behind autograd's back: `p.data = new` as a functional call, or as a name for the value."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.clones import before_write
from noclobber.fix.candidates.finding_source import Scene
from noclobber.fix.candidates.out_of_place import out_of_guard, rebound
from noclobber.fix.candidates.syntax import ParsedFile, before, called, dotted, in_tuple, replace, walk
from noclobber.fix.candidates.write_syntax import WriteSyntax, is_read_again, written
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit

PASSING = "if the gradient should pass as if nothing had happened"
"""The meaning by which a write has no part in the gradient."""


def tracked(write: WriteSyntax, scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """A write through `.data` or `.detach()` as one that autograd sees: out of place, or into a clone."""
    file = write.file
    shown = [Edit(file.span(one), file.source(one.value)) for one in hides(write.target)]
    target = write.target
    name = write.name
    if not shown or not name or not is_read_again(file, name, write.statement):
        return
    if not isinstance(target, cst.Subscript):
        edits = rebound(write)
        if edits:
            yield Candidate("let autograd see it: write out of place", tuple(edits), cost)
    if isinstance(write.statement, cst.Assign) and isinstance(target, cst.Attribute) and target.attr.value == "data":
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
    value = _value(file, write)
    calls = [
        one
        for one in walk(file.scope(statement), cst.Call)
        if owner and dotted(one.func) == owner and file.line(one) > file.line(statement)
    ]
    if value is None or not calls or any(arg.star for one in calls for arg in one.args):
        return
    edits = []
    for one in calls:
        plain = [file.source(arg.value) for arg in one.args if arg.keyword is None]
        named = [f'"{arg.keyword.value}": {file.source(arg.value)}' for arg in one.args if arg.keyword is not None]
        given = in_tuple(plain) + (f", {{{', '.join(named)}}}" if named else "")
        edits.append(replace(file, one, f'torch.func.functional_call({owner}, {{"{short}": {short}}}, {given})'))
    edits.append(replace(file, statement, f"{short} = {value}"))
    yield Candidate(f"call `{owner}` with the new `{short}`", tuple(edits), cost)


def straight_through(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`h.data.copy_(h.round())` as `h = h + (h.round() - h).detach()`: the new values, and the gradient of the old."""
    file, name, value = write.file, write.name, _value(write.file, write)
    if value is None or not name or not is_read_again(file, name, write.statement):
        return
    plain = re.sub(rf"(?<![\w.]){re.escape(name)}\.(?:data\b|detach\(\))", name, value)
    edit = replace(file, write.statement, f"{name} = {name} + ({plain} - {name}).detach()")
    edits = out_of_guard(write, [edit])
    if edits is not None:
        yield Candidate(PASSING, edits, cost)


OWN = {"parameter": "parameters", "buffer": "buffers"}
"""By the kind of a tensor that a module keeps, what it has several of."""


def copies_of(net: str, what: str) -> str:
    """The text of copies of all of these, by name, as `torch.func.functional_call` takes them."""
    return f"{{name: one.clone() for name, one in {net}.named_{what}()}}"


def on_copies(scene: Scene, cost: int = 6) -> Iterator[Candidate]:
    """`net(x)` where it keeps a weight or buffer of its own: called on copies of them, through which gradients flow."""
    what = OWN.get(scene.kind())
    for place in scene.places("save"):
        call, file = place.node, place.file
        if what is None or not isinstance(call, cst.Call) or not dotted(call.func) or _is_function(call):
            continue
        net = dotted(call.func)
        if net.startswith((f"{scene.name()}.", *(f"{one.name}." for one in written(scene) if one.name))):
            continue  # a method of the tensor itself
        plain = [file.source(one.value) for one in call.args]
        if any(one.keyword is not None or one.star for one in call.args):
            continue
        copies, given = copies_of(net, what), in_tuple(plain)
        names = [one for one in ("copies", f"{net.rpartition('.')[2]}_copies") if _is_free(file, call, one)]
        named = before(file, call, f"{names[0]} = {copies}") if names and _runs_once(file, call) else None
        text = f"torch.func.functional_call({net}, {names[0] if named else copies}, {given})"
        edits = (*([named] if named else []), replace(file, call, text))
        yield Candidate(f"call `{net}` on copies of its {what}", edits, cost)


def local_copy(scene: Scene, cost: int = 7) -> Iterator[Candidate]:
    """`net(x)` on a `copy.deepcopy(net)` of the function's own, where another process writes the shared one."""
    for place in scene.places("save"):
        call, file = place.node, place.file
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or _is_function(call):
            continue
        net = call.func.value
        edits = [before(file, call, f"local = copy.deepcopy({net})"), replace(file, call.func, "local")]
        imports = [one for one in walk(file.module, cst.Import) if file.scope(one) is file.module]
        if not any(alias.name.value == "copy" for one in imports for alias in one.names) and imports:
            edits.append(before(file, imports[0], "import copy"))
        yield Candidate(f"work on a local copy of `{net}`", tuple(one for one in edits if one is not None), cost)


def _runs_once(file: ParsedFile, call: cst.Call) -> bool:
    """Whether a statement before the call is as good as the call's own place."""
    inner = file.around(call, cst.Lambda, cst.ListComp, cst.GeneratorExp, cst.DictComp, cst.SetComp, cst.While)
    return inner is None or isinstance(inner, cst.While)


def _is_free(file: ParsedFile, call: cst.Call, name: str) -> bool:
    return not any(one.value == name for one in walk(file.scope(call), cst.Name))


def hides(target: cst.BaseExpression | None) -> list[cst.Attribute]:
    """The `t.data` in a target."""
    return [one for one in walk(target, cst.Attribute) if one.attr.value == "data"] if target is not None else []


def _value(file: ParsedFile, write: WriteSyntax) -> str | None:
    if isinstance(write.statement, cst.Assign):
        return file.source(write.statement.value)
    if isinstance(write.statement, cst.Expr) and write.call is not None and called(write.call) == "copy_":
        return file.source(write.call.args[0].value) if write.call.args else None
    edits = rebound(write)
    return edits[0].replacement.partition(" = ")[2] or None if edits else None


def _is_function(call: cst.Call) -> bool:
    return dotted(call.func).startswith(("torch.", "F.", "nn."))
