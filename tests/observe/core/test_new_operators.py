"""Operators that the program defines while it is watched, or between two blocks: each alone is looked at, and its
writes are seen, however it came to be."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import noclobber
from noclobber.observe.torch_api.dispatch import registry, spare_key
from tests.observe.hearing import bare, hear, is_marked

NUMBERS = itertools.count()
KEPT: list[object] = []
"""The libraries whose operators are in use."""
DEFINED = "(Tensor(a!) x, float by) -> ()"
PURE = "(Tensor x, float by) -> Tensor"


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"noclobber_new_{next(NUMBERS)}"


def scale(x: Tensor, by: float) -> None:
    x.mul_(by)  # inside of an operator that has a kernel, this write is not logged itself


def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


def defined(namespace: str, name: str = "scale", schema: str = DEFINED, body: Callable[..., object] = scale) -> object:
    """Define an operator, and return the library: it goes with its last reference."""
    library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(name + schema)  # type: ignore[no-untyped-call]
    library.impl(name, body, "CPU")  # type: ignore[no-untyped-call]
    return library


def by_library(namespace: str) -> Callable[..., object]:
    KEPT.append(defined(namespace))
    return getattr(torch.ops, namespace).scale


def by_custom_op(namespace: str) -> Callable[..., object]:
    return torch.library.custom_op(f"{namespace}::scale", scale, mutates_args={"x"})


def by_an_extension(namespace: str) -> Callable[..., object]:
    """As an extension does while it is imported: without a function that could be replaced."""
    KEPT.append(library := torch._C._dispatch_library("FRAGMENT", namespace, "", "", 0))
    library.define("scale" + DEFINED, "", ())
    library.impl("scale", "CPU", scale, False)
    return getattr(torch.ops, namespace).scale


def by_a_later_overload(namespace: str) -> Callable[..., object]:
    first = defined(namespace, "scale", PURE, scaled)
    operator = getattr(torch.ops, namespace).scale
    operator(torch.ones(3), 1.0)
    second = defined(
        namespace, "scale.all", "(Tensor(a!) x, float by, *, bool all) -> ()", lambda x, by, all: scale(x, by)
    )
    KEPT.extend((first, second))
    return functools.partial(operator, all=True)


def in_a_thread(namespace: str) -> Callable[..., object]:
    made: list[Callable[..., object]] = []
    thread = threading.Thread(target=lambda: made.append(by_library(namespace)))
    thread.start()
    thread.join()
    return made[0]


def with_another_schema(namespace: str) -> Callable[..., object]:
    library = defined(namespace, schema=PURE, body=scaled)
    getattr(torch.ops, namespace).scale(torch.ones(3), 1.0)
    library._destroy()  # type: ignore[attr-defined]
    return by_library(namespace)


@pytest.fixture(autouse=True)
def without_what_was_kept() -> Iterator[None]:
    yield
    KEPT.clear()


def written_by(operator: Callable[..., object]) -> Tensor:
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    y = (x * w).sum()
    operator(w, 3.0)  # written
    y.backward()
    assert x.grad is not None
    return x.grad


WAYS = [by_library, by_custom_op, by_an_extension, by_a_later_overload, in_a_thread, with_another_schema]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_write_of_an_operator_that_is_defined_while_watching_is_seen(
    way: Callable[[str], Callable[..., object]], namespace: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heard, operators = hear(lambda: [operator := way(namespace), _raises(operator)])
    assert operators
    (clobber,) = heard.clobbers
    assert [write.op for write in clobber.writes] == [f"{namespace}::scale"]
    assert is_marked(clobber.writes[0].site, "written")


def _raises(operator: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        written_by(operator)


def test_a_name_that_is_defined_again_between_two_blocks(namespace: str) -> None:
    library = defined(namespace, schema=PURE, body=scaled)
    heard, _ = hear(lambda: written_by(getattr(torch.ops, namespace).scale))
    assert not heard.clobbers
    library._destroy()  # type: ignore[attr-defined]
    again = by_library(namespace)
    heard, _ = hear(lambda: _raises(again))
    assert [write.op for clobber in heard.clobbers for write in clobber.writes] == [f"{namespace}::scale"]


def test_a_name_that_wrote_and_does_not_any_more_is_quiet(namespace: str) -> None:
    def program() -> Tensor:
        library = defined(namespace)
        getattr(torch.ops, namespace).scale(torch.ones(3), 1.0)
        library._destroy()  # type: ignore[attr-defined]
        KEPT.append(defined(namespace, schema=PURE, body=scaled))
        return written_by(getattr(torch.ops, namespace).scale)

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(lambda: written_by(scaled)))
    assert not heard.clobbers
    assert not heard.events


def test_a_new_operator_alone_is_looked_at(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: set[str] = set()
    native = registry.schema

    def schema(name: str) -> torch.FunctionSchema | None:
        looked_at.add(name)
        return native(name)

    with noclobber.watch():
        monkeypatch.setattr(registry, "schema", schema)
        monkeypatch.setattr(registry, "operator_names", lambda: pytest.fail("all operators were asked for"))
        by_library(namespace)
        assert looked_at == {f"{namespace}::scale"}


def test_what_looking_rests_on(namespace: str) -> None:
    """PyTorch has no schema of an operator that is gone, a kernel outlives it, and another schema is unequal."""
    library, name = defined(namespace, schema=PURE, body=scaled), f"{namespace}::scale"
    kernels, before = registry.library(namespace), registry.schema(name)
    kernels.impl("scale", scaled, spare_key.LOWER_KEY_NAME)
    assert before is not None
    assert before == registry.schema(name)
    library._destroy()  # type: ignore[attr-defined]
    assert registry.schema(name) is None
    KEPT.append(defined(namespace))
    assert before != registry.schema(name)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, spare_key.LOWER_KEY_NAME)
