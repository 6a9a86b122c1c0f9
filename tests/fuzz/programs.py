"""Random training programs as source text: the hypothesis strategy that strings statements together.

A program is a script that a person can run. It builds a graph from a few leaves, writes to tensors in many ways, calls
backward one or more times and leaves the gradients in `grads`. Whether a statement suits its operands, and what comes
of it, is found out by running it once on zeros.
"""

from __future__ import annotations

import functools
import random
import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from tests.fuzz.statements import BLOCKS, FORWARD, FUNCTIONS, LOSSES, OPTIMIZERS, PRELUDE, TABLES, function

MOST, LONGEST = 64, 16
"""Elements of the largest tensor, statements of the longest program."""
Choose = Callable[[Sequence[Any]], Any]


class Var(NamedTuple):
    """What is known of a variable: enough to make one like it."""

    shape: tuple[int, ...]
    requires_grad: bool = False
    is_leaf: bool = True
    is_alias: bool = False
    """Whether it is a view or shares its storage with what it was made from."""


LEAVES = {
    "x": Var((3, 4), True),
    "w": Var((4, 4), True),
    "b": Var((4,), True),
    "c": Var((3, 4)),
    "t": Var((3, 4)),
}
SHAPES = {"m": (3, 4), "n": (3, 4), "q": (4, 4), "v": (4,)}


def _fits(kind: str, place: str, first: Var | None, var: Var) -> bool:
    """Whether a variable may stand at a place; `first` is what stands for `{a}` already."""
    if kind == "hook":
        return var.requires_grad and not var.is_alias
    return var.shape == (first.shape if first is not None else SHAPES.get(place, var.shape))


@functools.cache
def _world() -> dict[str, Any]:
    """Where templates are tried."""
    world: dict[str, Any] = {}
    exec("\n".join([PRELUDE, OPTIMIZERS[0], *map(function, FUNCTIONS)]), world)
    return world


@functools.cache
def placeholders(template: str) -> tuple[str, ...]:
    """The names in braces, results first, each once."""
    names = dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name)
    return tuple(sorted(names, key="rsabmnqv".index))


def _like(var: Var) -> torch.Tensor:
    tensor = torch.zeros(var.shape, dtype=torch.float64, requires_grad=var.requires_grad and var.is_leaf)
    return (tensor * 1).requires_grad_(var.requires_grad) if not var.is_leaf else tensor


@functools.cache
def effect(template: str, operands: tuple[tuple[str, Var], ...], grad: bool) -> dict[str, Var] | None:
    """What the placeholders are after the statement; None where it raises, or makes what is too large or not finite."""
    world = _world() | {name: _like(var) for name, var in operands}
    names = placeholders(template)
    try:
        with torch.set_grad_enabled(grad):
            exec(template.format(**{name: name for name in names}), world)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return None
    after = {name: world[name] for name in names}
    if not all(a.dtype == torch.float64 and 0 < a.numel() <= MOST and a.dim() <= 4 for a in after.values()):
        return None
    if not all(bool(a.detach().isfinite().all()) for a in after.values()):
        return None
    storages = {world[name].untyped_storage().data_ptr(): name for name, _ in operands}
    shared = {name: storages.get(a.untyped_storage().data_ptr(), name) != name for name, a in after.items()}
    return {
        name: Var(tuple(a.shape), a.requires_grad, a.is_leaf, shared[name] or a._is_view()) for name, a in after.items()
    }


