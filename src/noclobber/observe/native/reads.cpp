#include "reads.h"

#include <c10/util/flat_hash_map.h>

#include "shown.h"

namespace noclobber {

namespace py = pybind11;

namespace {

// In the order of `KINDS` in core/seen/reads.py.
struct Kinds {
  PyObject *plain, *passed_by, *sized, *of_every_module, *of_nobody;
  PyTypeObject *tensor, *module, *enumeration, *counter;
  PyObject *inside, *users_of, *users, *index; // Python's functions; `users` is what the second knows, by the class
  Py_ssize_t most_items, longest;
};
Kinds kinds{};

void learn(PyObject *named) {
  parse(named, "OOOOOOOOOOOOOnn", &kinds.plain, &kinds.passed_by, &kinds.sized, &kinds.of_every_module,
        &kinds.of_nobody, &kinds.tensor, &kinds.module, &kinds.enumeration, &kinds.counter, &kinds.inside,
        &kinds.users_of, &kinds.users, &kinds.index, &kinds.most_items, &kinds.longest);
}

bool is_long(PyObject *value) {
  return (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) > kinds.longest) ||
         (PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) > kinds.longest);
}

// The commonest types need no look into the set.
bool is_plain(PyObject *value) {
  return PyLong_CheckExact(value) || PyBool_Check(value) || value == Py_None || PyFloat_CheckExact(value) ||
         PyUnicode_CheckExact(value) || holds(PySet_Contains(kinds.plain, (PyObject *)Py_TYPE(value)));
}

bool is_passed_by(PyTypeObject *kind) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds.passed_by); i++) {
    if (PyType_IsSubtype(kind, (PyTypeObject *)PyTuple_GET_ITEM(kinds.passed_by, i))) {
      return true;
    }
  }
  return false;
}

THPObjectPtr name_of(PyTypeObject *kind) {
  static const Name name("__name__");
  return name.of((PyObject *)kind);
}

struct Walk {
  struct Waiting {
    THPObjectPtr value;
    long depth;
    size_t path;
  };
  Values &values;
  PyObject *tensors; // a list
  bool states;
  std::vector<Waiting> waiting;
  ska::flat_hash_set<PyObject *> seen;
  std::vector<THPObjectPtr> kept; // no other object gets the address of one that was seen

  bool is_new(PyObject *value) {
    const bool added = seen.insert(value).second;
    if (added) {
      kept.push_back(THPObjectPtr::dup(value));
    }
    return added;
  }

  void note(size_t path, PyObject *key, PyObject *value) const {
    values.rows.push_back({path, THPObjectPtr::dup(key), THPObjectPtr::dup(value), nullptr, -1});
  }

  void note_thing(size_t path, PyObject *key, PyObject *value, THPObjectPtr name, Py_ssize_t size = -1) const {
    values.rows.push_back({path, THPObjectPtr::dup(key), std::move(name), value, size});
  }

  void take(PyObject *key, PyObject *value, size_t path, long depth) {
    static const Name tensor("tensor");
    PyTypeObject *kind = Py_TYPE(value);
    if (is_plain(value)) {
      if (!is_long(value)) {
        note(path, key, value);
      }
    } else if (PyType_IsSubtype(kind, kinds.tensor)) {
      note_thing(path, key, value, THPObjectPtr::dup(tensor));
      if (is_new(value)) {
        holds(PyList_Append(tensors, value));
      }
    } else { // what is asked from here on may run code that drops them
      take_other(THPObjectPtr::dup(key), THPObjectPtr::dup(value), path, depth);
    }
  }

