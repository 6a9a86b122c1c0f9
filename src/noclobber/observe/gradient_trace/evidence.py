"""Records a run, so that it can be compared: for each backward call, what reaches every leaf, and what is kept."""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.graph import Node
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.seen import handles
from noclobber.observe.gradient_trace import forward_mode, leaf_names, right_gradients
from noclobber.observe.gradient_trace.right_gradients import Fresh
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import outward, passed_over
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.torch_api.tensors.local_numbers import dense
from noclobber.observe.witness import digests
from noclobber.observe.witness.layout import Geometry, geometry, tensor_on

Truncation = Literal["", "step", "backward"]
"""Which part of a leaf's gradient counts: all of it, or only what flowed through uses of the leaf since an optimizer
last stepped it ("step"), or since the last backward call ("backward")."""
Wanted = Literal["gradients", "loss"]
"""What is recorded: all gradients, or only the loss of the first backward call."""


class Sketch(NamedTuple):
    """A short form of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The norm, and two weighted sums of the numbers."""
    bits: object = None
    """The fingerprint of the bytes; None if they cannot be read."""


Seen = torch.Tensor | Sketch | None
"""A tensor as it was recorded: a copy or a sketch. None where there was no tensor."""
Event = dict[str, Any]
"""One event of a run. Its "kind" is "backward", "grad", "transform" (a gradient that torch.func has taken), "failed",
"step", "stepped", "read" (of the `.grad` of a leaf) or "end"; the other keys depend on the kind."""
_MOST_READ = 1000
"""How many reads of gradients are recorded."""
_AT_ONCE = 1 << 22
"""How many numbers are converted to double precision at a time."""
_WEIGHED = 1 << 16
"""How many numbers of a tensor, evenly spaced, go into the weighted sums of a sketch. The norm is of all numbers."""


