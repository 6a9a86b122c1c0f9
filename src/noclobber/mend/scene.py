"""What a finding says about the source: the nodes at its labels, in parsed files, and the other files it names."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from noclobber.mend.holders.making import is_function, is_method
from noclobber.model.reports.finding import Finding, Role
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import (
    Drift,
    GradientWrite,
    LostHook,
    Overwritten,
    SharedGradient,
    StaleCast,
    Undeclared,
    Untracked,
)
from noclobber.model.source import Owner, Span, owner_of, source_text
from noclobber.rules.shared.wording import op_in_words
from noclobber.syntax.names import (
    attributes,
    called,
    called_by,
    calls,
    dotted,
    is_numeric,
    is_untracked,
    names_used,
    optimizer_of,
    owner,
    values,
)
from noclobber.syntax.tree import LONGEST, File, Place, Placed, functions, lines_in, parse, simple_statements, walk
from noclobber.syntax.writes import WriteSyntax, descends, write_at, writes

Read = Callable[[str], str]
_WIDE = ("float32", "float64", "complex64", "complex128")
_MOST_FILES = 24
"""Fewer than stay parsed (`parse`)."""
_SINGLE = ("float32", "complex64")
KEEPS_TYPE = {
    "index_add_", "index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_", "scatter_add_",
    "scatter_reduce_",
}  # fmt: skip
"""Operators whose result out of place has the type of the tensor, whatever they are given (torch 2.13;
tests/mend/test_sound.py)."""
_WIDER = frozenset({"float64", "double", "complex128", "DoubleTensor", "set_default_dtype", "from_numpy", "as_tensor"})
"""Names by which a file may make tensors of a wider type."""
_DEFAULTS = frozenset({"set_default_dtype", "set_default_tensor_type"})
"""Those by which every tensor is made of another type."""
_DEEPEST = 4
"""How many attributes deep a tensor is surely looked at (observe/describe/reachable.py)."""


def _computes_only(file: File, row: ast.stmt) -> bool:
    """Return True if a statement computes by operators, and functions of PyTorch and the file, with what variables lead
    to, and makes no tensor of a type that a variable names."""
    known, made = {one.name for one in functions(file.tree)}, list(walk(row, ast.Call))
    others = [one for one in made if not (is_function(one) or is_method(one) or writes(one) or called(one) in known)]
    parts = [one for one in walk(row, ast.Attribute) if called_by(file, one) is None]
    hidden = [one for one in parts if one.attr in known or dotted(one).count(".") > _DEEPEST]
    return not others and not hidden and not any(one.arg == "dtype" for one in walk(row, ast.keyword))


def as_it_ran(path: str) -> str:
    """The text of a file of the program's own as it was when the program ran. Raises OSError."""
    text = source_text(path) if owner_of(path) is Owner.USER else ""
    if not text or len(text) > LONGEST:
        raise OSError(f"`{path}` cannot be read")
    return text


