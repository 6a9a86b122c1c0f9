"""Modules built with `inplace=True`, changed where they are built, or after, where a library builds them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.fix.candidates.finding_source import Scene
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.syntax.edits import after, replace, without_argument
from noclobber.syntax.in_place import with_flag
from noclobber.syntax.names import arguments, called, dotted, is_true, keyword
from noclobber.syntax.tree import File, Place, walk
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
TITLE = "build this module without `inplace=True`"


def flags(scene: Scene, places: list[Place], cost: int = 1) -> Iterator[Candidate]:
    """Builders of the module called at a place, the likeliest first, then all of that class, then all there are."""
    built = [(file, one) for file in scene.files() for one in walk(file.tree, ast.Call) if _is_builder(one)]
    classes = set().union(*(_OF_OP.get(op, set()) for op in scene.ops()))
    names = {name for place in places for name in _modules(place)}
    named = [(file, one) for file, one in built if _bound_to(file, one) & names]
    alike = [(file, one) for file, one in built if called(one) in classes]
    both = [one for one in named if one in alike]
    for some in dict.fromkeys(tuple(one) for one in (both, named, alike, built)):
        edits = tuple(edit for file, one in some if (edit := _unflagged(file, one)) is not None)
        if edits:
            more = f" ({len(edits)} of them)" if len(edits) > 1 else ""
            yield Candidate(TITLE + more, edits, cost + (len(edits) > 1))
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


def _unflagged(file: File, call: ast.Call) -> Edit | None:
    """Remove the flag, or set it to `False` if another argument follows it."""
    flag, given = keyword(call, "inplace"), arguments(call)
    if flag is not None and len(given) > 1 and given[0] is flag:
        return replace(file, flag.value, "False")
    return without_argument(file, call, flag or call.args[-1])


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
