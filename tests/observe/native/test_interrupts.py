"""What a signal handler raises while the native part asks Python reaches the program."""

import subprocess
import sys
from textwrap import dedent

import pytest


def test_an_interrupt_of_a_question_reaches_the_program(native: dict[str, str]) -> None:
    script = """
        import weakref, torch, noclobber
        from noclobber.observe.arming.recorder import CONTEXT
        class Asked:
            '''Stands for a save.'''
        def interrupted(self, key):
            raise KeyboardInterrupt
        with noclobber.preserve():
            assert CONTEXT.native is not None
            live, written = CONTEXT.live, torch.ones(3)
            native, asked = type(live).has, Asked()
            live.unsorted.append(weakref.ref(asked))
            type(live).has = interrupted
            try:
                written.add_(1)
            except KeyboardInterrupt:
                print("heard", written.tolist())
            finally:
                type(live).has = native
                live.unsorted.clear()
            written.add_(1)
            print(written.tolist())
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], env=native, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["heard [1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0]"]


@pytest.mark.parametrize(
    ("around", "line", "left"),
    [
        pytest.param("preserve", "loss = leaf.exp()", "'loss' not in globals()", id="of a save"),
        pytest.param("install", "written.add_(1)", "written.tolist() == [1.0]", id="of a write"),
        pytest.param("install", "chunks = leaf.chunk(2)", "'chunks' not in globals()", id="of several views"),
        pytest.param("install", "leaf.sin().sum().backward()", "leaf.grad.tolist() == [2.0, 2.0]", id="of a backward"),
        pytest.param("install", "optimizer.step()", "leaf.tolist() == [1.0, 1.0]", id="of a step"),
    ],
)
def test_an_interrupt_while_the_line_is_looked_up(native: dict[str, str], around: str, line: str, left: str) -> None:
    # The file is new to noclobber, so the native part asks Python whose code it is.
    script = f"""
        import torch, noclobber
        from noclobber.observe.core.seen import sites
        leaf, written = torch.ones(2, requires_grad=True), torch.ones(1)
        optimizer = torch.optim.SGD([leaf], 0.1)
        block = noclobber.{around}()
        if hasattr(block, "__enter__"):
            block.__enter__()
        leaf.square().sum().backward()
        def interrupted(path):
            raise KeyboardInterrupt
        asked, sites.kind_of = sites.kind_of, interrupted
        try:
            exec(compile({line!r}, "new.py", "exec"))
        except KeyboardInterrupt:
            print("heard", {left})
        sites.kind_of = asked
        exec(compile({line!r}, "newer.py", "exec"))
        leaf.grad = None
        leaf.square().sum().backward()
        print(leaf.grad is not None)
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], env=native, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "heard True\nTrue\n"
