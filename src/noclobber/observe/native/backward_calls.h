// Backward calls under `install`: a plain `backward()` in which no Python runs. Only the thread's key goes off meanwhile,
// and the end of the call is noted. All other calls go to core/engine.py.
#pragma once

#include "threads.h"

namespace noclobber {

// What core/engine.py calls before and after each call: functions of Python's interface.
PyObject *begin_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count);
PyObject *end_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count);

// Returns the gradients that leaves have already and that a backward from these tensors may add to.
std::vector<at::Tensor> gradients_behind(const std::vector<at::Tensor> &outputs);

} // namespace noclobber
