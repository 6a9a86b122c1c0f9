"""Every way to hand memory to code that torch does not see: the line that then wrote, and the line of the handout."""

import array
import ctypes
import mmap

import numpy as np
import pytest
import torch
import torch.utils.dlpack

from tests.observe.foreign import line, marked, watched


def squared(w):
    """A graph that keeps `w`, and a backward that reads it."""
    x = torch.ones(w.shape, requires_grad=True)
    return (x * w).sum()


def fill(address, size):
    ctypes.memset(address, 1, size)  # written


def numpy():
    w = torch.ones(3)
    y = squared(w)
    a = w.numpy()  # handed
    a[:] = 5  # written
    y.backward()


def numpy_of_detached():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    a = y.detach().numpy()  # handed
    a += 1  # written
    y.sum().backward()


def numpy_on_the_same_line():
    w = torch.ones(3)
    y = squared(w)
    w.numpy()[:] = 5  # written handed
    y.backward()


def numpy_before_the_save():
    w = torch.ones(3)
    a = w.numpy()  # handed
    y = squared(w)
    a[0] = 5  # written
    y.backward()


def numpy_of_a_view():
    w = torch.ones(4, 3)
    y = squared(w[1])
    a = w.t().numpy()[:, 1:]  # handed
    a[0, 0] = 5  # written
    y.backward()


def dunder_array():
    w = torch.ones(3)
    y = squared(w)
    a = np.asarray(w)  # handed
    np.copyto(a, 7)  # written
    y.backward()


def dunder_dlpack():
    w = torch.ones(3)
    y = squared(w)
    a = np.from_dlpack(w)  # handed
    a.fill(5)  # written
    y.backward()


def to_dlpack():
    w = torch.ones(3)
    y = squared(w)
    capsule = torch.utils.dlpack.to_dlpack(w)  # handed
    torch.utils.dlpack.from_dlpack(capsule).numpy()[1] = 9  # written
    y.backward()


def data_ptr():
    w = torch.ones(3)
    y = squared(w)
    address = w.data_ptr()  # handed
    fill(address, 12)
    y.backward()


def untyped_storage():
    w = torch.ones(3)
    y = squared(w)
    s = w.untyped_storage()  # handed
    ctypes.memset(s.data_ptr(), 1, s.nbytes())  # written
    y.backward()


def typed_storage():
    w = torch.ones(3)
    y = squared(w)
    s = w.storage()  # handed
    ctypes.memset(s.data_ptr(), 1, 12)  # written
    y.backward()


def from_numpy():
    a = np.ones(3)
    w = torch.from_numpy(a)  # handed
    y = squared(w)
    a *= 2  # written
    y.backward()


def from_numpy_of_a_row():
    frames = np.ones((4, 3))
    w = torch.from_numpy(frames[2])  # handed
    y = squared(w)
    frames[:] = 4  # written
    y.backward()


def as_tensor():
    a = np.ones(3)
    y = squared(torch.as_tensor(a))  # handed
    a.sort()
    a[1:] = 3  # written
    y.backward()


def asarray():
    a = np.ones(3)
    y = squared(torch.asarray(a))  # handed
    a -= 1  # written
    y.backward()


def frombuffer():
    a = bytearray(12)
    y = squared(torch.frombuffer(a, dtype=torch.float32))  # handed
    a[3] = 1  # written
    y.backward()


def frombuffer_of_a_file():
    a = mmap.mmap(-1, 4096)
    y = squared(torch.frombuffer(a, dtype=torch.float32, count=4))  # handed
    a.seek(0)
    a.write(b"abcd")  # written
    y.backward()


def frombuffer_of_an_array():
    a = array.array("d", [1.0, 2.0])
    y = squared(torch.frombuffer(a, dtype=torch.float64))  # handed
    a[0] = 3.0  # written
    y.backward()


def from_dlpack():
    a = np.ones(3)
    y = squared(torch.from_dlpack(a))  # handed
    a[2] = 0  # written
    y.backward()


BY = {
    numpy: "numpy",
    numpy_of_detached: "numpy",
    numpy_on_the_same_line: "numpy",
    numpy_before_the_save: "numpy",
    numpy_of_a_view: "numpy",
    dunder_array: "__array__",
    dunder_dlpack: "__dlpack__",
    untyped_storage: "untyped_storage",
    typed_storage: "storage",
    from_numpy: "from_numpy",
    from_numpy_of_a_row: "from_numpy",
    as_tensor: "as_tensor",
    asarray: "asarray",
    frombuffer: "frombuffer",
    frombuffer_of_a_file: "frombuffer",
    frombuffer_of_an_array: "frombuffer",
    from_dlpack: "from_dlpack",
}


@pytest.mark.parametrize("program", BY, ids=lambda p: p.__name__)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_the_line_of_the_write_and_of_the_handout(program):
    (write,) = watched(program).writes
    assert (write.op, write.via, write.since) == ("", "foreign", None)
    assert line(write.site) in marked(program, "written") | marked(program, "written handed")
    assert line(write.handed.site) in marked(program, "handed") | marked(program, "written handed")
    assert write.handed.by == BY[program]


def test_an_address():
    (write,) = watched(data_ptr).writes
    assert ({line(write.site)}, write.since) == (marked(fill, "written"), None)
    assert ({line(write.handed.site)}, write.handed.by) == (marked(data_ptr, "handed"), "data_ptr")


def test_a_capsule():
    (write,) = watched(to_dlpack).writes
    assert ({line(write.site)}, write.since) == (marked(to_dlpack, "written"), None)


def test_nothing_is_found_where_nothing_changed():
    def program():
        w, a = torch.ones(3), np.ones(3)
        x = torch.from_numpy(a)
        y = squared(w) + squared(x)
        w.numpy()[:] = 1
        a[:] = 2
        a[:] = 1
        y.backward()

    assert watched(program).writes == []
