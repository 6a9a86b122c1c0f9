"""Every operator of a fake run comes through here: it runs on shapes, and values and memory are followed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from noclobber.model.fake import Gpu
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.sites import caller, site_of
from noclobber.observe.core.writes.operator_mode import move_versions
from noclobber.observe.fake.gpu.cudnn import Cudnn
from noclobber.observe.fake.gpu.devices import Devices, in_words, is_played
from noclobber.observe.fake.gpu.operators import Cublas, grouped, norms
from noclobber.observe.fake.gpu.overlaps import refuse_overlaps
from noclobber.observe.fake.memory import Memory
from noclobber.observe.fake.outside import away
from noclobber.observe.fake.values import Answers, Asked, follow, know, known, written
from noclobber.observe.torch_api.dispatch import registry
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.torch_api.tensors.fake_tensors import (
    DEVICE,
    TAKING_FUNCTIONS,
    WITHOUT_RULE,
    WITHOUT_VALUES,
    Converter,
    FakeTensor,
    FakeTensorMode,
    on_zeros,
)

aten = torch.ops.aten
_NUMBERS = 65536
"""Numbers of which a fake tensor is made, in a program."""
_ZEROS = 2**26
"""Bytes of zeros on which an operator without a rule for shapes may run."""
_BUILT_IN = ("aten", "prims")
_PRODUCTS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten._sparse_addmm.default: 1}
"""Products of two matrices, with the argument that is the first of them."""


class Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """PyTorch's mode, which asks nobody for values.

    `is_program`: the program began inside, so that a real tensor is data of its own. Operators on data alone run as
    they are.
    """

    def __init__(self, gpu: Gpu, devices: Devices, memory: Memory, asked: Asked, way: Way, *, is_program: bool) -> None:
        super().__init__(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self.fake_tensor_converter = Converter(copy_data=False, export=False)
        self.devices = devices
        self.stopped: list[str] = []
        """The operators that could not run without values, in words, with the line."""
        self._met: dict[int, tuple[tensor_state.Weak[torch.Tensor], int | None]] = {}
        """The real tensors that were computed with, and their versions: parameters that were there before."""
        self._memory, self._way = memory, way
        # PyTorch notes on the mode that a thread works on shapes, and fails if two do (torch 2.13).
        self._one_at_a_time = threading.RLock()
        self._is_program = is_program
        self.cudnn, self._cublas = Cudnn(self._fresh), Cublas(gpu, self._fresh)
        self._answers = {
            **Answers(asked, self._fresh).of,
            **self.cudnn.of,
            **norms(self._on_shapes, self._fresh),
            **grouped(self._on_shapes, self._fresh),
            aten.new_empty.default: self._new_empty,
        }

    def patch(self, patches: Patches) -> None:
        """Let only one thread at a time work on shapes, also one that has not this mode."""
        native = vars(FakeTensor)["__torch_dispatch__"].__func__

        def __torch_dispatch__(
            kind: type, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            with self._one_at_a_time:
                return native(kind, func, types, args, kwargs or {})

        patches.put(FakeTensor, "__torch_dispatch__", classmethod(__torch_dispatch__))

    supports_higher_order_operators = True
    """PyTorch knows the rules of these operators only for its own mode, and else asks this one to run them."""

    @property
    def avoid_device_init(self) -> bool:
        """True, as no device is there: `torch.tensor` makes its numbers on the CPU."""
        return True

    def __deepcopy__(self, memo: dict[int, object]) -> Mode:
        """Return itself: the copy of a tensor belongs to the same run."""
        return self

    def __reduce__(self) -> str:
        """Refuse to be sent to another process, or pickled, with a tensor."""
        raise TypeError(
            "noclobber: a tensor of a run without values (`--fake`) cannot be pickled, or sent to another process: let "
            "the program do this work in one process, or run it without `--fake`, at a small size"
        )

    def _fresh(self, make: Callable[[], Any]) -> Any:
        with self:
            return make()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with self._one_at_a_time:
            return self._run(func, types, args, dict(kwargs or {}))

    def _run(self, func: Any, types: Sequence[type], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run an operator on shapes. What it returns is known where all that it read is."""
        devices = self.devices
        if (device := options.get("device")) is not None:
            options["device"] = devices.lies_on(device)
        if not registry.is_operator(func):
            result = self._of_functions(func, types, args, options)
            for one in pytree.tree_leaves(result):
                self._memory.made(one)
            return result
        if self._is_program and not devices.inside and self._is_data(func, args, options):
            return func(*args, **options)
        if (answer := self._answers.get(func)) is not None:
            result = answer(*args, **options)
        elif func in self.lift_fns and not isinstance(args[0], FakeTensor):
            result = self._lifted(args[0])
        else:
            writes = written(func, args, options) if not devices.inside and func._schema.is_mutable else []
            refuse_overlaps(func, writes, args, options)
            # PyTorch leaves the versions of lists under a mode (torch 2.13; tests/observe/fake/test_devices.py).
            is_of_lists = func._schema.name.startswith("aten::_foreach_")
            versions = [(one, tensor_state.version_of(one)) for one in writes if is_of_lists]
            result = self._on_shapes(func, types, args, options)
            if result is NotImplemented:
                return result
            move_versions(versions)
        if not devices.inside:
            self._way.guarded(self._follow, func, args, options, result)
        return result

    def _of_functions(self, func: Any, types: Sequence[type], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run an operator that takes functions, such as `cond`: some have a rule of their own for PyTorch's mode."""
        if func not in TAKING_FUNCTIONS and (rule := func.python_key_table.get(FakeTensorMode)) is not None:
            return rule(self, *args, **options)
        return self._on_shapes(func, types, args, options)

    def _follow(self, func: Any, args: Sequence[Any], options: dict[str, Any], result: Any) -> None:
        follow(func, args, options, result)
        for one in (*pytree.tree_leaves(result), *written(func, args, options)):
            self._memory.made(one)
        self._cublas.multiplied(func, result)

    def put_back(self) -> None:
        """Take away the gradients that parameters from before the run have got in it, and the versions of writes that
        changed nothing."""
        for reference, version in self._met.values():
            if (met := reference()) is None:
                continue
            if met.requires_grad and met.is_leaf and isinstance(met.grad, FakeTensor):
                met.grad = None
            if version is not None and met._version != version:
                tensor_state.set_version(met, version)

    def _lifted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor for a tensor that was made of numbers in Python or numpy. Many numbers are a data set,
        and stay as they are."""
        if self._is_program and tensor.numel() > _NUMBERS:
            return tensor
        made = self.fake_tensor_converter.from_real_tensor(self, tensor)
        return made if known(tensor) is None else know(made, tensor.clone())

    def _is_data(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> bool:
        """Return True for an operator on real tensors that hold data, and not on parameters."""
        tensors = list(tensor_state.tensors_in(args, options))
        if not tensors or func in self.lift_fns:
            return False
        if any(isinstance(one, FakeTensor) or one.requires_grad or one.is_meta for one in tensors):
            return False
        device = options.get("device")
        return not (isinstance(device, torch.device) and (is_played(device) or device.type != "cpu"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch wraps each operator in two more functions."""
        return False

    def _on_shapes(self, func: Any, types: Sequence[type], args: Sequence[Any], options: dict[str, Any]) -> Any:
        if any(type(one) in storages.PLAIN for one in pytree.arg_tree_leaves(*args, **options)):
            args, options = pytree.tree_map_only(torch.Tensor, self._fake, (tuple(args), options))
        self.devices.inside += 1
        try:
            try:
                return super().__torch_dispatch__(func, types, args, options)
            except WITHOUT_RULE as error:
                return self._without_rule(func, args, options, error)
        except WITHOUT_VALUES as error:
            self._explain(func, error)
            raise
        except RuntimeError as error:
            if isinstance(error, NotImplementedError) or getattr(func, "namespace", "aten") not in _BUILT_IN:
                self._explain(func, error)
            if error.args and isinstance(error.args[0], str):
                error.args = (in_words(self.devices, error.args[0]), *error.args[1:])
            raise
        finally:
            self.devices.inside -= 1

    def _new_empty(self, tensor: torch.Tensor, size: Sequence[int], **options: Any) -> Any:
        """Return a new tensor like another. FSDP2 asks for many: one for each parameter and rank, of which PyTorch's
        mode thinks as long as of any operator."""
        if (
            not isinstance(tensor, FakeTensor)
            or tensor.layout is not torch.strided
            or options.get("layout") is not None
        ):
            return self._on_shapes(aten.new_empty.default, (), (tensor, size), options)
        device, dtype = options.get("device") or tensor.fake_device, options.get("dtype") or tensor.dtype
        with away():
            made = torch.empty(size, dtype=dtype, device="meta")
        return self.fake_tensor_converter.from_meta_and_device(self, made, device)

    def _without_rule(self, func: Any, args: Sequence[Any], options: dict[str, Any], error: RuntimeError) -> Any:
        """Run the kernel of an operator without a rule for shapes on zeros, if they are few: PyTorch itself makes as
        many as the tensors have elements, and leaves what they give on the CPU (torch 2.13)."""
        flat, spec = pytree.tree_flatten((args, options))
        given = [one for one in flat if isinstance(one, FakeTensor)]
        if func in _PRODUCTS and (factors := args[_PRODUCTS[func] :][:2])[1].layout is torch.strided:
            return self._product(*factors)
        zeros = sum(one.numel() * one.itemsize for one in given if one.layout is torch.strided)
        if func.namespace not in _BUILT_IN or zeros > _ZEROS:
            raise error
        made = on_zeros(self, func, flat, spec, error)
        device = options.get("device") or next((one.fake_device for one in given if one.dim()), None)
        for one in pytree.tree_leaves(made):
            if device is not None and isinstance(one, FakeTensor) and not any(one is other for other in given):
                one.fake_device = device
        return made

    def _product(self, sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return the product of a sparse matrix and a dense one, for which there is no rule."""
        shape, device = (*sparse.shape[:-1], dense.shape[-1]), DEVICE.fget(dense)
        product: torch.Tensor = self._fresh(lambda: torch.empty(shape, dtype=dense.dtype, device=device))
        return product

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor of a real one. PyTorch would run some operators on real tensors as they are: those
        that take a number too, such as `mul_` (torch 2.13; tests/observe/fake/test_run.py)."""
        if isinstance(tensor, FakeTensor) or type(tensor) not in storages.PLAIN:
            return tensor
        key = tensor_state.identity(tensor)
        if key not in self._met or self._met[key][0]() is None:  # autograd counts a write after it, so this is before
            self._met[key] = (tensor_state.Weak(tensor), tensor_state.version_of(tensor))
        return self.fake_tensor_converter.from_real_tensor(self, tensor)

    def _explain(self, func: Any, error: BaseException) -> None:
        if self.devices.inside <= 1:
            self.explain(func._schema.name if registry.is_operator(func) else str(func), error)

    def explain(self, name: str, error: BaseException) -> None:
        """Say in a note what needs values, where, and what to do."""
        if getattr(error, "__notes__", None):
            return
        site = site_of(caller())
        span = site.span() if site is not None else None
        where = f" at {span.path}:{span.line}" if span is not None else ""
        is_own = "::" in name and name.partition("::")[0] not in _BUILT_IN
        what = (
            f"register how its result looks: `@torch.library.register_fake({name!r})`"
            if is_own
            else "run the program without `--fake`, at a small size; or leave this part out"
        )
        text = f"`{name}` cannot run without values{where}"
        self.stopped.append(text)
        error.add_note(f"noclobber: {text}; {what}")
