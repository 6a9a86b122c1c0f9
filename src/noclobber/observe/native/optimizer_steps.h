// Optimizer steps of PyTorch's own, without a closure, that write no live save: as core/writes/optimizer_steps.py, which takes all
// others.
#pragma once

#include "threads.h"

namespace noclobber {

// The hooks before and after the steps of all optimizers: functions of Python's interface, called with its arguments.
PyObject *before_step(PyObject *, PyObject *const *arguments, Py_ssize_t count);
PyObject *after_step(PyObject *, PyObject *const *arguments, Py_ssize_t count);

// Hears of a step that Python takes, and of the storages that are its own to write; None for no step, and for all. Leaves
// the writes of this thread to Python where there are steps at ever new lines. With the GIL.
void set_step(const pybind11::object &step, const pybind11::object &stepped);

// Drops what is known of steps. Records may refer to it until then. With the GIL.
void forget_steps();

} // namespace noclobber
