"""Take `inplace=True` from a module or a call.

Sound if nothing reads the argument of the module again: it is the new result of another call and has no name, or one
name alone holds it (holding.py) and is bound to the result. Then only the sharing of memory changes, and the program
cannot notice that. The module is made in one place, by `nn.X(..., inplace=True)` in its class or as a
part of an `nn.Sequential`, whose inner results have no names.

`fix` also tries the flags of modules that are named alike, and switches off those of a library's modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene, blamed
from noclobber.mend.holding import holds_alone, is_new
from noclobber.mend.making import module_writes, parts_of
from noclobber.mend.resolving import module_called
from noclobber.mend.seen import holders_at
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Edit, Finding
from noclobber.syntax.edits import after, replace, without_argument
from noclobber.syntax.in_place import with_flag
from noclobber.syntax.names import arguments, called, dotted, is_true, keyword
from noclobber.syntax.tree import File, Place, ends, starts, walk, within
from noclobber.syntax.writes import is_flagged

_FIRST = {"ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid"}
_SECOND = {"LeakyReLU", "ELU", "CELU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"}
_OF_OP = {
    "relu_": {"ReLU"}, "hardtanh_": {"ReLU6", "Hardtanh"}, "clamp_": {"ReLU6", "Hardtanh"},
    "leaky_relu_": {"LeakyReLU"},
    "elu_": {"ELU", "CELU", "SELU"}, "celu_": {"CELU"}, "selu_": {"SELU"}, "silu_": {"SiLU"}, "mish_": {"Mish"},
    "dropout_": {"Dropout"}, "feature_dropout_": {"Dropout1d", "Dropout2d", "Dropout3d"}, "threshold_": {"Threshold"},
    "alpha_dropout_": {"AlphaDropout"}, "hardswish_": {"Hardswish"}, "hardsigmoid_": {"Hardsigmoid"},
    "rrelu_": {"RReLU"},
    "rrelu_with_noise_": {"RReLU"}, "mul_": {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d"},
}  # fmt: skip


def without_flag(finding: Finding) -> Sound | None:
    """Return a rewrite that removes the flag, where the module is made or from the call."""
    place = blamed(finding)
    if place is None or not isinstance(place.node, ast.Call):
        return None
    file, call = place.file, place.node
    if is_flagged(call):
        found = dropped(file, call)
        fits = found is not None and bool(call.args) and _is_last_use(finding, file, call, call.args[0])
        return Sound(f"let `{called(call)}` write a new tensor", (found,), Cure.FLAG) if fits and found else None
    made = module_called(file, call)
    if made is None or not all(_fits(finding, file, one, module_writes(made)) for one in _calls_of(file, call)):
        return None
    flagged = [one for one in parts_of(made) if isinstance(one, ast.Call) and is_flagged(one)]
    edits = [edit for one in flagged if (edit := dropped(file, one)) is not None]
    if not flagged or len(edits) != len(flagged):
        return None
    modules = "these modules" if len(flagged) > 1 else "this module"
    return Sound(f"build {modules} without `inplace=True`", tuple(edits), Cure.FLAG)


def _calls_of(file: File, call: ast.Call) -> Iterable[ast.Call]:
    """All calls of what a call calls."""
    wanted = ast.dump(call.func)
    around = file.class_of(call) if isinstance(call.func, ast.Attribute) else file.tree
    for one in ast.walk(around or file.tree):
        if isinstance(one, ast.Call) and ast.dump(one.func) == wanted:
            yield one


def _fits(finding: Finding, file: File, call: ast.Call, writes: bool) -> bool:
    """Return True if the result of a call is used, and nothing else reads its argument if the call writes it."""
    if len(call.args) != 1 or call.keywords or isinstance(file.above[call], ast.Expr):
        return False
    return not writes or _is_last_use(finding, file, call, call.args[0])


def _is_last_use(finding: Finding, file: File, call: ast.Call, argument: ast.expr) -> bool:
    """Return True if nothing reads the argument after the call, and something reads the result."""
    if isinstance(file.above[call], ast.Expr):
        return False
    if isinstance(argument, ast.Call):
        return is_new(file, argument)
    write = file.statement(call)
    if not isinstance(argument, ast.Name) or write is None:
        return False
    if not holds_alone(file, argument.id, write, argument, holders_at(finding, file, write)):
        return False
    bound = isinstance(write, ast.Assign) and len(write.targets) == 1 and write.value is call
    if bound and isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Name):
        return write.targets[0].id == argument.id or not _is_read_after(file, argument.id, write)
    return not _is_read_after(file, argument.id, write)


def _is_read_after(file: File, name: str, write: ast.stmt) -> bool:
    loops = file.loops(write)
    for one in within(file.scope(write)):
        if not isinstance(one, ast.Name) or one.id != name or not isinstance(one.ctx, ast.Load):
            continue
        again = any(starts(loop) <= starts(one) < ends(loop) for loop in loops)
        if starts(one) >= ends(write) or (again and starts(one) < starts(write)):
            return True
    return False


def dropped(file: File, call: ast.Call) -> Edit | None:
    """Return the edit that removes the flag from a call, or sets it to `False` if another argument follows it.

    A flag without its name is the last argument.
    """
    flag, given = keyword(call, "inplace"), arguments(call)
    if flag is not None and len(given) > 1 and starts(flag) == min(map(starts, given)):
        return replace(file, flag.value, "False")
    return without_argument(file, call, flag or call.args[-1])


def flags(scene: Scene, places: list[Place], cost: int = 1) -> Iterator[Candidate]:
    """Builders of the module called at a place, the likeliest first, then all of that class, then all there are."""
    built = [(file, one) for file in scene.files() for one in walk(file.tree, ast.Call) if _is_builder(one)]
    classes = set().union(*(_OF_OP.get(op, set()) for op in scene.ops()))
    names = {name for place in places for name in _modules(place)}
    named = [(file, one) for file, one in built if _bound_to(file, one) & names]
    alike = [(file, one) for file, one in built if called(one) in classes]
    both = [one for one in named if one in alike]
    for some in dict.fromkeys(tuple(one) for one in (both, named, alike, built)):
        edits = tuple(edit for file, one in some if (edit := dropped(file, one)) is not None)
        if edits:
            more = f" ({len(edits)} of them)" if len(edits) > 1 else ""
            yield Candidate("build this module without `inplace=True`" + more, edits, cost + (len(edits) > 1))
    if not built:
        for place in places:
            yield from _switched_off(place, cost + 1)


def flagged(scene: Scene, place: Place, name: str) -> Iterator[Candidate]:
    """Builders of the modules of a class that are called at a place, with the flag: those of that name, then all."""
    built = [(file, one) for file in scene.files() for one in walk(file.tree, ast.Call) if called(one) == name]
    names = _modules(place)
    own = [(file, one) for file, one in built if _bound_to(file, one) & names]
    for some in dict.fromkeys(tuple(one) for one in (own, built)):
        edits = tuple(edit for file, one in some if (edit := _with_flag(file, one)) is not None)
        if edits:
            more = f" ({len(edits)} of them)" if len(edits) > 1 else ""
            yield Candidate(f"build this module with `inplace=True`{more}", edits, len(edits))


def _with_flag(file: File, call: ast.Call) -> Edit | None:
    name = called(call)
    most = 0 if name in _FIRST else 1 if name in _SECOND else len(call.args)
    return with_flag(file, call) if len(call.args) <= most and not is_flagged(call) else None


def _is_builder(call: ast.Call) -> bool:
    name = called(call)
    if not name[:1].isupper():
        return False
    if is_flagged(call):
        return True
    at = 0 if name in _FIRST else 1 if name in _SECOND else None
    return at is not None and len(call.args) == at + 1 and not call.keywords and is_true(call.args[-1])


def _modules(place: Place) -> set[str]:
    """The names by which modules are called in the statement of a place: {"act"} for `h = self.act(h)`."""
    calls = walk(place.node if isinstance(place.node, ast.Call) else place.row, ast.Call)
    return {name for one in calls if (name := called(one))}


def _bound_to(file: File, call: ast.Call) -> set[str]:
    """The name that a module is assigned to, where it is built there: {"act"} for `self.act = nn.ReLU(...)`."""
    statement = file.statement(call)
    if not isinstance(statement, ast.Assign):
        return set()
    return {dotted(one).rpartition(".")[2] for one in statement.targets if dotted(one)}


def _switched_off(place: Place, cost: int) -> Iterator[Candidate]:
    """Where a library builds the modules: a loop that switches their flags off, once the net is there."""
    file = place.file
    name = dotted(place.node.func) if isinstance(place.node, ast.Call) else ""
    if not name or name.startswith(("torch.", "F.")):
        return
    blanks = file.indentation()
    loop = [
        f"for module in {name}.modules():",
        f'{blanks}if getattr(module, "inplace", False):',
        f"{blanks * 2}module.inplace = False",
    ]
    for one in walk(file.tree, ast.Assign):
        if any(dotted(target) == name for target in one.targets) and isinstance(one.value, ast.Call):
            edit = after(file, one, *loop)
            if edit is not None and file.indent(one) is not None:
                yield Candidate(f"switch `inplace` off in the modules of `{name}`", (edit,), cost)