class Writing:
    """A program while it is being written."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.lines: list[str] = []
        self.indent = ""
        self.pool = dict(LEAVES)
        self.made = 0
        self.grad = True
        self.called = 0
        self.reentrant = False
        self.own_backward = False

    def say(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def variable(self, fits: Callable[[Var], bool]) -> str | None:
        """A variable of the pool; more likely one that was made, is in the graph or is among the last three."""
        names = [name for name, var in self.pool.items() if fits(var)]
        made = [name for name in names if name not in LEAVES]
        graph = [name for name in names if self.pool[name].requires_grad]
        return self.choose(names + made + graph + names[-3:]) if names else None

    def statement(self, kind: str, only: str | None = None) -> list[str]:
        """Write one statement of a table, if it suits the operands drawn; a write may be to `only` one variable.

        Returns the variables that it made.
        """
        template = self.choose(TABLES[kind][1])
        names: dict[str, str] = {}
        for place in placeholders(template):
            if place in "rs":
                names[place] = f"{'h' if self.indent else 'y'}{self.made + len(names)}"
                continue
            fits = functools.partial(_fits, kind, place, self.pool[names["a"]] if place == "b" else None)
            preferred = only if only and place in "am" and fits(self.pool[only]) else None
            name = preferred or self.variable(fits)
            if name is None or (kind == "in place" and only and place in "am" and not preferred):
                return []
            names[place] = name
        operands = tuple((place, self.pool[name]) for place, name in names.items() if place not in "rs")
        after = effect(template, operands, self.grad)
        if after is None:
            return []
        self.say(template.format(**names))
        new = [names[place] for place in ("r", "s") if place in names]
        self.made += len(new)
        for place, var in after.items():
            was = self.pool.get(names[place], var)
            self.pool[names[place]] = var._replace(is_alias=var.is_alias or was.is_alias)
        self.own_backward |= kind in ("grad write", "hook")
        return new

    def no_grad(self) -> None:
        self.say("with torch.no_grad():")
        self.indent, self.grad, at = "    ", False, len(self.lines)
        for _ in range(self.choose((1, 1, 2))):
            self.statement(self.choose(("in place", "in place", "out", "unary")))
        self._close(at)
        self.grad = True

    def inference(self) -> None:
        """Nothing is made in it, which could not be saved elsewhere."""
        self.say("with torch.inference_mode():")
        self.indent, self.grad, at = "    ", False, len(self.lines)
        for _ in range(self.choose((1, 1, 2))):
            self.statement(self.choose(("in place", "in place", "in place", "out", "data", "set", "assign")))
        self._close(at)
        self.grad = True

    def thread(self) -> None:
        """A task that another thread does while this one waits."""
        task, at = f"task{self.made}", len(self.lines)
        self.made += 1
        self.say(f"def {task}():")
        self.indent = "    "
        for _ in range(self.choose((1, 2, 3))):
            kind = self.choose((*FORWARD, "in place", "data", "step", "backward"))
            if kind == "backward":
                self.backward(retain=True)
            else:
                self.statement(kind)
        self.indent, begun = "", len(self.lines) > at + 1
        if begun:
            used = sorted(set(re.findall(r"\b(?:[yh]\d+|[xwbct])\b", "\n".join(self.lines[at + 1 :]))))
            self.lines.insert(at + 1, f"    global {', '.join(['grads', *used])}")
            self.say(f"in_thread({task})")
        else:
            self.lines.pop()

    def saved_hooks(self) -> None:
        self.say(f"with {self.choose(('saved_tensors_hooks(lambda s: s, lambda s: s)', 'save_on_cpu()'))}:")
        self.indent, at = "    ", len(self.lines)
        for _ in range(self.choose((1, 2, 3))):
            self.statement(self.choose((*FORWARD, "in place")))
        self._close(at)

    def _close(self, at: int) -> None:
        if len(self.lines) == at:
            self.lines.pop()
        self.indent = ""

    def checkpoint(self, reentrant: bool) -> None:
        """A region. It writes to variables of its own alone: run again, it must find the world as it was.

        What it closes over may be written later, by others.
        """
        given = self.variable(lambda var: var.requires_grad or not reentrant)
        if given is None:
            return
        region, outer, at, own_backward = f"region{self.made}", dict(self.pool), len(self.lines), self.own_backward
        self.say(f"def {region}(h):")
        self.pool["h"], self.indent, last = self.pool[given], "    ", "h"
        local: list[str] = []
        for _ in range(self.choose((1, 2, 3))):
            own = [name for name in local if not self.pool[name].is_alias]
            if own and self.choose((False, False, True)):
                self.statement("in place", only=self.choose(own))
            elif new := self.statement(self.choose(FORWARD), only=last):
                local, last = local + new, new[-1]
        self.say(f"return {last}")
        self.indent = ""
        if not local or (reentrant and not self.pool[last].requires_grad):
            self.lines, self.pool, self.own_backward = self.lines[:at], outer, own_backward
            return
        self.made += 1
        self.say(f"y{self.made} = checkpoint({region}, {given}, use_reentrant={reentrant})")
        self.pool = outer | {f"y{self.made}": self.pool[last]._replace(is_leaf=False)}
        self.made += 1
        self.reentrant |= reentrant

    def loss(self) -> str | None:
        """A sum over one to four variables of the graph."""
        terms = []
        for _ in range(self.choose((1, 2, 3, 4))):
            name = self.variable(lambda var: var.requires_grad and not var.is_leaf)
            if name is not None:
                terms.append(self.choose(LOSSES).format(a=name))
        return " + ".join(dict.fromkeys(terms)) or None

    def backward(self, retain: bool) -> None:
        loss = self.loss()
        if loss is not None:
            self.called += 1
            self.say(f"({loss}).backward({'retain_graph=True' if retain else ''})")
            self.say(f"grads[{self.called}] = gradients()")

    def autograd_grad(self, create_graph: bool) -> None:
        """Not after a reentrant checkpoint, which refuses it, or gives gradients without a graph."""
        name = self.variable(lambda var: var.requires_grad and not var.is_leaf)
        loss = self.choose(LOSSES).format(a=name)
        if name is None or self.reentrant or (create_graph and self.own_backward):
            return
        self.called += 1
        inputs, more = ("[x]", "create_graph=True") if create_graph else ("[x, w, b]", "retain_graph=True")
        self.say(f"grads[{self.called}] = torch.autograd.grad({loss}, {inputs}, allow_unused=True, {more})")
        if create_graph:
            self.say(f"y{self.made} = x if grads[{self.called}][0] is None else grads[{self.called}][0] + 0")
            self.pool[f"y{self.made}"] = Var((3, 4), True, False)
            self.made += 1

    def write(self, kind: str) -> None:
        """Write a statement or a block of this kind."""
        if kind in TABLES:
            self.statement(kind)
        elif kind == "no_grad":
            self.no_grad()
        elif kind == "inference":
            self.inference()
        elif kind == "thread":
            self.thread()
        elif kind == "saved hooks":
            self.saved_hooks()
        elif kind in ("checkpoint", "reentrant"):
            self.checkpoint(kind == "reentrant")
        elif kind == "backward":
            self.backward(self.choose((True, True, True, True, True, False)))
        else:
            self.autograd_grad(kind == "penalty")


def write_program(choose: Choose, kinds: Sequence[str]) -> str:
    """The source of a program of these kinds of statements; `choose` picks one of a sequence."""
    writing = Writing(choose)
    for kind in kinds:
        writing.write(kind)
    writing.backward(retain=False)
    body = "\n".join(writing.lines)
    needed = [function(name) for name in FUNCTIONS if f"{name}.apply" in body]
    if "opt." in body:
        needed.append(choose(OPTIMIZERS))
    return "\n".join([PRELUDE, *needed, body]) + "\n"


def weighted(without: Collection[str] = ()) -> list[str]:
    """The kinds of statements but for some, each as often as its weight."""
    weights = {kind: weight for kind, (weight, _) in TABLES.items()} | BLOCKS
    return [kind for kind, weight in weights.items() for _ in range(weight) if kind not in without]


@st.composite
def programs(draw: Any, without: Collection[str] = ()) -> str:
    """Random programs without some kinds of statements (names of KINDS), for hypothesis."""
    kinds = draw(st.lists(st.sampled_from(weighted(without)), min_size=3, max_size=LONGEST))
    return write_program(lambda options: draw(st.sampled_from(options)), kinds)


def random_program(seed: str, without: Collection[str] = ()) -> str:
    """The same, from a seed and ten times as fast, for many."""
    chance = random.Random(seed)
    return write_program(chance.choice, chance.choices(weighted(without), k=chance.randint(3, LONGEST)))
