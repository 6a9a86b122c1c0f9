// Optimizer steps: PyTorch's own, without a closure, while no save is alive. Only such a step is taken here, as it needs
// no more than that the log rests; `install` notes the parameters too. All others go to core/optimizer_steps.py.
#pragma once

#include "writes.h"

namespace noclobber {

// Python's functions: the hooks before and after a step; `is_ours(type)` returns whether a type of optimizers is
// PyTorch's own; `about(type, fused, place)` returns what a record says of the step, as (written, step).
inline PyObject *before_in_python = nullptr, *after_in_python = nullptr;
inline PyObject *is_ours = nullptr, *about_step = nullptr;

struct AboutStep {
  PyObject *type, *written, *step;
  const Place *place;
  bool fused;
};

constexpr size_t MOST_STEPS = 256;
// All with the GIL. What is held here is dropped by `forget_steps`.
inline std::vector<AboutStep> known_steps;
inline std::vector<std::pair<PyObject *, bool>> known_types;

class Name { // a name of Python's, made once
public:
  explicit Name(const char *text) : name(PyUnicode_InternFromString(text)) {}
  PyObject *of(PyObject *object) const { return PyObject_GetAttr(object, name); }
  bool set(PyObject *object, PyObject *value) const { return value != nullptr && PyObject_SetAttr(object, name, value) == 0; }
  // The same for a dict: the value is borrowed, and null where the table is none or lacks the name.
  PyObject *in(PyObject *table) const { return PyDict_Check(table) ? PyDict_GetItemWithError(table, name) : nullptr; }
  bool put(PyObject *table, PyObject *value) const { return value != nullptr && PyDict_SetItem(table, name, value) == 0; }

private:
  PyObject *name;
};

inline bool is_set(PyObject *value) { return value != nullptr && PyObject_IsTrue(value) == 1; }

inline bool is_type_ours(PyObject *type) {
  for (auto &[known, ours] : known_types) {
    if (known == type) {
      return ours;
    }
  }
  Owned answer(PyObject_CallOneArg(is_ours, type));
  if (answer == nullptr) {
    return false;
  }
  const bool ours = answer == Py_True;
  known_types.emplace_back(Py_NewRef(type), ours);
  return ours;
}

// Returns what the records of a step say; null where Python must note it.
inline const AboutStep *about(PyObject *type, bool fused) {
  const Place *place = place_here();
  for (const AboutStep &known : known_steps) {
    if (known.type == type && known.place == place && known.fused == fused) {
      return &known;
    }
  }
  if (known_steps.size() >= MOST_STEPS) {
    return nullptr; // a program that steps at ever new lines
  }
  Owned shown(shown_place(place));
  if (shown == nullptr) {
    return nullptr;
  }
  Owned answer(PyObject_CallFunctionObjArgs(about_step, type, fused ? Py_True : Py_False, (PyObject *)shown, nullptr));
  PyObject *written = nullptr, *step = nullptr;
  if (answer == nullptr || !PyArg_ParseTuple(answer, "OO", &written, &step)) {
    return nullptr;
  }
  known_steps.push_back({Py_NewRef(type), Py_NewRef(written), Py_NewRef(step), place, fused});
  return &known_steps.back();
}

// Collects the parameters that have a gradient. Returns false if Python must look at one of them.
inline bool collect(PyObject *optimizer, c10::SmallVector<const at::Tensor *, 32> &parameters) {
  static const Name param_groups("param_groups"), params("params");
  Owned groups(param_groups.of(optimizer));
  bool usual = groups != nullptr && PyList_Check(groups);
  for (Py_ssize_t i = 0; usual && i < PyList_GET_SIZE((PyObject *)groups); i++) {
    PyObject *these = params.in(PyList_GET_ITEM((PyObject *)groups, i));
    usual = these != nullptr && PyList_Check(these);
    for (Py_ssize_t k = 0; usual && k < PyList_GET_SIZE(these); k++) {
      PyObject *one = PyList_GET_ITEM(these, k);
      usual = THPVariable_Check(one) && is_usual(THPVariable_Unpack(one).unsafeGetTensorImpl());
      if (usual && THPVariable_Unpack(one).grad().defined()) {
        parameters.push_back(&THPVariable_Unpack(one)); // the optimizer holds the group, which holds the parameter
      }
    }
  }
  return usual;
}

inline void unmute(Thread &mine) {
  if (mine.muted) {
    mine.muted = false;
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  }
}

// Takes a step that is about to begin. Returns false if it is for Python.
inline bool take_step(PyObject *optimizer, PyObject *args, PyObject *kwargs) {
  static const Name defaults("defaults"), differentiable("differentiable"), fused("fused");
  Thread &mine = thread();
  unmute(mine); // a step that raised did not reach its end
  if (!flags.on || !mine.usual || c10::impl::TorchDispatchModeTLS::any_modes_set() || PyTuple_GET_SIZE(args) != 1 ||
      PyDict_GET_SIZE(kwargs) != 0) {
    return false;
  }
  if (flags.watching && (alive != 0 || python_saves.any_alive() || python_rereads.any_alive())) {
    return false;
  }
  auto *type = (PyObject *)Py_TYPE(optimizer);
  Owned table(is_type_ours(type) ? defaults.of(optimizer) : nullptr);
  if (table == nullptr || is_set(differentiable.in(table))) {
    return false;
  }
  const bool is_fused = is_set(fused.in(table));
  c10::SmallVector<const at::Tensor *, 32> parameters;
  const AboutStep *known = collect(optimizer, parameters) ? about(type, is_fused) : nullptr;
  if (known == nullptr) {
    return false;
  }
  for (const at::Tensor *one : parameters) {
    note(known->written, known->step, known->place, *one, storage_key(one->unsafeGetTensorImpl()));
  }
  mine.muted = true;
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  return true;
}

// Returns what `taken` returns; what a function of Python's returns where that is null, or fails for want of memory. An
// interrupt is the program's. No C++ exception may get into CPython.
template <class Taken>
PyObject *taken_or_by_python(Taken taken, PyObject *function, PyObject *const *arguments, Py_ssize_t count) {
  try {
    if (PyObject *result = taken()) {
      return result;
    }
    clear_error();
  } catch (python_error &interrupted) {
    interrupted.restore();
    return nullptr;
  } catch (const std::exception &) {
    PyErr_Clear();
  }
  return PyObject_Vectorcall(function, arguments, (size_t)count, nullptr);
}

// The hooks on all optimizers.
inline PyObject *before_step(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  auto taken = [&]() -> PyObject * {
    const bool usual = count == 3 && PyTuple_Check(arguments[1]) && PyDict_Check(arguments[2]);
    return usual && take_step(arguments[0], arguments[1], arguments[2]) ? Py_NewRef(Py_None) : nullptr;
  };
  return taken_or_by_python(taken, before_in_python, arguments, count);
}

inline PyObject *after_step(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  Thread &mine = thread();
  if (mine.muted) {
    unmute(mine);
    Py_RETURN_NONE;
  }
  return PyObject_Vectorcall(after_in_python, arguments, (size_t)count, nullptr);
}

// Drops what is known of steps. Records may refer to it until then.
inline void forget_steps() { // with the GIL
  std::vector<PyObject *> dropped;
  for (const AboutStep &known : known_steps) {
    dropped.insert(dropped.end(), {known.type, known.written, known.step});
  }
  for (auto &[type, ours] : known_types) {
    dropped.push_back(type);
  }
  known_steps.clear();
  known_types.clear();
  for (PyObject *object : dropped) {
    Py_DECREF(object);
  }
}

} // namespace noclobber
