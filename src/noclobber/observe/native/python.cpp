#include "python.h"

#include <pthread.h>

namespace noclobber {

std::mutex lock;

void hold_lock_at_forks() {
  auto release = [] { lock.unlock(); };
  static const int held = pthread_atfork([] { lock.lock(); }, release, release);
  TORCH_CHECK(held == 0, "no memory");
}

void throw_error() {
  python_error error;
  error.persist();
  throw error;
}

static PyObject *connected = nullptr;

void connect(const pybind11::object &python) { connected = python.inc_ref().ptr(); }

PyObject *from_python(const char *name) { return Name(name).of(connected).release(); }

PyObject *by_python(const Name &function, PyObject *const *arguments, Py_ssize_t count) {
  THPObjectPtr called(PyObject_GetAttr(connected, function));
  return called ? PyObject_Vectorcall(called, arguments, (size_t)count, nullptr) : nullptr;
}

bool has_key(PyObject *dictionary, uintptr_t key) {
  Gil gil;
  return unless_fails([&] { return holds(PyDict_Contains(dictionary, number(key))); }, true);
}

} // namespace noclobber
