"""What must hold before every test, and after it: noclobber has left PyTorch as it found it."""

import gc
import os
import signal
import sys
import tempfile

import pytest

# A shell ignores interrupts in what it runs in the background, and so would every program that a test starts there.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("NOCLOBBER_PURE", "1")  # `make test NATIVE=1` sets it to 0
_state = tempfile.TemporaryDirectory()  # tests kill programs, and what is left of these is nothing to tell the user of
os.environ["XDG_STATE_HOME"] = _state.name
os.environ.pop("COLUMNS", None)  # what programs print in a test is as wide on every machine


def pytest_collection_finish():
    """What is imported stays, and no garbage collection of a test need look at it: that takes a sixth of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def looks_anew(monkeypatch):
    """Programs look for holders as if they were the first of their process, however much this one has imported."""
    from noclobber.observe.describe import holders

    gc.collect()
    gc.freeze()
    monkeypatch.setattr(holders, "spent", [])
    monkeypatch.setattr(holders, "_MOST_SECONDS", 1000.0)
    # What the tests have imported holds no tensor of theirs, and to count it takes as long as the rest of a look.
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    monkeypatch.setattr(holders, "frozen", 1)


@pytest.fixture(autouse=True)
def no_hooks_and_modes_left():
    """What is left over would change what all later tests of the process see; taken off, the next may pass."""
    yield
    if (torch := sys.modules.get("torch")) is None:
        return
    if (compiled := sys.modules.get("torch._dynamo.utils")) is not None:
        from noclobber.observe.torch_api.dispatch.compile_guard import FRAMES

        compiled.counters.clear()  # coverage tells of all that the process has compiled
        vars(FRAMES).update(vars(type(FRAMES)()))
    left = 0
    while torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        left += 1
    while torch._C._len_torch_dispatch_stack():
        torch.utils._python_dispatch._pop_mode()
        left += 1
    assert left == 0
