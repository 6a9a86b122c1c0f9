"""Backward calls that the native part begins or ends, or asks about, are those of bare PyTorch."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests import served


def started(
    words: list[str], environment: dict[str, str], folder: Path | str = "."
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS...`; in a fork where the process that forks has armed the same part before."""
    if environment["NOCLOBBER_PURE"] == os.environ["NOCLOBBER_PURE"]:
        return served.run(words, folder, env=environment)
    return subprocess.run([sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True)


def run(script: str, environment: dict[str, str]) -> None:
    done = started(["-c", dedent(script)], environment)
    assert done.returncode == 0, done.stderr


def test_a_leaf_is_the_output_itself(either: dict[str, str]) -> None:
    # Nothing but the output holds the node of a leaf.
    script = """
        import torch, noclobber
        with noclobber.preserve():
            for size in range(1, 200):
                leaf = torch.ones(size, requires_grad=True)
                leaf.backward(torch.full((size,), 2.0))
                leaf.backward(torch.full((size,), 3.0))
                assert leaf.grad.tolist() == [5.0] * size
                assert torch.autograd.grad(leaf, leaf, torch.ones(size))[0].tolist() == [1.0] * size
    """
    run(script, either)


def test_nothing_stays_alive(either: dict[str, str]) -> None:
    script = """
        import gc, weakref, torch, noclobber
        gc.disable()
        handle = noclobber.install()
        for _ in range(3):
            weight = torch.ones(3, requires_grad=True)
            loss, given = (weight * weight).sum(), torch.tensor(2.0)
            loss.backward(given, inputs=[weight])
            gone = [weakref.ref(one) for one in (weight, loss, given)]
            del weight, loss, given
            assert [one() for one in gone] == [None, None, None]
        handle.uninstall()
    """
    run(script, either)


@pytest.mark.parametrize(
    "within",
    [
        pytest.param("raise KeyError('of the program')", id="raises"),
        pytest.param("torch.enable_grad()(lambda: (weight * 2).sum().backward())()", id="runs another backward"),
        pytest.param("handle.uninstall(); handle = noclobber.install()", id="installs anew"),
    ],
)
def test_python_runs_in_a_call(within: str, either: dict[str, str]) -> None:
    # A pair of hooks on saves is Python in a backward that no registration tells of.
    script = f"""
        import torch, noclobber
        from noclobber.observe.arming.recorder import CONTEXT
        from noclobber.observe.torch_api.autograd import engine_state
        from noclobber.observe.torch_api.dispatch import spare_key

        def unpack(saved):
            global handle
            {within}
            return saved

        def backward():
            with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
                loss = (weight * weight).sum()
            try:
                loss.backward()
            except KeyError:
                pass

        handle = noclobber.install()
        weight = torch.ones(3, requires_grad=True)
        for _ in range(3):
            backward()
            assert CONTEXT.thread.backwards == [] and engine_state.backward_call() is None and spare_key.key_is_set()
            weight.grad = None
            weight.square().sum().backward()
            assert weight.grad.tolist() == [2.0, 2.0, 2.0]
            assert CONTEXT.thread.backwards == [] and engine_state.backward_call() is None and spare_key.key_is_set()
        handle.uninstall()
        assert not spare_key.key_is_set()
    """
    run(script, either)


def test_the_calls_before_a_refusal_are_known(either: dict[str, str]) -> None:
    script = """
        import torch, noclobber
        noclobber.install()
        weight = torch.ones(3, requires_grad=True)
        for number in range(100):  # more lines than are kept
            exec(compile("loss = weight.exp().sum(); loss.backward()", f"{number}.py", "exec"))
        loss.backward()
    """
    done = started(["-c", dedent(script)], either)
    assert "error[NC104]" in done.stderr
    assert "99.py:1" in done.stderr


def test_a_sampled_run_counts_every_call(either: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "weight = torch.ones(3, requires_grad=True)\n"
        "for _ in range(60):\n"
        "    weight.exp().sum().backward()\n"
    )
    done = started(["-m", "noclobber", "run", "--every", "10", "train.py"], either, tmp_path)
    assert "not watched: 38 of 60 backward calls (`--every 10` watches the others)" in done.stderr
