"""Writes out of place: `x = x + y` for `x += y`, `t = t.op()` for `t.op_()`, and calls without `inplace` and `out`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from noclobber.fix.candidates.syntax import ParsedFile, called, dotted, replace
from noclobber.fix.candidates.write_syntax import FUNCTIONS, WriteSyntax, chain, has_twin, is_flagged, keyword, writes
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.operators import WITHOUT_TWIN
from noclobber.model.source import Span

TITLE = "write out of place"
_SYMBOLS: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "+", cst.SubtractAssign: "-", cst.MultiplyAssign: "*", cst.DivideAssign: "/", cst.PowerAssign: "**",
    cst.FloorDivideAssign: "//", cst.ModuloAssign: "%", cst.MatrixMultiplyAssign: "@", cst.BitAndAssign: "&",
    cst.BitOrAssign: "|", cst.BitXorAssign: "^", cst.LeftShiftAssign: "<<", cst.RightShiftAssign: ">>",
}  # fmt: skip
_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Integer, cst.Float)
_PRODUCTS = (cst.Multiply, cst.Divide, cst.MatrixMultiply, cst.FloorDivide, cst.Modulo, cst.Power)
_SIGNS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}


def out_of_place(write: WriteSyntax) -> Iterator[Candidate]:
    """The write with a new tensor for its result, bound to the name of the old one where the statement has no other."""
    edits = rebound(write)
    if edits:
        yield Candidate(TITLE, tuple(edits), 1)


def rebound(write: WriteSyntax) -> list[Edit]:
    """The edits of `out_of_place`; empty where the text does not allow it."""
    file, statement = write.file, write.statement
    if isinstance(statement, cst.AugAssign):
        return [replace(file, statement, _augmented(file, statement))] if _binds(statement.target) else []
    if write.call is None:
        return []
    if keyword(write.call, "out") is not None:
        return _without_out(write, write.call)
    if is_flagged(write.call) or _is_positional(write.call):
        return _without_flag(write, write.call)
    return _without_underscore(write, write.call)


def untracked(text: str) -> str:
    """A tensor's text without the `.data` or `.detach()` that hides it from autograd."""
    return text.removesuffix(".data").removesuffix(".detach()")


def expression(file: ParsedFile, call: cst.Call) -> str | None:
    """`g * k` for `g.mul_(k)`, `g.clamp(0)` for `g.clamp_(0)`; None for a method that has no twin."""
    name = called(call)
    if not name.endswith("_") or name in WITHOUT_TWIN or not isinstance(call.func, cst.Attribute) or not has_twin(call):
        return None
    plain = len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star
    if name in _SIGNS and plain and isinstance(call.func.value, (cst.Name, cst.Attribute)):
        value = call.args[0].value
        if isinstance(value, _ATOMS) or (isinstance(value, cst.BinaryOperation) and name == "add_"):
            return f"{file.source(call.func.value)} {_SIGNS[name]} {file.source(value)}"
        return f"{file.source(call.func.value)} {_SIGNS[name]} ({file.source(value)})"
    return _stripped(file, call, [call])


def _augmented(file: ParsedFile, found: cst.AugAssign) -> str:
    symbol, value = _SYMBOLS[type(found.operator)], file.source(found.value)
    loose = not isinstance(found.value, _ATOMS)
    product = isinstance(found.value, cst.BinaryOperation) and isinstance(found.value.operator, _PRODUCTS)
    plus = isinstance(found.operator, cst.AddAssign) and isinstance(found.value, cst.BinaryOperation)
    if (loose and not (plus and product) and not (product and symbol == "-")) or "\n" in value:
        value = f"({value})"
    target = untracked(file.source(found.target))
    return f"{target} = {target} {symbol} {value}"


def _without_underscore(write: WriteSyntax, call: cst.Call) -> list[Edit]:
    file, statement = write.file, write.statement
    is_whole = isinstance(statement, cst.Expr)
    value = statement.value if isinstance(statement, (cst.Expr, cst.Assign)) else None
    calls = chain(value) if value is not None else []
    outermost = value if call in calls and isinstance(value, cst.Call) else call
    writing = [one for one in (calls if call in calls else chain(call) or [call]) if writes(one)]
    if not writing or any(called(one) in WITHOUT_TWIN or not has_twin(one) for one in writing):
        return []
    text = _stripped(file, outermost, writing)
    if not is_whole:
        return [replace(file, outermost, text)]
    target = write.target
    if target is None or not _binds(target) or called(value) == "requires_grad_":
        return []
    if len(writing) == 1 and len(calls) == 1 and dotted(call.func) and dotted(target):
        text = expression(file, call) or text
    owner = file.source(target)
    return [replace(file, statement, f"{untracked(owner)} = {text.replace(owner, untracked(owner), 1)}")]


def _without_flag(write: WriteSyntax, call: cst.Call) -> list[Edit]:
    file = write.file
    flag = keyword(call, "inplace") or call.args[-1]
    gone = dropped(file, call, flag)
    if gone is None:
        return []
    if not isinstance(write.statement, cst.Expr):
        return [gone]
    if write.target is None or not _binds(write.target) or write.statement.value is not call:
        return []
    span = file.span(call)
    start = Span(file.path, span.line, span.column, span.line, span.column)
    return [Edit(start, f"{file.source(write.target)} = "), gone]