  void take_other(THPObjectPtr key, THPObjectPtr value, size_t path, long depth) {
    PyTypeObject *kind = Py_TYPE(value.get());
    const bool is_module = PyType_IsSubtype(kind, kinds.module);
    if (kind == kinds.counter) {
      note_thing(path, key, value, owned(PyObject_Repr(value)));
    } else if (!is_module && PyType_IsSubtype(kind, kinds.enumeration)) {
      note(path, key, value);
    } else if (is_module || !is_passed_by(kind)) {
      const bool is_sized = !is_module && holds(PySet_Contains(kinds.sized, (PyObject *)kind));
      note_thing(path, key, value, name_of(kind), is_sized ? PyObject_Size(value) : -1);
      if (depth > 0 && seen.count(value) == 0) {
        values.paths.emplace_back(path, std::move(key));
        waiting.push_back({std::move(value), depth - 1, values.paths.size() - 1});
      }
    }
  }

  // Takes the items of a dict, but for some keys.
  template <class But> void take_items(PyObject *table, size_t path, long depth, But but) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (table != nullptr && PyDict_Check(table) && PyDict_Next(table, &at, &key, &value)) {
      if (!but(key)) {
        take(key, value, path, depth);
      }
    }
  }

  void take_module(PyObject *held, size_t path, long depth) {
    static const Name parameters("_parameters"), buffers("_buffers"), modules("_modules"), momentum("momentum"),
        count("num_batches_tracked");
    auto none = [](PyObject *) { return false; };
    PyObject *expected = nullptr; // modules set the attributes of every module first, and in one order
    Py_ssize_t at = 0;
    PyDict_Next(kinds.of_every_module, &at, &expected, nullptr);
    take_items(held, path, depth, [&](PyObject *key) {
      if (key == expected) {
        expected = PyDict_Next(kinds.of_every_module, &at, &expected, nullptr) ? expected : nullptr;
        return true;
      }
      return PyUnicode_CheckExact(key) && holds(PyDict_Contains(kinds.of_every_module, key));
    });
    if (states) {
      const bool counts = momentum.in(held) == Py_None;
      take_items(parameters.in(held), path, depth, none);
      take_items(buffers.in(held), path, depth, [&](PyObject *key) {
        return !counts && PyUnicode_CheckExact(key) && PyUnicode_Compare(key, count) == 0;
      });
      take_items(modules.in(held), path, depth, none);
    }
  }

  void take_all(PyObject *rows, size_t path, long depth) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
      auto row = THPObjectPtr::dup(PyList_GET_ITEM(rows, i));
      take(PyTuple_GET_ITEM(row.get(), 0), PyTuple_GET_ITEM(row.get(), 1), path, depth);
    }
  }

  // Takes what a value leads to. What is inside of anything but a module or a tuple, Python says.
  void look_into(PyObject *value, size_t path, long depth) {
    static const Name attributes("__dict__");
    if (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) <= kinds.most_items) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        take(owned(PyObject_CallFunction(kinds.index, "n", i)), PyTuple_GET_ITEM(value, i), path, depth);
      }
      return;
    }
    auto *kind = (PyObject *)Py_TYPE(value);
    THPObjectPtr held;
    if (PyType_IsSubtype(Py_TYPE(value), kinds.module)) {
      held = owned(PyObject_GenericGetAttr(value, attributes));
      take_module(held, path, ++depth); // a module is on its owner's level
    } else {
      held = owned(PyObject_CallOneArg(kinds.inside, value));
      take_all(held, path, depth);
    }
    if (is_new(kind) && !holds(PySet_Contains(kinds.of_nobody, kind))) {
      take_class((PyTypeObject *)kind, held, path, depth);
    }
  }

  // Takes what Python's `_of_class` returns of a class and what an object of it holds.
  void take_class(PyTypeObject *kind, PyObject *held, size_t path, long depth) {
    auto reference = owned(PyWeakref_NewRef((PyObject *)kind, nullptr));
    auto users = THPObjectPtr::dup(PyDict_GetItemWithError(kinds.users, reference));
    if (!users) {
      users = owned(PyObject_CallOneArg(kinds.users_of, (PyObject *)kind));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(users.get()); i++) {
      PyObject *user = PyTuple_GET_ITEM(users.get(), i), *scopes = PyTuple_GET_ITEM(user, 1);
      PyObject *one = PyTuple_GET_ITEM(kind->tp_mro, PyLong_AsSsize_t(PyTuple_GET_ITEM(user, 0)));
      PyObject *attributes = ((PyTypeObject *)one)->tp_dict;
      take_attributes(attributes, held, path, depth);
      for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(scopes); j++) {
        take_globals(attributes, PyTuple_GET_ITEM(scopes, j), path, depth);
      }
    }
  }

  // Takes the plain attributes of a class that an object does not hold itself.
  void take_attributes(PyObject *attributes, PyObject *held, size_t path, long depth) {
    PyObject *name, *value;
    THPObjectPtr taken;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes, &at, &name, &value)) {
      const bool is_pythons = !PyUnicode_Check(name) || (PyUnicode_GET_LENGTH(name) > 1 &&
                                                         PyUnicode_READ_CHAR(name, 0) == '_' &&
                                                         PyUnicode_READ_CHAR(name, 1) == '_');
      if (is_pythons || !is_plain(value)) {
        continue;
      }
      if (!taken) {
        taken = PyDict_Check(held) ? THPObjectPtr::dup(held) : owned(PyDict_New());
        holds(taken == held ? 0 : PyDict_MergeFromSeq2(taken, held, 1));
      }
      if (!holds(PyDict_Contains(taken, name))) {
        take(name, value, path, depth);
      }
    }
  }

  // Takes the globals that the methods of a class name: those of the module of one method.
  void take_globals(PyObject *attributes, PyObject *scope, size_t path, long depth) {
    PyObject *method = PyDict_GetItemWithError(attributes, PyTuple_GET_ITEM(scope, 0));
    PyObject *variables = PyTuple_GET_ITEM(scope, 1);
    if (method == nullptr || !PyFunction_Check(method)) {
      return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(variables); i++) {
      PyObject *variable = PyTuple_GET_ITEM(variables, i);
      PyObject *value = PyDict_GetItemWithError(PyFunction_GET_GLOBALS(method), PyTuple_GET_ITEM(variable, 0));
      if (value != nullptr && (is_plain(value) || PyType_IsSubtype(Py_TYPE(value), kinds.tensor) ||
                               PyType_IsSubtype(Py_TYPE(value), kinds.enumeration))) {
        take(variable, value, path, depth);
      }
    }
  }
};

} // namespace

