// What a checkpointed region can read: `walk` of core/reads.py, with the same values in the same order. What is inside of
// anything but a module, Python says.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "steps.h"

namespace noclobber {

// What core/reads.py names in `KINDS`; kept from then on.
struct Kinds {
  PyObject *plain, *passed_by, *sized, *of_every_module, *of_nobody;
  PyTypeObject *tensor, *module, *enumeration, *counter;
  PyObject *inside, *of_class, *index; // Python's functions
  Py_ssize_t most_items, longest;
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

// What was noted of one value: itself where it is plain; else the name of its type, its address, and its length or -1.
struct Noted {
  size_t path;
  pybind11::object key, value;
  void *thing;
  Py_ssize_t size;
};

// What a walk has noted. Python objects are made of it when it is read, which few are: a garbage collection visits none.
struct Values {
  std::vector<Noted> rows;
  std::vector<std::pair<size_t, pybind11::object>> paths{{0, pybind11::none()}}; // each with that of its owner

  pybind11::iterator shown() const {
    std::vector<pybind11::object> tuples{pybind11::none()};
    for (size_t i = 1; i < paths.size(); i++) {
      tuples.push_back(pybind11::make_tuple(tuples[paths[i].first], paths[i].second));
    }
    pybind11::list list;
    for (const Noted &row : rows) {
      pybind11::object value = row.value;
      if (row.thing != nullptr) {
        auto size = row.size < 0 ? pybind11::object(pybind11::none()) : pybind11::int_(row.size);
        value = pybind11::make_tuple(value, (uintptr_t)row.thing, size);
      }
      list.append(pybind11::make_tuple(tuples[row.path], row.key, value));
    }
    return pybind11::iter(list);
  }
};

struct Walk {
  struct Waiting {
    pybind11::object value;
    long depth;
    size_t path;
  };
  Values &values;
  PyObject *tensors; // a list
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

  void note(size_t path, PyObject *key, PyObject *value) const {
    auto kept_as = [](PyObject *one) { return pybind11::reinterpret_borrow<pybind11::object>(one); };
    values.rows.push_back({path, kept_as(key), kept_as(value), nullptr, -1});
  }

  void note_thing(size_t path, PyObject *key, PyObject *value, pybind11::object name, Py_ssize_t size = -1) const {
    values.rows.push_back({path, pybind11::reinterpret_borrow<pybind11::object>(key), std::move(name), value, size});
  }

  static bool is_long(PyObject *value) {
    return (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) > kinds.longest) ||
           (PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) > kinds.longest);
  }

  static pybind11::object name_of(PyTypeObject *kind) {
    static const Name name("__name__");
    return owned(name.of((PyObject *)kind));
  }

  void take(PyObject *key, PyObject *value, size_t path, long depth) {
    static const auto tensor = owned(PyUnicode_InternFromString("tensor")).release();
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
      note_thing(path, key, value, name_of(kind), is_sized ? PyObject_Size(value) : -1);
      if (depth > 0 && seen.count(value) == 0) {
        values.paths.emplace_back(path, pybind11::reinterpret_borrow<pybind11::object>(key));
        waiting.push_back({pybind11::reinterpret_borrow<pybind11::object>(value), depth - 1, values.paths.size() - 1});
      }
    }
  }

  // Takes the items of a dict, but for some keys.
  template <class But> void take_items(PyObject *table, size_t path, long depth, But but) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (table != nullptr && PyDict_Check(table) && PyDict_Next(table, &at, &key, &value)) {
      auto held_key = pybind11::reinterpret_borrow<pybind11::object>(key);
      auto held = pybind11::reinterpret_borrow<pybind11::object>(value);
      if (!but(key)) {
        take(key, value, path, depth);
      }
    }
  }

  void take_module(PyObject *held, size_t path, long depth) {
    static const Name parameters("_parameters"), buffers("_buffers"), modules("_modules"), momentum("momentum");
    static const auto count = owned(PyUnicode_InternFromString("num_batches_tracked")).release();
    auto none = [](PyObject *) { return false; };
    PyObject *expected = nullptr; // modules set the attributes of every module first, and in one order
    Py_ssize_t at = 0;
    PyDict_Next(kinds.of_every_module, &at, &expected, nullptr);
    take_items(held, path, depth, [&](PyObject *key) {
      if (key == expected) {
        expected = PyDict_Next(kinds.of_every_module, &at, &expected, nullptr) ? expected : nullptr;
        return true;
      }
      return holds(PyDict_Contains(kinds.of_every_module, key));
    });
    if (states) {
      const bool counts = momentum.in(held) == Py_None;
      take_items(parameters.in(held), path, depth, none);
      take_items(buffers.in(held), path, depth, [&](PyObject *key) {
        return !counts && holds(PyObject_RichCompareBool(key, count.ptr(), Py_EQ));
      });
      take_items(modules.in(held), path, depth, none);
    }
  }

  void take_all(PyObject *rows, size_t path, long depth) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
      auto row = pybind11::reinterpret_borrow<pybind11::object>(PyList_GET_ITEM(rows, i));
      take(PyTuple_GET_ITEM(row.ptr(), 0), PyTuple_GET_ITEM(row.ptr(), 1), path, depth);
    }
  }

  void run() {
    static const auto attributes = owned(PyUnicode_InternFromString("__dict__")).release();
    while (!waiting.empty()) {
      Waiting next = std::move(waiting.back());
      waiting.pop_back();
      PyObject *value = next.value.ptr(), *kind = (PyObject *)Py_TYPE(value);
      if (!is_new(value)) {
        continue;
      }
      const bool is_module = PyType_IsSubtype(Py_TYPE(value), kinds.module);
      if (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) <= kinds.most_items) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
          auto index = owned(PyObject_CallFunction(kinds.index, "n", i));
          take(index.ptr(), PyTuple_GET_ITEM(value, i), next.path, next.depth);
        }
        continue;
      }
      auto held = is_module ? owned(PyObject_GenericGetAttr(value, attributes.ptr()))
                            : owned(PyObject_CallOneArg(kinds.inside, value));
      if (is_module) {
        next.depth++; // a module is on its owner's level
        take_module(held.ptr(), next.path, next.depth);
      } else {
        take_all(held.ptr(), next.path, next.depth);
      }
      if (is_new(kind) && !holds(PySet_Contains(kinds.of_nobody, kind))) {
        take_all(owned(PyObject_CallFunctionObjArgs(kinds.of_class, kind, held.ptr(), nullptr)).ptr(), next.path, next.depth);
      }
    }
  }
};

inline Values walk(const pybind11::list &rows, const pybind11::object &function, long depth, bool states,
                   const pybind11::list &tensors) {
  Values values;
  Walk all{values, tensors.ptr(), states, {}, {}, {}};
  values.rows.reserve(128);
  all.kept.reserve(128);
  all.seen.reserve(128);
  all.note_thing(0, pybind11::str("").ptr(), function.ptr(), Walk::name_of(Py_TYPE(function.ptr())));
  all.waiting.push_back({function, depth, 0});
  all.take_all(rows.ptr(), 0, depth);
  all.run();
  return values;
}

} // namespace noclobber
