// What a checkpointed region can read: `walk` of core/seen/reads.py, with the same values in the same order.
#pragma once

#include <vector>

#include "python.h"

namespace noclobber {

// What was noted of one value: itself where it is plain; else the name of its type, its address, and its length or -1.
struct Noted {
  size_t path;
  THPObjectPtr key, value;
  void *thing;
  Py_ssize_t size;
};

// What a walk has noted. Python objects are made of it when it is read, which few are: a garbage collection visits none.
struct Values {
  Values() = default;
  Values(Values &&) = default;
  std::vector<Noted> rows;
  std::vector<std::pair<size_t, THPObjectPtr>> paths; // each with that of its owner
  pybind11::iterator shown() const;
};

// `kinds` is what core/seen/reads.py says of types and values (`KINDS`), the same at each call.
Values walk(const pybind11::tuple &kinds, const pybind11::list &rows, const pybind11::object &function, long depth,
            bool states, const pybind11::list &tensors);

} // namespace noclobber