py::iterator Values::shown() const {
  std::vector<py::object> tuples{py::none()};
  for (size_t i = 1; i < paths.size(); i++) {
    tuples.push_back(py::make_tuple(tuples[paths[i].first], noclobber::shown(paths[i].second.dup())));
  }
  py::list list;
  for (const Noted &row : rows) {
    py::object value = noclobber::shown(row.value.dup());
    if (row.thing != nullptr) {
      auto size = row.size < 0 ? py::object(py::none()) : py::int_(row.size);
      value = py::make_tuple(value, (uintptr_t)row.thing, size);
    }
    list.append(py::make_tuple(tuples[row.path], noclobber::shown(row.key.dup()), value));
  }
  return py::iter(list);
}

Values walk(const py::tuple &named, const py::list &rows, const py::object &function, long depth, bool states,
            const py::list &tensors) {
  learn(named.ptr());
  Values values;
  values.rows.reserve(128);
  values.paths.emplace_back(0, THPObjectPtr());
  Walk all{values, tensors.ptr(), states, {}, {}, {}};
  all.kept.reserve(128);
  all.seen.reserve(128);
  all.note_thing(0, py::str("").ptr(), function.ptr(), name_of(Py_TYPE(function.ptr())));
  all.waiting.push_back({THPObjectPtr::dup(function.ptr()), depth, 0});
  all.take_all(rows.ptr(), 0, depth);
  while (!all.waiting.empty()) {
    auto next = std::move(all.waiting.back());
    all.waiting.pop_back();
    if (all.is_new(next.value)) {
      all.look_into(next.value, next.path, next.depth);
    }
  }
  return values;
}

} // namespace noclobber
