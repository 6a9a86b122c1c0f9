"""Every kind of tensor in every way of seeing: the program does what it does bare, and noclobber fails nowhere."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests import served
from tests.observe.kinds import CLOBBERS, PROGRAMS
from tests.observe.native.conftest import missing

ENDS_OTHERWISE = {"raise": {*CLOBBERS, "restored", "first"}, "preserve": {*CLOBBERS}}
"""Steps that overwrite what backward needs, by the ways that are there to change what comes of that."""


@pytest.fixture(scope="module", params=["python", "native"])
def tried(request):
    """What says what came of a kind, in each way."""
    if request.param == "native" and (why := missing()):
        pytest.skip(why)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NOCLOBBER_PURE": "0" if request.param == "native" else "1"}
    command, pipe = [sys.executable, "-m", "tests.observe.kinds"], subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert bool(json.loads(process.stdout.readline())) == (request.param == "python")

        def ask(kind):
            process.stdin.write(f"{kind}\n")
            return json.loads(process.stdout.readline())

        yield ask
    assert process.returncode == 0


@pytest.mark.parametrize("kind", PROGRAMS)
def test_each_way_of_seeing_is_as_bare(tried, kind):
    found = tried(kind)
    bare = found["bare"]["steps"]
    for way, came in found.items():
        assert isinstance(came, dict), (way, came)  # else the process died
        assert came["lost"] == [], way
        if (kind, way) in (("lazy", "hints"), ("named", "hints")):
            continue  # the tests below
        names = bare.keys() - ENDS_OTHERWISE.get(way, set())
        assert {name: (bare[name], came["steps"][name]) for name in names if came["steps"][name] != bare[name]} == {}, (
            way
        )


def test_no_dispatch_mode_sees_a_lazy_tensor():
    """Any mode takes the lazy device its views away, also one of the program's; `hints` needs one (docs/limits.md)."""
    script = """
        import torch, torch._lazy.ts_backend
        from torch.utils._python_dispatch import TorchDispatchMode
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))
        torch._lazy.ts_backend.init()
        with Mode():
            torch.ones(4, device="lazy").view(2, 2)
    """
    done = served.run(["-c", dedent(script)])
    assert "has no implementation for the backend" in done.stderr


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="no dimension has a name in this release")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_no_dispatch_mode_sees_a_tensor_with_names():
    """Any mode fails on a tensor with names, also one of the program's (torch 2.10 to 2.12)."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    named = torch.ones(3, names=("N",))
    with pytest.raises(RuntimeError, match="Named tensors are currently unsupported"), Mode():
        named.mul(2)
