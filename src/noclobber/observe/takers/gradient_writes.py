"""Finds code that writes into a gradient during a backward while others still get, or already got, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.silent import GradientWrite
from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Backward, here, reading
from noclobber.observe.core.seen.sites import KINDS, USER, Place, caller, place_of, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.core.writes.operator_mode import OperatorMode
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import outward
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, fingerprint, same, same_but_for_zeros
from noclobber.observe.witness.layout import geometry, touch
from noclobber.observe.witness.witness import Change, Witness, change

Notice = Callable[[GradientWrite], None]


def is_of_the_engine(frame: FrameType) -> bool:
    """Return True if the engine itself calls an operator. In its own threads the only frame is noclobber's."""
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back  # the mode of a fake run is asked before the operator
    code = frame.f_code
    return code.co_name == ENGINE or owner_of(code.co_filename) is Owner.NOCLOBBER


ENGINE = "_engine_run_backward"


class Spoil:
    """A gradient that a node was given and whose code writes it: its bytes as they were handed over. Keeps no memory
    alive."""

    def __init__(self, tensor: torch.Tensor, node: Node, event: GradientWrite, described: Callable[[], Tensor]) -> None:
        self.node, self.event, self._described = node, event, described
        self.handed = Witness(storages.storage_key(tensor) or 0, tensor, fingerprint(tensor), geometry(tensor))
        self.ran = False
        """True once the node has run past the hooks of its tensors."""
        self.told = False
        self.changed: bool | None = None
        """True if the write changed the bytes. None until the code that wrote has returned."""
        self.heirs = {following for following, _ in node.next_functions}
        """The nodes that get the changed bytes rightly: the code that wrote passed the bytes on to them."""
        self.is_passed_on = True
        """False if nobody gets them rightly."""
        self._kept: Digest = None

    def is_on(self, tensor: object) -> bool:
        """Return True if a tensor overlaps the bytes that were written."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        if storages.storage(tensor)._cdata != self.handed.storage.cdata:
            return False
        return touch(geometry(tensor), self.handed.where)

    def is_on_any(self, tensors: Iterable[object] | None) -> bool:
        return any(self.is_on(tensor) for tensor in tensors or ())

    def settle(self) -> bool:
        """Return True if the write changed the bytes and somebody still holds them. Looked up once, then remembered.

        Where there are no bytes to compare, as in a fake run, each write counts.
        """
        if self.changed is None:
            before, now = self.handed.digest, self.handed.digest_now()
            self.changed = now is not None and change(before, now, waits=True) is Change.BYTES
            self.changed |= before is None and self.handed.now() is not None
        return self.changed

    def keep(self) -> bool:
        """Remember the bytes as this backward leaves them. Returns False if they did not change, or nobody holds them
        any more."""
        self._kept, self.told = self.handed.digest_now(), False
        return bool(self.changed) and self._kept is not None

    def is_as_kept(self) -> bool:
        """Return True if the bytes are as `keep` found them: the program has not filled them again."""
        return same(self.handed.digest_now(), self._kept)

    def tell(self, reader: Node | None, notice: Notice) -> None:
        """Report the write once; never if zeros alone have changed, to 0.0 or -0.0. `reader` is the node that gets the
        changed bytes; None if none does."""
        if self.told:
            return
        self.told, shown = True, self.handed.now()
        if shown is None or not same_but_for_zeros(shown, self.handed.digest):
            write = replace(self.event.write, tensor=self._described())
            name = reader.name() if reader is not None else ""
            notice(replace(self.event, write=write, read=replace(self.event.read, node=name)))


class Deliveries:
    """Where the gradients of one backward call go. After the first write to one, every node that runs is checked."""

    def __init__(self, call: Backward, way: Way, notice: Notice, hooked: Iterable[Node]) -> None:
        """`hooked`: the Functions that the program, or a module's hook, has hooked. What such a hook passes on is known
        when it has run: a hook that is registered while it runs comes too late."""
        self._notice = notice
        self.given = call.gradients
        self.spoils: list[Spoil] = []
        self._by_storage: dict[int, list[Spoil]] = {}
        self._outputs, self._inputs, self._way = call.outputs, call.inputs, way
        self._hooks: list[RemovableHandle] = []
        self._nodes: list[Node] = []
        self._open: list[Spoil] = []
        """Those of nodes that have not run to their end."""
        self._has_changed = False
        self._passed_on: list[tuple[Spoil, Node]] = []
        """The heirs of the node that ran last. What it passes on has come to them before the next node runs."""
        self._modes: list[OperatorMode] = []
        made = way.entry(self._returned_here)
        self._hooks += [hook_stack.hook(node.register_hook, partial(made, node)) for node in list(hooked)]

    def expect(self, spoil: Spoil) -> None:
        """Record a gradient that is about to be written, and hook the nodes of the graph at the first one.

        The node of a Function calls `returned` and needs no hook. It has one only if the program itself has hooked it:
        where there is a hook, no Function may add to the gradients that other nodes have passed on so far
        (`ctx.input_grad_buffers`, torch 2.14; tests/observe/detectors/test_gradient_buffers.py).
        """
        if any(
            known.node is spoil.node and known.handed.storage.cdata == spoil.handed.storage.cdata
            for known in self._open
        ):
            return
        self._open.append(spoil)
        self.spoils.append(spoil)
        self._by_storage.setdefault(spoil.handed.storage.cdata, []).append(spoil)
        if not self._nodes:
            self._nodes = list(graph.walk(graph.roots_of(self._outputs)))
            gets, made = self._way.entry(self._gets), self._way.entry(self.returned)
            for node in self._nodes:
                self._hooks.append(hook_stack.hook(node.register_prehook, partial(gets, node)))
                if node.next_functions and not isinstance(node, BackwardCFunction):
                    self._hooks.append(hook_stack.hook(node.register_hook, partial(made, node)))

    def _changed(self, tensor: object) -> Iterator[Spoil]:
        """Yield the overwritten gradients that a tensor lies on."""
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            for spoil in self._by_storage.get(storages.storage(tensor)._cdata, ()):
                if spoil.settle() and spoil.is_on(tensor):
                    yield spoil

    def _gets(self, node: Node, gradients: tuple[object, ...]) -> None:
        """A node is about to run, and gets these gradients."""
        self._arrive()
        for spoil in list(self._open):
            if node is spoil.node:
                spoil.ran = True
            else:
                self._close(spoil)
        for spoil in {spoil for gradient in gradients for spoil in self._changed(gradient)}:
            if node is not spoil.node and node not in spoil.heirs:
                spoil.tell(node, self._notice)

    def returned(self, node: Node, made: Any, _: object = None) -> None:
        """A node has run and returned `made`: a node that it passes the written bytes on to gets them rightly."""
        self._arrive()
        for spoil in list(self._open):
            if node is spoil.node:
                spoil.heirs, spoil.ran = set(), True
            self._close(spoil)
        if not self._has_changed:
            return
        following = [after for after, _ in node.next_functions]
        made = made if isinstance(made, (tuple, list)) else (made,)
        handed = list(zip(following, made, strict=True)) if len(made) == len(following) else []
        for after, each in handed or [(after, each) for after in following for each in made]:
            passed = (spoil for spoil in self._changed(each) if spoil.is_passed_on)
            self._passed_on += [(spoil, after) for spoil in passed if after is not None]
        to = [(after, tensor_state.identity(each)) for after, each in handed if isinstance(each, torch.Tensor)]
        # Nobody takes it off: the engine has each node begin with the modes of the call (torch 2.10 to 2.15;
        # tests/observe/detectors/test_gradient_writes.py). It is held here too: a mode that only the stack holds is
        # freed where it is taken off for a while (torch 2.10).
        self._modes.append(OperatorMode(self._way, partial(self._added, following, to, [])))
        modes.push_mode(self._modes[-1])

    def _returned_here(self, node: Node, made: Any, given: object) -> None:
        """The same for a hooked Function, which may be of a graph that another thread runs through."""
        if self in _under_way():
            self.returned(node, made, given)

    def _close(self, spoil: Spoil) -> None:
        """Compare the bytes: the code that wrote has returned."""
        self._open.remove(spoil)
        self._has_changed |= spoil.settle()

    def _arrive(self) -> None:
        """Make heirs of those that the last node passed the written bytes on to."""
        for spoil, after in self._passed_on:
            spoil.heirs.add(after)
        self._passed_on.clear()

    def _added(
        self,
        following: list[Node | None],
        handed: list[tuple[Node | None, int]],
        sums: list[tuple[int, bool]],
        func: Any,
        args: tuple[Any, ...],
        _: object,
        frame: FrameType,
    ) -> None:
        """An operator was called after a node had run: the engine may add up what the `following` nodes get.

        The sum has two parts: what the node was given before, and what it is given now, which tells the node. `sums`
        are the second parts of the sums so far, and whether the first part may be of the node that has run, too.
        """
        if func._schema.name not in ("aten::add", "aten::add_") or not is_of_the_engine(frame):
            return
        first, part = map(tensor_state.identity, args[:2])
        at = max((index for index, (_, each) in enumerate(handed) if each == part), default=len(handed))
        getting = [after for after, each in handed if each == part] or following
        both = ((after, first) in handed[:at] and handed.count((after, first)) > (first == part) for after in getting)
        sums.append((part, any(both)))
        alike = [is_own for second, is_own in sums if second == part]
        parts = [each for after, each in handed if after is getting[0]] or [part] * len(getting)
        made = sum(second in parts for second, _ in sums)
        if alike[0] and made == len(parts) and len({*getting}) == 1:
            # As many sums as the node gives parts: what the first one was added to was there before.
            for spoil in self._changed(args[1]):
                if getting[0] not in spoil.heirs:
                    spoil.tell(getting[0], self._notice)
        if alike[-1]:
            return  # the node that has run gives both parts
        for spoil in self._changed(args[0]):
            heir = next((after for after in getting if after in spoil.heirs), None)
            if heir is None:
                spoil.tell(getting[0], self._notice)
            spoil.heirs.discard(heir)

    def stop(self) -> None:
        """Take the hooks off: the backward has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._modes.clear()

    def finish(self, result: Any) -> None:
        """Check what the backward leaves: the gradients that it returns, and those of leaves. `result` is what the
        engine returned."""
        self._arrive()
        results = [(_node_of(one, self._nodes), each) for one, each in zip(self._inputs, result or (), strict=False)]
        leaves = [(node, node.variable.grad) for node in self._nodes if hasattr(node, "variable")]
        for node, gradient in (*results, *leaves):
            for spoil in self._changed(gradient):
                # The engine puts aside what `grad` returns before any hook if the node runs, else after the node's
                # hooks.
                own = node is spoil.node and not (spoil.ran and (node, gradient) in results)
                if not own and node not in spoil.heirs:
                    spoil.tell(node, self._notice)


