// What a checkpointed region can read: `walk` of core/reads.py, with the same values in the same order. What is inside of
// anything but a module, Python says.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "steps.h"

namespace noclobber {

// What core/reads.py names in `KINDS`; kept from then on.
struct Kinds {
  PyObject *plain, *passed_by, *sized, *of_every_module;
  PyTypeObject *tensor, *module, *enumeration, *counter;
  PyObject *inside, *of_class; // Python's functions
  Py_ssize_t longest;
};
inline Kinds kinds{};

inline pybind11::object owned(PyObject *made) { // throws Python's error in place of null
  if (made == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

inline bool holds(int answer) { // of a function of Python's that returns -1 for an error
  if (answer < 0) {
    throw pybind11::error_already_set();
  }
  return answer != 0;
}

struct Walk {
  struct Waiting {
    pybind11::object value;
    long depth;
    pybind11::object path;
  };
  PyObject *values, *tensors; // lists
  bool states;
  std::vector<Waiting> waiting;
  std::unordered_set<PyObject *> seen;
  std::vector<pybind11::object> kept; // no other object gets the address of one that was seen

  bool is_new(PyObject *value) {
    if (!seen.insert(value).second) {
      return false;
    }
    kept.push_back(pybind11::reinterpret_borrow<pybind11::object>(value));
    return true;
  }

  void note(PyObject *path, PyObject *key, PyObject *value) const {
    auto row = owned(PyTuple_Pack(3, path, key, value));
    holds(PyList_Append(values, row.ptr()));
  }

  void note_thing(PyObject *path, PyObject *key, PyObject *value, const pybind11::object &name, Py_ssize_t size = -1) const {
    auto address = owned(PyLong_FromVoidPtr(value));
    auto count = size < 0 ? pybind11::none() : owned(PyLong_FromSsize_t(size));
    note(path, key, owned(PyTuple_Pack(3, name.ptr(), address.ptr(), count.ptr())).ptr());
  }

  static bool is_long(PyObject *value) {
    return (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) > kinds.longest) ||
           (PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) > kinds.longest);
  }

  void take(PyObject *key, PyObject *value, PyObject *path, long depth) {
    static const auto tensor = owned(PyUnicode_InternFromString("tensor")).release();
    static const Name name("__name__");
    PyTypeObject *kind = Py_TYPE(value);
    if (holds(PySet_Contains(kinds.plain, (PyObject *)kind))) {
      if (!is_long(value)) {
        note(path, key, value);
      }
    } else if (PyType_IsSubtype(kind, kinds.tensor)) {
      note_thing(path, key, value, pybind11::reinterpret_borrow<pybind11::object>(tensor));
      if (is_new(value)) {
        holds(PyList_Append(tensors, value));
      }
    } else if (kind == kinds.counter) {
      note_thing(path, key, value, owned(PyObject_Repr(value)));
    } else if (PyType_IsSubtype(kind, kinds.enumeration)) {
      note(path, key, value);
    } else if (!holds(PyObject_IsSubclass((PyObject *)kind, kinds.passed_by))) {
      const bool is_sized = holds(PySet_Contains(kinds.sized, (PyObject *)kind));
      note_thing(path, key, value, owned(name.of((PyObject *)kind)), is_sized ? PyObject_Size(value) : -1);
      if (depth > 0 && seen.count(value) == 0) {
        waiting.push_back({pybind11::reinterpret_borrow<pybind11::object>(value), depth - 1, owned(PyTuple_Pack(2, path, key))});
      }
    }
  }

  // Appends the items of a dict that a module holds under a name.
  static void add_items(PyObject *rows, PyObject *held, const Name &name, PyObject *but = nullptr) {
    PyObject *table = name.in(held);
    if (table == nullptr || !PyDict_Check(table) || PyDict_GET_SIZE(table) == 0) {
      return;
    }
    auto items = owned(PyDict_Items(table));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.ptr()); i++) {
      PyObject *row = PyList_GET_ITEM(items.ptr(), i);
      if (but == nullptr || !holds(PyObject_RichCompareBool(PyTuple_GET_ITEM(row, 0), but, Py_EQ))) {
        holds(PyList_Append(rows, row));
      }
    }
  }

  pybind11::object of_module(PyObject *module) const {
    static const Name parameters("_parameters"), buffers("_buffers"), modules("_modules"), momentum("momentum");
    static const auto attributes = owned(PyUnicode_InternFromString("__dict__")).release();
    static const auto count = owned(PyUnicode_InternFromString("num_batches_tracked")).release();
    auto held = owned(PyObject_GenericGetAttr(module, attributes.ptr()));
    auto items = owned(PyDict_Items(held.ptr())), rows = owned(PyList_New(0));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.ptr()); i++) {
      PyObject *row = PyList_GET_ITEM(items.ptr(), i);
      if (!holds(PySet_Contains(kinds.of_every_module, PyTuple_GET_ITEM(row, 0)))) {
        holds(PyList_Append(rows.ptr(), row));
      }
    }
    if (states) {
      add_items(rows.ptr(), held.ptr(), parameters);
      add_items(rows.ptr(), held.ptr(), buffers, momentum.in(held.ptr()) == Py_None ? nullptr : count.ptr());
      add_items(rows.ptr(), held.ptr(), modules);
    }
    return rows;
  }

  void take_all(PyObject *rows, PyObject *path, long depth) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
      auto row = pybind11::reinterpret_borrow<pybind11::object>(PyList_GET_ITEM(rows, i));
      take(PyTuple_GET_ITEM(row.ptr(), 0), PyTuple_GET_ITEM(row.ptr(), 1), path, depth);
    }
  }

  void run() {
    while (!waiting.empty()) {
      Waiting next = std::move(waiting.back());
      waiting.pop_back();
      PyObject *value = next.value.ptr(), *kind = (PyObject *)Py_TYPE(value);
      if (!is_new(value)) {
        continue;
      }
      const bool is_module = PyType_IsSubtype(Py_TYPE(value), kinds.module);
      auto rows = is_module ? of_module(value) : owned(PyObject_CallOneArg(kinds.inside, value));
      if (is_new(kind)) {
        auto more = owned(PyObject_CallFunctionObjArgs(kinds.of_class, kind, rows.ptr(), nullptr));
        rows = owned(PySequence_InPlaceConcat(rows.ptr(), more.ptr()));
      }
      take_all(rows.ptr(), next.path.ptr(), is_module ? next.depth + 1 : next.depth); // a module is on its owner's level
    }
  }
};

inline void walk(const pybind11::list &rows, const pybind11::object &function, long depth, bool states,
                 const pybind11::list &values, const pybind11::list &tensors) {
  Walk all{values.ptr(), tensors.ptr(), states, {}, {}, {}};
  all.waiting.push_back({function, depth, pybind11::none()});
  all.take_all(rows.ptr(), Py_None, depth);
  all.run();
}

} // namespace noclobber