def _without_out(write: WriteSyntax, call: cst.Call) -> list[Edit]:
    file, out = write.file, keyword(call, "out")
    gone = dropped(file, call, out) if out is not None else None
    if out is None or gone is None or not isinstance(out.value, (cst.Name, cst.Attribute, cst.Subscript)):
        return []
    span = file.span(call)
    start = Edit(Span(file.path, span.line, span.column, span.line, span.column), f"{file.source(out.value)} = ")
    if isinstance(write.statement, (cst.Expr, cst.Assign)) and write.statement.value is call:
        return [start, gone]
    return [gone]


def dropped(file: ParsedFile, call: cst.Call, arg: cst.Arg) -> Edit | None:
    """Take an argument out of a call, with the comma before it or, for the first, behind it."""
    index, span = list(call.args).index(arg), file.span(arg)
    if index:
        last = file.span(call.args[index - 1].value)
        start, end = (last.end_line, last.end_column), (span.end_line, span.end_column)
        between = file.text[file.offset(*start) : file.offset(span.line, span.column)]
        if ")" in between:
            start = (span.line, span.column - len(between) + between.rindex(")") + 1)
            if "\n" in between:
                return None
        end = file.span(arg.value).end_line, file.span(arg.value).end_column
        return Edit(Span(file.path, *start, *end), "")
    if len(call.args) == 1:
        return Edit(span, "")
    following = file.span(call.args[1])
    return Edit(Span(file.path, span.line, span.column, following.line, following.column), "")


def _is_positional(call: cst.Call) -> bool:
    """`F.relu(x, True)`: the flag without its name."""
    is_function = isinstance(call.func, cst.Attribute) and dotted(call.func.value) in FUNCTIONS
    short = called(call) in ("relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid")
    return is_function and short and len(call.args) == 2 and dotted(call.args[1].value) == "True"


def _stripped(file: ParsedFile, whole: cst.BaseExpression, calls: list[cst.Call]) -> str:
    """The text of an expression with the underscore taken from the names of some calls in it."""
    begin = file.span(whole)
    offset = file.offset(begin.line, begin.column)
    text = file.source(whole)
    for one in calls:
        end = file.span(one.func)
        cut = file.offset(end.end_line, end.end_column) - offset
        text = text[: cut - 1] + text[cut:]
    return text


def _binds(target: cst.BaseExpression) -> bool:
    """Whether a statement may bind a value to it without doing something twice."""
    if isinstance(target, cst.Subscript):
        return not any(isinstance(one, cst.Call) for one in _below(target))
    return bool(dotted(target))


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _below(child)


_GUARDS = ("no_grad", "inference_mode")
"""Blocks in which autograd records nothing."""


def guarded_out_of_place(write: WriteSyntax) -> Iterator[Candidate]:
    """A write under `with torch.no_grad():`, moved out of that block and out of place, so that autograd sees it."""
    edits = rebound(write)
    moved = out_of_guard(write, edits)
    if edits and moved is not None and moved != tuple(edits):
        yield Candidate("let autograd see it: " + TITLE, moved, 1 if len(moved) == 1 else 2)


def out_of_guard(write: WriteSyntax, edits: Sequence[Edit]) -> tuple[Edit, ...] | None:
    """Edits of a write, which also take it out of the block under `no_grad` that it stands in, where it does; None
    where that cannot be done."""
    file = write.file
    block = next((one for one in file.ancestors(write.statement) if isinstance(one, cst.With) and _guards(one)), None)
    if block is None:
        return tuple(edits)
    if len(block.items) > 1 or not isinstance(block.body, cst.IndentedBlock):
        return None
    outer, inner = file.indent(block), file.indent(block.body.body[0])
    if outer is None or inner is None:
        return None
    first, last = file.span(block.body.body[0]), file.span(block.body)
    if len(edits) == 1 and len(block.body.body) == 1 and edits[0].span == file.span(write.statement):
        return (Edit(file.span(block), edits[0].replacement),)
    begin, end = file.span(block), last
    shifts = []
    for number in range(first.line + 1, end.end_line + 1):
        text = file.text[file.offset(number, 1) : file.offset(*file.end_of_line(number))]
        if text.startswith(inner):
            shifts.append(Edit(Span(file.path, number, 1, number, len(inner) - len(outer) + 1), ""))
    header = Edit(Span(file.path, begin.line, begin.column, first.line, first.column), "")
    return (header, *edits, *shifts)


def _guards(block: cst.With) -> bool:
    return any(called(one.item) in _GUARDS or dotted(one.item).rpartition(".")[2] in _GUARDS for one in block.items)


def undecorated(write: WriteSyntax) -> Iterator[Candidate]:
    """A write in a function under `@torch.no_grad()`, out of place and without the decorator."""
    scope, file, edits = write.file.scope(write.statement), write.file, rebound(write)
    if not isinstance(scope, cst.FunctionDef) or not edits:
        return
    for one in scope.decorators:
        if called(one.decorator) == "no_grad" or dotted(one.decorator).endswith("no_grad"):
            number = file.line(one)
            line = Edit(Span(file.path, number, 1, number + 1, 1), "")
            yield Candidate("let autograd see it: " + TITLE, (line, *edits), 2)