def _node_of(tensor: torch.Tensor | GradientEdge, nodes: Iterable[Node]) -> Node | None:
    """Return the node of a tensor or edge that the program wants a gradient for; `nodes` are those of the graph.

    PyTorch gives no edge of a leaf whose memory was made in inference mode. A graph leads to such a leaf only if it got
    that memory later. None otherwise (torch 2.10 to 2.15; tests/observe/core/test_inference.py).
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor.node
    if tensor.is_leaf and tensor.is_inference():
        return next((node for node in nodes if getattr(node, "variable", None) is tensor), None)
    return torch.autograd.graph.get_gradient_edge(tensor).node


_HOOKS = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
    (torch.nn.Module, "register_backward_hook"),
    (torch.nn.parallel.DistributedDataParallel, "register_comm_hook"),
)
"""What registers a hook to run during a backward."""


def arm(context: Context, way: Way) -> None:
    """See the hooks that the program registers. Where saves are watched, check each write of Python code in a backward
    too."""
    gradients = Gradients(context, way)
    for owner, name in _HOOKS:
        way.before(owner, name, gradients.registered)
    if context.watching:
        context.calls.watch(way, gradients.given_again, among=gradients.given)
        context.calls.with_python.watch(way, gradients.begin)
        context.customs.watch(way, gradients.function_begins)
        way.before(torch.autograd.function.BackwardCFunction, "register_hook", gradients.function_hooked)


class Gradients:
    """The writes into gradients of all backward calls. Each call has its own `Deliveries`."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._looking = way.entry(self._look)
        self._places: dict[CodeType, Place | None] = {}
        self._hooked: WeakSet[Node] = WeakSet()
        """The nodes of Functions on which the program registered hooks that run after them."""
        self.given: list[Spoil] = []
        """Overwritten gradients that the program itself had passed to the backward."""

    def registered(self, _: object, *args: object, **kwargs: object) -> None:
        """Record where the program registers a hook that will run during a backward.

        The engine has given its threads the keys of a call that is under way. So nobody sees what such a hook writes in
        a call that began without hooks.
        """
        self._context.python_in_backward = True
        if (call := here()) is not None and call.quiet:
            self._context.bus.not_seen("hooks in the backward call that registered them")
        hook = kwargs.get("hook", args[0] if args else None)
        function = getattr(hook, "__func__", getattr(hook, "func", hook))
        called = vars(type(function)).get("__call__")
        code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            self._places[code] = caller()

    def function_hooked(self, node: Node, *_: object, **__: object) -> None:
        """Record that the program registers a hook on the node of a Function, which will run after the node."""
        self._hooked.add(node)

    def begin(self, call: Backward) -> End:
        """Check all writes until this backward has ended. Returns what to call then.

        Without hooks only Functions run Python code, and `function_begins` looks at the gradients that each is given.
        """
        context = self._context
        call.deliveries = run = Deliveries(call, self._way, context.bus.notice, self._hooked)
        attends = context.python_in_backward
        if attends:
            context.attend(self._looking)

        def ended(result: object, error: BaseException | None) -> None:
            if attends:
                context.ignore(self._looking)
            run.stop()
            if run.spoils and error is None:
                self._finish(run, result)

        return ended

    def function_begins(self, function: Node, args: tuple[object, ...]) -> Callable[[object], None]:
        """Return what to call when the backward of a custom Function has ended.

        A custom Function may return the gradient that it was given: others then get that gradient rightly.
        """
        if keys := _keys(args):
            self._context.attend(self._looking, keys)

        def ran(result: object) -> None:
            if keys:
                self._context.ignore(self._looking, keys)
            for run in _under_way() if result is not None and function not in self._hooked else ():
                if run.spoils:
                    run.returned(function, result)

        return ran

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        """Check one write: the quick tests, which most writes in a backward do not pass."""
        if not is_of_the_engine(frame) and (node := engine_state.current_node()) is not None and here() is not None:
            self._written(written, tensor, key, frame, node)

    def _written(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType, node: Any) -> None:
        """Record a write if it goes to a gradient that the engine gave to `node`."""
        frames = list(takewhile(lambda above: above.f_code.co_name != ENGINE, outward(frame)))
        arguments = ((call, argument) for call in _called(frames) for argument in _arguments(call))
        found = ((call, one) for call, one in arguments if storages.storage_key(one) == key)
        call, given = next(found, (frames[-1], None))
        if given is None and getattr(getattr(node, "_forward_cls", None), "boxed_grads_call", False):
            given = tensor  # the gradient came in a list, which the Function may have emptied by now
        if given is None:
            return
        runs_function = any(_runs_function(above.f_code) for above in frames)
        by: Literal["function", "hook"] = "function" if runs_function else "hook"
        user = next((above for above in reversed(frames) if KINDS.get(above.f_code.co_filename) == USER), frame)
        name = node._forward_cls.__name__ if by == "function" else user.f_code.co_name
        event = GradientWrite(
            Write(
                written.op,
                site_of(place_of(frame)),
                via="operator" if tensor_state.version_of(tensor) == tensor_state.version_of(given) else "data",
                version_before=tensor_state.version_of(tensor),
                in_forward=False,
            ),
            by,
            name,
            clobbers.read_of(reading()),
            site_of(next((self._places[above.f_code] for above in frames if above.f_code in self._places), None)),
        )
        spoil = Spoil(tensor, node, event, clobbers.later_of(tensor))
        if by == "hook" and (call is not frames[-1] or _is_given_twice(call, tensor)):
            spoil.heirs, spoil.is_passed_on = set(), False  # the node passes something else on, or one to several nodes
        for run in _under_way():
            run.expect(spoil)

    def _finish(self, run: Deliveries, result: object) -> None:
        """Report what a backward leaves. Keep the overwritten gradients that the program passed in: it may pass them
        again."""
        run.finish(result)
        self.given += [spoil for spoil in run.spoils if spoil.is_on_any(run.given) and spoil.keep()]

    def given_again(self, call: Backward) -> None:
        """Report each gradient that the program passes to a backward after an earlier backward overwrote it."""
        again = [spoil for spoil in self.given if spoil.is_on_any(call.gradients) and spoil.is_as_kept()]
        self.given[:] = [spoil for spoil in self.given if spoil not in again and not spoil.handed.storage.expired()]
        for spoil in again:
            spoil.tell(None, self._context.bus.notice)