class Evidence:
    """Listens to the backward calls of this process: the first `most` calls, or those of the first `seconds`.

    `saved` is the most bytes that any backward call kept for itself. The first and the last `whole` calls record copies
    of their gradients; the calls between record sketches. `retaining` keeps every graph for a second backward.
    `forward` gives the derivative of the loss, where only the loss is wanted. `after` calls come before the one whose
    derivative is measured. With `before`, a gradient with respect to a tensor that was overwritten is taken with
    respect to the value from before the write: `before(tensor, inputs)` returns the number of the node that the write
    made, None for a tensor that stands for the value that is meant.
    """

    def __init__(
        self,
        most: int,
        seconds: float,
        *,
        wanted: Wanted = "gradients",
        whole: int = 3,
        truncation: Truncation = "",
        retaining: bool = False,
        forward: forward_mode.ForwardMode | None = None,
        after: int = 0,
        before: Callable[[object, Sequence[object]], int | None] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.begun = 0
        """Backward calls that have begun, without those inside other backward calls."""
        self.done = 0
        """Backward calls that have ended without an error, without those inside others."""
        self.saved: int | None = None
        self.full: Callable[[], None] = lambda: None
        """Called when the last backward call that is recorded has ended."""
        self.started: Callable[[], None] = lambda: None
        """Called when the loss is known, where only the loss is wanted."""
        self.reached: Callable[[], None] = lambda: None
        """Called when the calls have ended that the loss follows, where there are any."""
        self.looked: Callable[[], None] = lambda: None
        """Called when any backward call has ended, with an error or without."""
        self._most, self._until = most, time.monotonic() + seconds
        self._retaining, self._wanted, self._whole, self._forward = retaining, wanted, whole, forward
        self._after = after
        self._before = before
        self._fresh = Fresh(truncation) if truncation else None
        self._named: dict[str, tuple[Any, Geometry]] = {}
        """The memory of each leaf, by name. A weak reference to the leaf itself would make `swap_tensors` fail."""
        self._modules: dict[str, weakref.ref[torch.nn.Module]] = {}
        self._bare: dict[str, storages.StorageRef] = {}
        """The memory of each variable that held a tensor at the last backward call, by name."""
        self._sketched: dict[str, Sketch | None] = {}
        """The last sketch of what the program keeps, by name."""
        self._made: list[weakref.ref[torch.nn.Module]] = []
        """Every module that holds anything, in the order in which the modules got their first content."""
        self._known: set[int] = set()
        self._depth = self._reads = 0
        self._process = os.getpid()
        self._patches = Patches()

    def limit(self, most: int) -> None:
        """Record `most` calls in all."""
        self._most = most

    def begin_again(self) -> None:
        """Record a forked child, which has made no call yet."""
        self._process = os.getpid()
        self.events, self.begun, self.done, self.saved, self._reads = [], 0, 0, None, 0

    def arm(self, watch: Callable[[], None]) -> None:
        """Begin to record. `watch` arms everything else that watches the run.

        Gradients are recorded inside of what `watch` arms, and the end of a call is noticed outside of it. Nothing is
        taken off again: the process ends with the run.
        """
        self._wrap(self._recording)
        for register in (
            register_module_buffer_registration_hook,
            register_module_parameter_registration_hook,
            register_module_module_registration_hook,
        ):
            hook_stack.hook(register, self._registered)
        if self._fresh is not None:
            self._fresh.arm()
        if self._wanted == "gradients":
            hook_stack.hook(register_optimizer_step_pre_hook, self._stepping)
            hook_stack.hook(register_optimizer_step_post_hook, self._stepped)
            whole: Any = vars(torch._C.TensorBase)["grad"]
            getter = passed_over(lambda tensor: self._read(tensor, whole.__get__(tensor)))
            self._patches.put(torch.Tensor, "grad", property(getter, whole.__set__, whole.__delete__, whole.__doc__))
        watch()
        self._wrap(self._ending)

    def _wrap(self, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        self._patches.put(torch.autograd, "_engine_run_backward", wrap(engine_state.engine()))

    def ended(self) -> None:
        """Record what the leaves and modules hold when the program has come to its own end."""
        alive = {name: leaf for name, memory in self._named.items() if (leaf := tensor_on(*memory)) is not None}
        for name, held in self._modules.items():
            if (module := held()) is not None:
                alive.update((f"{name}.{path}", tensor) for path, tensor in torch.nn.Module.named_parameters(module))
                alive.update((f"{name}.{path}", tensor) for path, tensor in torch.nn.Module.named_buffers(module))
        found = leaf_names.names()
        named = ((name, tensor) for name, tensor in (found.bare | found.kept).items() if tensor.requires_grad)
        # Nothing runs after this: a view may be asked.
        alive.update((name, one) for name, one in named if tensor_state.is_leaf(one) and graph.maker_of(one) is None)
        with torch.no_grad():
            leaves = {name: _sketch_or_none(leaf) for name, leaf in alive.items()}
            both = self._held("_parameters") | self._held("_buffers")
            kept = self._kept(found, alive.values(), at_end=True)
            self.events.append({"kind": "end", "leaves": leaves, "held": both} | kept)

    def _registered(self, module: torch.nn.Module, name: str, value: object) -> None:
        for one in (module, value):
            if isinstance(one, torch.nn.Module) and os.getpid() == self._process and id(one) not in self._known:
                self._known.add(id(one))
                self._made.append(weakref.ref(one, partial(self._gone, id(one))))

    def _gone(self, module: int, _: object) -> None:
        self._known.discard(module)

    def _held(self, what: Literal["_parameters", "_buffers"]) -> dict[str, Sketch | None]:
        """Return sketches of what the modules hold now, by names such as "3 BatchNorm1d.running_mean". The number is
        the module's index in `_made`."""
        sketches: dict[str, Sketch | None] = {}
        for number, made in enumerate(self._made):
            module = made()
            for name, tensor in dict(vars(module).get(what) or {}).items() if module is not None else ():
                if isinstance(tensor, torch.Tensor) and not torch.nn.parameter.is_lazy(tensor):
                    sketches[f"{number} {type(module).__name__}.{name}"] = sketch(tensor)
        return sketches

    def _kept(self, found: leaf_names.Names, leaves: Iterable[torch.Tensor], *, at_end: bool = False) -> Event:
        """Return sketches of what the program keeps from one step to the next, besides what it differentiates by.

        "state" has the buffers, what attributes, containers, objects and closures hold, and the variables that still
        hold the memory of the last call. "bare" has the other variables: a patch may bind a variable again.
        """
        named: dict[str, torch.Tensor] = dict(found.kept)
        for number, made in enumerate(self._made):
            if (module := made()) is not None:
                named.update(leaf_names.kept_by(f"{number} {type(module).__name__}", module))
        # In the end a variable may be another name of what only the last step computed.
        lasting = {} if at_end else self._lasting(found.bare)
        leaf_ids = {id(leaf) for leaf in leaves}

        def seen(tensors: dict[str, torch.Tensor]) -> dict[str, Sketch | None]:
            sketches = {
                name: _sketch_or_none(tensor, self._sketched.get(name))
                for name, tensor in tensors.items()
                if id(tensor) not in leaf_ids and name not in self._named and not _is_trained(tensor)
            }
            self._sketched.update(sketches)
            return sketches

        with torch.no_grad():
            bare = {name: tensor for name, tensor in found.bare.items() if name not in lasting}
            both = {"state": seen(named | lasting), "bare": seen(bare)}
            return {"buffers": self._held("_buffers"), "numbers": found.numbers} | both

    def _lasting(self, bare: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the variables that hold the same memory as at the last call."""
        before, self._bare = self._bare, {}
        for name, tensor in bare.items():
            with suppress(RuntimeError, NotImplementedError):  # it has no storage
                self._bare[name] = storages.storage_ref(tensor)
        return {
            name: bare[name]
            for name, memory in self._bare.items()
            if name in before and not before[name].expired() and before[name].cdata == memory.cdata
        }

    def _is_other(self, outputs: Iterable[object]) -> bool:
        """Return True if a backward call is not part of the program's run: it is made in a child process or a
        transform, or a compiler traces it."""
        return (
            os.getpid() != self._process
            or modes.transforms_active()
            or private.lookup("_guards.detect_fake_mode")(list(outputs)) is not None
        )

    def _transformed(self, given: Any) -> None:
        """Record the gradients that a transform of this process has taken."""
        if os.getpid() == self._process and modes.transforms_active():
            taken = [tensor_state.unwrapped(one) for one in given or () if one is not None]
            with private.lookup("_functorch.pyfunctorch.temporarily_clear_interpreter_stack")(), torch.no_grad():
                self.events.append({"kind": "transform", "returned": list(map(_sketch_or_none, taken))})

    def _recording(self, engine: Callable[..., object]) -> Callable[..., object]:
        """Return an engine that records the gradients of each call."""

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: object) -> object:
            if self._is_other(t_outputs):
                given = engine(t_outputs, *args, **kwargs)
                self._transformed(given)
                return given
            if self._retaining:
                args = (args[0], True, *args[2:])
            if self._before is not None:
                numbers = [self._before(one, args[3]) for one in args[3]]
                before = [
                    one if number is None else right_gradients.before_write(one, number)
                    for one, number in zip(args[3], numbers, strict=True)
                ]
                args = (*args[:3], tuple(before), *args[4:])
            roots = graph.roots_of(t_outputs)
            self.saved = max(self.saved or 0, saved_bytes(roots))
            if self._wanted == "loss":
                if not any("roots" in event for event in self.events) and self.begun > self._after:
                    call = _Call(t_outputs, [], copied)
                    if self._forward is not None:
                        call.along = [forward_mode.along_roots(t_outputs, args[0])]
                    loss = call.document(True, None) | {"number": self.begun}
                    with torch.no_grad():
                        loss["weighed"] = forward_mode.weighed(t_outputs, args[0])
                    # A run for hints must not read what the program does not read.
                    self.events.append(loss | (self._kept(call.found, ()) if self._forward is not None else {}))
                    self.started()
                return engine(t_outputs, *args, **kwargs)
            whole = self.begun <= self._whole or self.begun > self._most - self._whole
            asked: Sequence[torch.Tensor] = () if kwargs.get("accumulate_grad") else args[3]
            call = _Call(t_outputs, roots, copied if whole else sketch, asked, measured=self.begun <= self._after + 1)
            kept = self._kept(call.found, call.named.values())
            self._named.update(
                (name, (storages.storage_ref(leaf), geometry(leaf)))
                for name, leaf in call.named.items()
                if storages.storage_key(leaf) is not None
            )
            self._modules.update((name, weakref.ref(module)) for name, module in call.found.modules.items())
            if self._fresh is not None:
                call.hooks += self._fresh.cut(roots)
            try:
                result = engine(t_outputs, *args, **kwargs)
            except BaseException:
                self.events.append({"kind": "failed", "roots": call.roots, "along": [], "number": self.begun} | kept)
                raise
            finally:
                call.release()
            self.events.append(
                call.document(bool(kwargs.get("accumulate_grad")), result) | {"number": self.begun} | kept
            )
            return result

        return _engine_run_backward

    def _ending(self, engine: Callable[..., object]) -> Callable[..., object]:
        """Return an engine that counts the calls and notices when the last one has ended."""

        def _engine_run_backward(t_outputs: Iterable[object], *args: object, **kwargs: object) -> object:
            if self._is_other(t_outputs):
                return engine(t_outputs, *args, **kwargs)
            self.begun += self._depth == 0
            self._depth += 1
            try:
                result = engine(t_outputs, *args, **kwargs)
                self.done += self._depth == 1
            finally:
                self._depth -= 1
                self.looked()
            if self._fresh is not None and self._depth == 0:
                self._fresh.backward_ended()
            if self._depth == 0 and self.done == self._after:
                self.reached()
            if self._depth == 0 and (self.done >= self._most or time.monotonic() > self._until):
                self.full()
            return result

        return _engine_run_backward

    def _read(self, leaf: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Record that the program reads the gradient of a leaf, and on which line; not that an optimizer does."""
        frame = sys._getframe(2)
        reader = frame.f_code.co_filename
        by = owner_of(reader)
        is_aside = by is Owner.NOCLOBBER or (by is Owner.TORCH and f"{os.sep}optim{os.sep}" in reader)
        if gradient is None or is_aside or storages.storage_key(leaf) is None:
            return gradient
        if os.getpid() != self._process or self._reads >= _MOST_READ:
            return gradient
        memory = storages.storage_ref(leaf).cdata
        name = next((name for name, (own, _) in self._named.items() if own.cdata == memory and not own.expired()), "")
        if name and (at := _users_line(frame)) is not None:
            self._reads += 1
            with torch.no_grad():
                self.events.append({"kind": "read", "leaf": name, "at": at, "gradient": sketch(gradient)})
        return gradient

    def _stepping(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Record the gradients that an optimizer is about to step with."""
        if os.getpid() != self._process:
            return
        parameters, named = self._stepped_by(optimizer)
        at = _users_line(sys._getframe()) or ("", 0)
        keys = {storages.storage_ref(one).cdata for one in parameters if storages.storage_key(one) is not None}
        names = [name for name, (memory, _) in self._named.items() if memory.cdata in keys and not memory.expired()]
        with torch.no_grad():
            gradients = [sketch(parameter.grad) for parameter in parameters]
            self.events.append({"kind": "step", "optimizer": named, "gradients": gradients, "names": names, "at": at})

    def _stepped(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Record the parameters and the optimizer's state after a step."""
        if os.getpid() != self._process:
            return
        parameters, named = self._stepped_by(optimizer)
        with torch.no_grad():
            held = [sketch(parameter) for parameter in parameters]
            for parameter in parameters:
                state = dict(sorted(optimizer.state.get(parameter, {}).items()))
                held += [sketch(value) for value in leaf_names.held_by(state)]
            self.events.append({"kind": "stepped", "optimizer": named, "held": held})

    def _stepped_by(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[list[torch.Tensor], tuple[str, list[tuple[int, ...]], list[str]]]:
        """Return the parameters of an optimizer; and by what it is known: its class, their shapes, and their modules,
        each as its index in `_made` and the name there."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        modules = [(number, module) for number, made in enumerate(self._made) if (module := made()) is not None]
        names = {id(one): f"{number}.{name}" for number, each in modules for name, one in each._parameters.items()}
        shapes = [tuple(parameter.shape) for parameter in parameters]
        return parameters, (type(optimizer).__name__, shapes, [names.get(id(one), "") for one in parameters])


def _users_line(frame: FrameType) -> tuple[str, int] | None:
    """Return the file and the line of the program that led to a frame; None if there is none in this thread."""
    frames = (one for one in outward(frame) if owner_of(one.f_code.co_filename) is Owner.USER)
    return next(((os.path.realpath(one.f_code.co_filename), one.f_lineno) for one in frames), None)


class _Call:
    """One backward call under way. `taken` makes the record of a tensor: a copy or a sketch. `asked` are the tensors
    whose gradients the call returns.

    If `measured`, the derivatives along directions of the leaves are computed from the gradients too. For gradients
    that are returned this needs all leaves to be asked for.
    """

    def __init__(
        self,
        outputs: Iterable[object],
        roots: list[Node],
        taken: Callable[[torch.Tensor | None], Seen],
        asked: Sequence[torch.Tensor] = (),
        *,
        measured: bool = False,
    ) -> None:
        self._taken = taken
        self.along: list[forward_mode.Along | None] = []
        self._measured: list[list[forward_mode.Along]] = []
        with torch.no_grad():
            self.roots = [taken(output) for output in outputs if isinstance(output, torch.Tensor)]
        self._leaves: list[tuple[Sketch | None, str, list[Seen]]] = []
        self.hooks: list[RemovableHandle] = []
        found = self.found = leaf_names.names()
        self.named: dict[str, torch.Tensor] = {}
        leaves: set[int] = set()
        for node in graph.walk(roots):
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, torch.Tensor):
                leaves.add(id(leaf))
                got: list[Seen] = []
                name = found.name_of(leaf)
                if name:
                    self.named[name] = leaf
                with torch.no_grad():
                    self._leaves.append((sketch(leaf), name, got))
                measured_of = leaf if measured else None
                self.hooks.append(hook_stack.hook(node.register_prehook, self._taker(got, measured_of)))
        self._asked = asked if measured and leaves == set(map(id, asked)) else ()

    def _taker(self, got: list[Seen], leaf: torch.Tensor | None) -> Callable[[tuple[torch.Tensor | None, ...]], None]:
        """Return a hook that adds the gradient of a leaf to `got`. `leaf` is None unless the call is measured."""

        def gradient_arrives(gradients: tuple[torch.Tensor | None, ...]) -> None:
            if gradients[0] is not None:
                with torch.no_grad():
                    got.append(self._taken(gradients[0]))
                    if leaf is not None:
                        self._measure(gradients[0], leaf)

        return gradient_arrives

    def _measure(self, gradient: torch.Tensor, leaf: torch.Tensor) -> None:
        numbers = range(forward_mode.DIRECTIONS)
        self._measured.append([forward_mode.along(gradient, leaf, number) for number in numbers])

    def release(self) -> None:
        """Take the hooks off."""
        for hook in self.hooks:
            hook.remove()

    def document(self, accumulates: bool, result: Any) -> Event:
        """Return the event of the call. `result` is what the engine returned: the gradients of `grad`."""
        with torch.no_grad():
            for gradient, leaf in zip(result or (), self._asked, strict=False):
                if gradient is not None:
                    self._measure(gradient, leaf)
            measured = [forward_mode.total(list(parts)) for parts in zip(*self._measured, strict=True)]
            return {
                "along": measured or self.along,
                "kind": "backward" if accumulates else "grad",
                "roots": self.roots,
                "leaves": [(leaf, got[0], name) for leaf, name, got in self._leaves if got],
                "returned": [self._taken(gradient) for gradient in result or ()],
            }


def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy on the CPU that nothing else changes. The copy of a sparse tensor is dense. None for None."""
    if tensor is None:
        return None
    return dense(tensor).to("cpu", copy=True)


def sketch(tensor: torch.Tensor | None, known: Sketch | None = None) -> Sketch | None:
    """Return a sketch of a tensor, by which equal tensors can be recognised; None for None. `known` may be an earlier
    sketch of it, which still holds where the bytes are the same."""
    if tensor is None:
        return None
    plain = dense(tensor)
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    if not plain.numel() or plain.device.type == "meta" or not plain.untyped_storage().nbytes():
        return Sketch(shape, dtype)  # a parameter that is gathered when it is used (FSDP2) has no memory between
    flat = plain.reshape(-1).to("cpu")
    bits = digests.fingerprint(flat)
    if known is not None and bits is not None and (known.shape, known.dtype, known.bits) == (shape, dtype, bits):
        return known
    # In parts, as a data set in memory is sketched too.
    parts = (flat[start : start + _AT_ONCE] for start in range(0, flat.numel(), _AT_ONCE))
    norm = math.hypot(*(float(_wide(part).norm()) for part in parts))
    flat = _wide(flat[:: -(-flat.numel() // _WEIGHED)])
    places = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
    sums = (flat @ torch.sin(places), flat @ torch.cos(places * 1.7))
    return Sketch(shape, dtype, (norm, float(sums[0]), float(sums[1])), bits)


def _wide(flat: torch.Tensor) -> torch.Tensor:
    return (flat.abs() if flat.is_complex() else flat).to(torch.float64)


def _sketch_or_none(tensor: torch.Tensor, known: Sketch | None = None) -> Sketch | None:
    """Return a sketch of whatever the program keeps; None where its numbers cannot be read."""
    try:
        return None if torch.nn.parameter.is_lazy(tensor) else sketch(tensor, known)
    except Exception:
        return None


def _is_trained(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad


def norm(gradient: torch.Tensor | Sketch) -> float:
    """Return the norm of a gradient that was recorded whole or as a sketch."""
    return float(gradient.norm() if isinstance(gradient, torch.Tensor) else gradient.numbers[0])


def saved_bytes(roots: list[Node]) -> int:
    """Return how many bytes a graph keeps for backward, each storage counted once.

    Storages that the program holds anyway are left out: weights, and whatever else it can reach
    (tests/fix/test_bytes.py compares with the allocator).
    """
    kept: dict[int, tuple[torch.UntypedStorage, set[int]]] = {}
    had: set[int] = set()
    for node in graph.walk(roots):
        if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
            had.add(getattr(storages.storage_or_none(leaf), "_cdata", 0))
        for saved in graph.saves_of_or_gone(node):
            content = graph.content(saved)
            alias = content.alias if isinstance(content, handles.Handle) else content
            if isinstance(alias, torch.Tensor) and (storage := storages.storage_or_none(alias)) is not None:
                kept.setdefault(storage._cdata, (storage, set()))[1].add(id(alias))
    return sum(
        storage.nbytes()
        for number, (storage, aliases) in kept.items()
        # Plus one: the Python object of the storage is a holder too.
        if number not in had and storages.storage_holders(number) <= len(aliases) + 1
    )


def write(events: list[Event], path: str) -> None:
    """Write recorded events to a file."""
    torch.save(events, path)


def read(path: str) -> list[Event]:
    """Return the events of a file; none without a path.

    The file must be one that noclobber itself has written: loading it can run code.
    """
    events: list[Event] = torch.load(path, weights_only=False) if path else []
    return events
