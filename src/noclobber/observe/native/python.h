// Python's objects and errors. A reference is PyTorch's THPObjectPtr; a bare pointer is borrowed.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>

namespace noclobber {

using Gil = pybind11::gil_scoped_acquire;

// The lock of all that the native part keeps. No thread holds it while Python runs, nor while it waits for the GIL. The
// process holds it while it forks, so that the child finds whole what it guards, and the lock free.
extern std::mutex lock;
void hold_lock_at_forks();

// Throws Python's error.
[[noreturn]] void throw_error();

// Returns a new reference that the caller owns. Throws Python's error in place of null.
inline THPObjectPtr owned(PyObject *made) {
  if (made == nullptr) {
    throw_error();
  }
  return THPObjectPtr(made);
}

// Returns what a function of Python's says that returns -1 for an error, which this throws.
inline bool holds(int answer) {
  if (answer < 0) {
    throw_error();
  }
  return answer != 0;
}

// Returns what a function returns, and `failed` where Python raises in it. Throws what is no Exception: a signal handler
// has raised it, as KeyboardInterrupt, and it is for the program. With the GIL.
template <class Function, class Result> Result unless_fails(Function function, Result failed) {
  try {
    return function();
  } catch (const python_error &error) {
    if (PyErr_GivenExceptionMatches(error.type, PyExc_Exception) == 0) {
      throw;
    }
    return failed;
  }
}

// Hears of what Python does for the native part, and of what it shows: the attributes of an object of bridge.py.
void connect(const pybind11::object &python);
// Returns one of them, which is kept for good. What holds objects of Python's is never destroyed where it is not told to:
// when the process exits, nobody may hold the GIL.
PyObject *from_python(const char *name);

// Reads a tuple as `PyArg_ParseTuple` does. What is read is borrowed from it.
template <class... Places> void parse(PyObject *tuple, const char *format, Places... places) {
  if (PyArg_ParseTuple(tuple, format, places...) == 0) {
    throw_error();
  }
}

inline THPObjectPtr number(unsigned long long value) { return owned(PyLong_FromUnsignedLongLong(value)); }

// Returns true if a dictionary may have this key: also where it fails. Takes the GIL.
bool has_key(PyObject *dictionary, uintptr_t key);
inline bool is_in(PyObject *dictionary, uintptr_t key) {
  return PyDict_GET_SIZE(dictionary) != 0 && has_key(dictionary, key);
}

// A name of Python's, made once.
class Name {
public:
  explicit Name(const char *text) : name(owned(PyUnicode_InternFromString(text)).release()) {}
  operator PyObject *() const { return name; }
  THPObjectPtr of(PyObject *object) const { return owned(PyObject_GetAttr(object, name)); }
  void set(PyObject *object, PyObject *value) const { holds(PyObject_SetAttr(object, name, value)); }
  // The same for a dict: the value is borrowed, and null where the table is none or lacks the name.
  PyObject *in(PyObject *table) const {
    PyObject *value = PyDict_Check(table) ? PyDict_GetItemWithError(table, name) : nullptr;
    if (value == nullptr && PyErr_Occurred() != nullptr) {
      throw_error();
    }
    return value;
  }
  void put(PyObject *table, PyObject *value) const { holds(PyDict_SetItem(table, name, value)); }

private:
  PyObject *name;
};

// Returns what is taken here; what `otherwise` returns where it is not taken (null) or fails, but for an interrupt. No C++
// exception may get into CPython.
template <class Taken, class Otherwise> PyObject *taken_or(Taken taken, Otherwise otherwise) {
  try {
    if (THPObjectPtr result = unless_fails(taken, THPObjectPtr())) {
      return result.release();
    }
  } catch (python_error &interrupted) {
    interrupted.restore();
    return nullptr;
  } catch (const std::exception &) { // no memory
  }
  return otherwise();
}

// Calls a function that Python has connected.
PyObject *by_python(const Name &function, PyObject *const *arguments, Py_ssize_t count);

} // namespace noclobber