def _under_way() -> list[Deliveries]:
    """Return the deliveries of the backward calls that this thread runs or works for, innermost first."""
    call, under_way = here(), []
    while call is not None and call.deliveries is not None:
        under_way.append(call.deliveries)
        call = call.outer
    return under_way


def _called(frames: list[FrameType]) -> list[FrameType]:
    """Return the frame that the engine called, and the frame of a module's hook that this one calls.

    For a module's hook PyTorch keeps the gradients of the module's outputs. Frames further in are left out: their
    arguments may be tensors that the code has made itself.
    """
    hooks = torch.utils.hooks.__file__
    inside = next((called for called in reversed(frames) if called.f_code.co_filename != hooks), None)
    return frames[-1:] if frames[-1].f_code.co_filename != hooks or inside is None else [frames[-1], inside]


def _runs_function(code: CodeType) -> bool:
    return code.co_name in ("apply", "apply_boxed") and code.co_filename == torch.autograd.function.__file__


def _arguments(frame: FrameType) -> Iterator[torch.Tensor]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    return tensor_state.tensors_in(*(frame.f_locals.get(name) for name in code.co_varnames[:count]))


def _is_given_twice(call: FrameType, written: torch.Tensor) -> bool:
    """Return True if a call got the written bytes as several gradients, as of the inputs of a sum. Those of `torch.cat`
    are parts of one memory, and each has bytes of its own."""
    key, where = storages.storage_key(written), geometry(written)
    given = (call.f_locals.get(name) for name in call.f_code.co_varnames[: call.f_code.co_argcount])
    parts = ([one for one in tensor_state.tensors_in(each) if storages.storage_key(one) == key] for each in given)
    return any(sum(touch(geometry(one), where) for one in each) > 1 for each in parts)


def _keys(args: tuple[object, ...]) -> list[int]:
    """Return the storages of the gradients that a Function is given and that anybody else holds too. A boxed Function
    gets them in a list."""
    shared = [
        one
        for one in tensor_state.tensors_in(args)
        if tensor_state.use_count(one) > 1 or not storages.is_only_holder(one)
    ]
    keys = {storages.storage_key(one) for one in shared}
    return [key for key in keys if key is not None]
