// How Python sees what the native part keeps.
#pragma once

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>

#include "places.h"

namespace noclobber {

inline pybind11::object shown(PyObject *object) { // None where there is none
  return pybind11::reinterpret_borrow<pybind11::object>(object != nullptr ? object : Py_None);
}
inline pybind11::object shown(THPObjectPtr object) {
  return pybind11::reinterpret_steal<pybind11::object>(object.release());
}
inline pybind11::object shown(const Place *place) { return shown(shown_place(place)); }
inline pybind11::object shown(at::ScalarType dtype) { return shown((PyObject *)torch::getTHPDtype(dtype)); }
inline pybind11::tuple shown(at::IntArrayRef numbers) { return pybind11::tuple(pybind11::cast(numbers.vec())); }

} // namespace noclobber
