"""Finds gradients that the program asks for with respect to a tensor that was overwritten after the program got it.

Such a gradient is that of the new value, not of the value that the tensor had before. Forward hooks keep such tensors:
what they hold when the write happens is what the next module overwrites, and what they get later is the new value.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch.nn.modules import module as modules

from noclobber.model.seen.operators import ACTIVATIONS, nodes_of
from noclobber.model.seen.silent import Overwritten
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import IN_GRAPH, Context, Look
from noclobber.observe.core.seen.reads import tensors_held
from noclobber.observe.core.seen.records import Backward, Record, record
from noclobber.observe.core.seen.sites import Place, place_of
from noclobber.observe.core.seen.written import SHIFTS, Written
from noclobber.observe.describe import clobbers
from noclobber.observe.describe.clobbers import read_of, write_of
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.frames import outward
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import share_bytes

_ACTIVATIONS = frozenset(f"aten::{name}_" for name in ACTIVATIONS)
_NODES = ("Mul", *(node for name in ACTIVATIONS for node in nodes_of(name)))
"""How the names of the nodes begin that these operators make. `dropout_` is a product."""
_MOST = 256
"""How many tensors are remembered that hooks held when they were overwritten."""
_MOST_STACKS = 4096


class _Held(NamedTuple):
    """A tensor that forward hooks held when it was overwritten for the first time, and how often they held it."""

    tensor: tensor_state.Weak[torch.Tensor]
    times: int
    write: Record


def arm(context: Context, way: Way) -> None:
    """Check what each backward call is asked gradients for, by its inputs or by `retain_grad()`, until the recorder
    disarms."""
    asked = context.state(AskedInputs)
    asked.arm(way)

    def begin(backward: Backward, inputs: Sequence[Any]) -> End | None:
        found = []
        for tensor in dict.fromkeys(inputs):
            if (noted := asked.write_to(tensor, inputs)) is not None:
                about = clobbers.tensor_of(tensor)
                found.append(Overwritten(about, write_of(noted, about), read_of(backward)))
        return context.bus.at_end(found)

    context.calls.special.watch(way, lambda backward: begin(backward, backward.inputs))
    context.calls.watch(way, lambda backward: begin(backward, asked.overwritten_in(backward)), among=asked.retained)


_hooked: dict[int, ref[torch.nn.Module]] = {}
"""The modules that the program has registered forward hooks on, by `id`."""
_known = 0
"""How many hooks of any kind the program had registered when noclobber last knew all these modules."""


class AskedInputs:
    """What is known of the tensors that the program may ask gradients for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: deque[_Held] = deque(maxlen=_MOST)
        self._looking: Look = self._look
        self._looks = self._misses = False
        """`_misses` is True if the program has hooks from before noclobber watched."""
        self._until = 0
        """The number of the newest node that an in-place operator made while the program had forward hooks."""
        self.retained: deque[tuple[tensor_state.Weak[torch.Tensor], int]] = deque(maxlen=_MOST)
        """The tensors of which the program has called `retain_grad()`, each with the number of its node by then."""
        self._unheld: dict[int, int] = {}
        """How many references a written tensor had that no hook held, by the calls that led to the write. With as many
        the same calls write a tensor that no hook holds, and hooks need not be searched again."""

    def arm(self, way: Way) -> None:
        """Look at writes while the program has forward hooks."""
        self._looking, self._looks, self._misses = way.entry(self._look), False, hook_stack.program_hooks() != _known
        for name in ("register_forward_hook", "register_forward_pre_hook"):
            way.after(torch.nn.Module, name, self._registered)
        for name in ("register_module_forward_hook", "register_module_forward_pre_hook"):
            way.after(modules, name, self._registered)
        way.after(torch.Tensor, "retain_grad", self._retains)
        way.at_end(self._rest)
        self._look_at_writes(self._misses or bool(_hooked or _of_all_modules()))

    def _rest(self) -> None:
        global _known
        _known = _known if self._misses else hook_stack.program_hooks()

    def _look_at_writes(self, looks: bool) -> None:
        if looks != self._looks:
            self._looks = looks
            change = self._context.attend if looks else self._context.ignore
            change(self._looking, [IN_GRAPH])

    def _registered(self, _: object, module: object = None, *__: object, **___: object) -> None:
        if isinstance(module, torch.nn.Module):
            _hooked[id(module)] = ref(module)
        self._look_at_writes(True)

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        """Note a write to a tensor of the graph that forward hooks hold."""
        if not torch.is_grad_enabled() or written.op in SHIFTS:
            return
        stack, references = _stack(frame), sys.getrefcount(tensor)
        known = references <= self._unheld.get(stack, 0)
        hooks = [] if known else self._forward_hooks()
        if not known and not hooks:
            self._look_at_writes(False)
            return
        self._until = engine_state.next_node()
        if known:
            return
        in_graph = [one for one in tensors_held(hooks) if one.requires_grad]
        holding = [one for one in in_graph if share_bytes(one, tensor)]
        if not holding and len(self._unheld) < _MOST_STACKS:
            self._unheld[stack] = references
        for one in dict.fromkeys(holding):
            if all(held.tensor() is not one for held in self._held):
                noted = record(written, tensor, key, place_of(frame), self._context.thread)
                self._held.append(_Held(tensor_state.Weak(one), sum(each is one for each in holding), noted))

    def _retains(self, _: object, tensor: torch.Tensor) -> None:
        if (made := graph.made_or_base_of(tensor)) is not None:
            self.retained.append((tensor_state.Weak(tensor), made._sequence_nr()))

    def overwritten_in(self, backward: Backward) -> list[torch.Tensor]:
        """Return the tensors that another node has made since `retain_grad()`, which a backward call goes through.
        PyTorch then keeps the gradient of the new value (torch 2.13; tests/observe/detectors/test_hook_kept.py)."""
        found = list[tuple[torch.Tensor, object]]()
        for entry in list(self.retained):
            tensor, number = entry[0](), entry[1]
            if tensor is None:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self.retained.remove(entry)
            elif (made := graph.made_or_base_of(tensor)) is not None and made._sequence_nr() != number:
                found.append((tensor, made))
        nodes = set(graph.walk(graph.roots_of(backward.outputs))) if found else set()
        return [tensor for tensor, made in found if made in nodes]

    def write_to(self, tensor: object, inputs: Sequence[object]) -> Record | None:
        """Return the write after which a gradient with respect to a tensor is not what the program asks for.

        None if there is none. `inputs` are all the tensors that the program asks gradients for.
        """
        made = graph.maker_of(tensor) if isinstance(tensor, torch.Tensor) and tensor.requires_grad else None
        if not isinstance(tensor, torch.Tensor) or made is None:
            return None
        held = next((one for one in self._held if one.tensor() is tensor), None)
        if held is not None:
            # Hooks that hold it more often now have got the new value too: the program may mean that one.
            times = sum(one is tensor for one in tensors_held(self._forward_hooks()))
            return held.write if times <= held.times or sum(one is tensor for one in inputs) > 1 else None
        number, key = made._sequence_nr(), storages.storage_key(tensor)
        if number <= self._until:
            return None  # a forward hook may have got it after the write
        if not made.name().startswith(_NODES):
            return None  # the history is long: a meta-learner asks for hundreds of gradients after each step
        for noted in reversed(self._context.memory.recent):
            if noted.node == number and noted.key == key:
                return noted if noted.written.op in _ACTIVATIONS and not _binds_result(noted.place) else None
        return None

    def _forward_hooks(self) -> list[object]:
        """Return the program's forward hooks, and the modules that have some: hooks put attributes on these."""
        if self._misses:
            self._misses = False
            _search()
        found = [hook for hook in _of_all_modules() if _is_the_programs(hook)]
        for number, reference in list(_hooked.items()):
            module = reference()
            hooks = () if module is None else (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if not hooks:
                _hooked.pop(number, None)
            elif theirs := [hook for hook in hooks if _is_the_programs(hook)]:
                found += [module, *theirs]
        return found


def _of_all_modules() -> list[object]:
    return [*modules._global_forward_hooks.values(), *modules._global_forward_pre_hooks.values()]


def _stack(frame: FrameType | None) -> int:
    """Return what tells the calls that led to a frame from others."""
    return hash(tuple((id(one.f_code), one.f_lasti) for one in outward(frame)))


def _is_the_programs(hook: object) -> bool:
    return not str(getattr(hook, "__module__", "")).startswith("torch.")


def _search() -> None:
    """Find the modules on which the program registered forward hooks while nobody watched."""
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.Module):
            own = vars(one)
            if own.get("_forward_hooks") or own.get("_forward_pre_hooks"):
                _hooked[id(one)] = ref(one)


def _binds_result(place: Place | None) -> bool:
    """Return True if the user's call that wrote binds or returns its result: then the program means the new value.

    Also True where the place of the write is not known.
    """
    if place is None:
        return True
    code, called, _ = place
    names = [one.opname for one in dis.get_instructions(code) if one.offset > called]
    for name in [name for name in names if name not in ("CACHE", "NOP", "EXTENDED_ARG")][:3]:
        if name.startswith(("STORE_", "RETURN_")):
            return True
        if not name.startswith("LOAD_"):
            return False
    return False