@dataclass(frozen=True)
class Scene:
    """A finding and the way to the text of files. `read` raises OSError where there is no such file.

    What is asked of it is a fact of the records, or of the source; cures decide by nothing else.
    """

    finding: Finding
    read: Read

    def file(self, path: str) -> File | None:
        """The parsed file of a path; None where it is missing or cannot be parsed."""
        if path not in self._parsed:
            try:
                self._parsed[path] = parse(path, self.read(path))
            except (OSError, ValueError, KeyError):
                self._parsed[path] = None
        return self._parsed[path]

    @cached_property
    def _parsed(self) -> dict[str, File | None]:
        return {}

    def places(self, *roles: Role) -> list[Place]:
        """The places of the labels of some roles, in the order of the labels. A decorator's `@` is no place.

        No label shows where the backward begins that runs a region again.
        """
        spans, event = [one.span for one in self.finding.labels if one.role in roles], self.finding.event
        if "read" in roles and isinstance(event, Drift) and event.read.site is not None:
            spans.append(event.read.site.span())
        found = [self.at(one) for one in spans]
        return [one for one in found if one is not None]

    def at(self, span: Span) -> Place | None:
        """The place of a span."""
        file = self.file(span.path)
        node = file.at(span) if file is not None else None
        return Place(file, node) if file is not None and isinstance(node, Placed) else None

    def place(self, role: Role) -> Place | None:
        """The place of the first label of a role."""
        return next(iter(self.places(role)), None)

    @property
    def code(self) -> str:
        """The rule that found it."""
        return self.finding.code

    @property
    def kind(self) -> str:
        """ "parameter", "buffer" or "tensor"."""
        return self.finding.tensor.kind if self.finding.tensor is not None else "tensor"

    @property
    def name(self) -> str:
        """The name of the tensor, such as "net.fc.weight"; empty where it is not known."""
        return (self.finding.tensor and self.finding.tensor.name) or ""

    @property
    def is_refused(self) -> bool:
        """Whether PyTorch refuses the write itself, so that there is no right gradient beyond it."""
        return isinstance(self.finding.event, Refusal) and not self.is_freed

    @property
    def is_clobber(self) -> bool:
        """Whether a save was overwritten, and read."""
        return isinstance(self.finding.event, Clobber)

    @property
    def is_freed(self) -> bool:
        """Whether an earlier backward has freed the graph: nothing was overwritten."""
        return self.code == "NC104"

    @property
    def is_leaf(self) -> bool:
        """Whether PyTorch refuses the write because it is to a leaf that requires a gradient, or to a view of one."""
        return self.code in ("NC301", "NC302")

    @property
    def is_expanded(self) -> bool:
        """Whether PyTorch refuses a write to a part of an expanded leaf."""
        return isinstance(self.finding.event, Refusal) and self.finding.event.expanded

    @property
    def may_be_recorded(self) -> bool:
        """Whether PyTorch refuses a write only because of the view that it goes through: a graph has computed what is
        written, so that it must not be hidden from autograd, and no graph keeps it."""
        event = self.finding.event
        return isinstance(event, Refusal) and event.is_computed and not event.is_saved

    @property
    def is_constant(self) -> bool:
        """Whether what was saved requires no gradient, so that a write through `.data` to it is one like any other."""
        return self.finding.save is not None and self.finding.save.is_constant

    @property
    def is_trained(self) -> bool:
        """Whether what was saved is a parameter, or another leaf that requires a gradient."""
        return self.kind == "parameter" or (self.finding.save is not None and self.finding.save.is_leaf)

    @property
    def is_hidden(self) -> bool:
        """Whether the text of a write goes through `.data`, to what is no weight or buffer and may be in a graph."""
        hidden = any(True for write in self.writes() for _ in hides(write.target))
        return hidden and self.kind == "tensor" and not self.is_constant

    @property
    def cuts(self) -> bool:
        """Whether the text of a write goes through `.data` to a constant, and writes what may be in a graph: autograd
        would record the same write out of place."""
        return self.is_constant and any(hides(one.target) and not is_of_constants(one) for one in self.writes())

    @property
    def unchecked(self) -> str:
        """Why PyTorch does not check the bytes: "ctx", of an attribute of a `ctx`, or "packed", what the program's pack
        hook returned; empty where it does."""
        return self.finding.save.unchecked if self.finding.save is not None else ""

    @property
    def is_unseen(self) -> bool:
        """Whether autograd was never told of the write: only its author knows whether the gradient should follow it."""
        return is_of_intent(self.finding)

    @property
    def is_judged(self) -> bool:
        """Whether a run shows of any change if it is right. Else only those are tried that mean the same.

        No right gradient is known of what autograd was never told, and a region that runs again may drift in other
        ways.
        """
        untold = (GradientWrite, SharedGradient, Undeclared, Untracked, Overwritten, LostHook, StaleCast, Drift)
        return self.finding.severity == "error" and not isinstance(self.finding.event, untold) and not self.is_unseen

    @property
    def may_write_anew(self) -> bool:
        """Whether the write may be made in another way: it is one of the program's own, to what is no weight.

        What takes the place of a weight is no weight of the module any more. In a region that runs again a new tensor
        under the old name is a change as well, but for what a policy keeps.
        """
        told = isinstance(self.finding.event, (Clobber, Refusal, Drift, Overwritten, LostHook)) and not self.is_unseen
        aside = self.kind == "parameter" or self.code == "NC202" or self.is_freed or self.drifts
        return told and not aside and not self.is_hidden and not self.cuts

    @property
    def drifts(self) -> bool:
        """Whether a region that runs again computes other values; what a policy keeps is a save like any other."""
        event = self.finding.event
        return isinstance(event, Drift) and event.save.unchecked != "policy"

    def writes(self) -> list[WriteSyntax]:
        """The writes of the finding: those at its labels, then those of its list at other lines."""
        found = [write_at(one) for one in self.places("write")]
        lines = {(one.file.path, one.statement.lineno) for one in found}
        for span in [one.site.span() for one in self.finding.writes if one.site is not None]:
            file = self.file(span.path) if (span.path, span.line) not in lines else None
            rows = simple_statements(file.tree) if file is not None else []
            statement = next((one for one in rows if span.line in lines_in(one)), None)
            if file is not None and statement is not None:
                found.append(write_at(Place(file, statement)))
                lines.add((span.path, statement.lineno))
        return found

    def steps(self) -> bool:
        """Whether the line to blame is the step of an optimizer."""
        return any(optimizer_of(one.row) for one in self.places("write"))

    def step_and_backward(self) -> tuple[Place, Place] | None:
        """The step to blame and the backward, where both stand in one file."""
        step, read = self.place("write"), self.place("read")
        if step is None or read is None or step.file is not read.file or not self.steps():
            return None
        return step, read

    def reads_first(self) -> bool:
        """Whether the step, of an optimizer or by hand, stands below the backward, as in a loop whose turns share a
        graph: they themselves, or the calls of one function that lead to them."""
        step, read, event = self.place("write"), self.place("read"), self.finding.event
        if step is None or read is None or not (self.steps() or descends(step.file, step.row)):
            return False
        reads = event.read.calls if isinstance(event, Clobber) else ()
        for write in self.finding.writes:
            for at, site in enumerate(write.calls):
                one, other = self.at(site.span()), self.at(reads[at].span()) if at < len(reads) else read
                if one is None or other is None or one.node is other.node or one.file is not other.file:
                    continue
                if one.file.scope(one.node) is other.file.scope(other.node):
                    return _line(other) < _line(one)
        return step.file is read.file and _line(read) < _line(step)

    def lines_written(self, file: File) -> set[int]:
        """The lines of the writes; 0 for a line of another file, or an unknown line."""
        spans = [one.site.span() if one.site is not None else None for one in self.finding.writes]
        real = os.path.realpath(file.path)
        return {one.line if one is not None and os.path.realpath(one.path) == real else 0 for one in spans}

    def ops(self) -> list[str]:
        """The writing operators without their namespace: ["add_"]; the step of an optimizer as "SGD.step"."""
        event = self.finding.event
        ops = [event.op or ""] if isinstance(event, Refusal) else [one.op for one in self.finding.writes]
        names = [op.split("::")[-1].split(".default")[0] for op in ops]
        return list(dict.fromkeys(name for name in names if name))

    def keeps_type(self, file: File) -> bool:
        """Return True if out of place the result has the element type of the tensor too, as no operand has a wider one,
        or has no part in it: none was seen, and the writes only compute with what is there; or the file has no word for
        one."""
        ops, event = set(self.ops()), self.finding.event
        if ops and ops <= KEEPS_TYPE:
            return True
        dtype = self.finding.tensor.dtype.removeprefix("torch.") if self.finding.tensor is not None else ""
        if dtype not in _SINGLE:
            return dtype in _WIDE
        seen = [event] if isinstance(event, Refusal) else self.finding.writes
        rows = [one.statement for one in self.writes()] if all(one.is_widest for one in seen) else []
        run: list[ast.AST] = [file.tree]
        if rows and not _DEFAULTS & names_used(file.tree) and all(_computes_only(file, one) for one in rows):
            run = [*rows, *(each for one in rows for each in run_by(self, one))]
        return all(_WIDER.isdisjoint(names_used(one)) for one in run)

    @cached_property
    def files(self) -> list[File]:
        """The files of the user's own labels and of the calls that lead there, then the modules that these import from
        beside them, and so on."""
        labels = [one.span.path for one in self.finding.labels if one.role != "inside"]
        paths = list(dict.fromkeys([*labels, *(one.span().path for one in self.finding.calls)]))
        found: dict[str, File] = {}
        for path in paths:
            file = self.file(path) if len(found) < _MOST_FILES else None
            if file is not None:
                found[file.path] = file
                paths += dict.fromkeys(one for one in _imported(file) if one not in paths)
        return list(found.values())


def _line(place: Place) -> int:
    return getattr(place.node, "lineno", 0)


def _imported(file: File) -> Iterator[str]:
    """Paths that the imports of a file may lead to, in its own folder and below."""
    folder = os.path.dirname(file.path)
    for one in walk(file.tree, ast.stmt):
        names = [alias.name for alias in one.names] if isinstance(one, (ast.Import, ast.ImportFrom)) else []
        for name in [one.module] if isinstance(one, ast.ImportFrom) and one.module else names:
            parts = name.split(".")
            yield os.path.join(folder, *parts) + ".py"
            yield os.path.join(folder, *parts, "__init__.py")


def run_by(scene: Scene, node: ast.AST, known: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """The functions and classes of the program's files that a statement may run, by their names."""
    names = {called(one) for one in walk(node, ast.Call)} - known
    made = (one for file in scene.files for one in (*functions(file.tree), *walk(file.tree, ast.ClassDef)))
    for one in made:
        if one.name in names:
            yield one
            yield from run_by(scene, one, known | names)


def is_of_constants(write: WriteSyntax) -> bool:
    """Return True if the text shows that what a statement writes with are numbers and tensors outside of the graph."""
    file, row = write.file, write.statement
    given = [one for call in walk(row, ast.Call) for one in values(call)]
    given += [row.value] if isinstance(row, (ast.AugAssign, ast.Assign)) and write.call is None else []
    return all(is_numeric(file, one) or (isinstance(one, ast.Call) and is_untracked(one)) for one in given)


def hides(target: ast.expr | None) -> list[tuple[ast.expr, ast.expr]]:
    """The `t.data` and `t.detach()` in a target, each with its `t`."""
    if target is None:
        return []
    read = [(one, one.value) for one in attributes(target, "data")]
    return [*read, *[(one, held) for one in calls(target, "detach") if (held := owner(one)) is not None]]


def puts_back(finding: Finding, lines: Collection[int]) -> bool:
    """Return True if `h[i] += e` on some lines puts the result back into a tensor; where `h` is a list, nothing is
    copied."""
    there = [op_in_words(one.op) for one in finding.writes if one.site is not None and one.site.line in lines]
    return not {"copy_", "fill_", "index_put_"}.isdisjoint(there)


def is_of_intent(finding: Finding) -> bool:
    """Return True if only the author can decide a finding: no run shows what a write outside of autograd to a tensor in
    the graph should do to the gradient, even if the write also clobbers a save."""
    return isinstance(finding.event, Untracked) or any(one.untracked for one in finding.writes)
