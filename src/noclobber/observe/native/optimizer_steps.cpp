#include "optimizer_steps.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <deque>

#include "history.h"

namespace noclobber {

namespace {

// What a record says of a step: `written` and `step` as Python's.
struct About {
  THPObjectPtr type, written, step;
  const Place *place;
  bool fused;
};

constexpr size_t MOST_STEPS = 256;

// All with the GIL.
auto &known_steps = *new std::deque<About>;
auto &python_steps = *new std::vector<THPObjectPtr>;
auto &known_types = *new std::vector<std::pair<THPObjectPtr, bool>>; // and whether they are PyTorch's own

bool is_ours(PyObject *type) {
  static PyObject *const is_ours = from_python("is_ours");
  for (auto &[known, ours] : known_types) {
    if (known == type) {
      return ours;
    }
  }
  const bool ours = owned(PyObject_CallOneArg(is_ours, type)) == Py_True;
  known_types.emplace_back(THPObjectPtr::dup(type), ours);
  return ours;
}

// Returns what the records of a step say; null where Python must note it.
About *about(PyObject *type, bool fused) {
  static PyObject *const about_step = from_python("about_step");
  const Place *place = place_here();
  for (About &known : known_steps) {
    if (known.type == type && known.place == place && known.fused == fused) {
      return &known;
    }
  }
  if (known_steps.size() >= MOST_STEPS) {
    return nullptr; // a program that steps at ever new lines
  }
  auto shown = shown_place(place);
  auto answer =
      owned(PyObject_CallFunctionObjArgs(about_step, type, fused ? Py_True : Py_False, shown.get(), nullptr));
  PyObject *written = nullptr, *step = nullptr;
  parse(answer, "OO", &written, &step);
  return &known_steps.emplace_back(About{THPObjectPtr::dup(type), THPObjectPtr::dup(written), THPObjectPtr::dup(step),
                                         place, fused});
}

// Keeps a step of Python's, for good, for the records that will say it. Returns false if there are too many.
bool keep(PyObject *step) {
  if (std::find(python_steps.begin(), python_steps.end(), step) == python_steps.end()) {
    if (python_steps.size() >= MOST_STEPS) {
      return false;
    }
    python_steps.push_back(THPObjectPtr::dup(step));
  }
  return true;
}

// Returns true if a step that writes a parameter is for Python.
bool is_for_python(const at::Tensor &parameter) {
  if (!is_usual(parameter.unsafeGetTensorImpl())) {
    return true;
  }
  const uintptr_t key = storage_key(parameter);
  return flags.watching && (is_saved(key) || python_saves.has(key));
}

// Collects the parameters that have a gradient. Returns false if Python must look at one of them.
bool collect(PyObject *optimizer, c10::SmallVector<const at::Tensor *, 32> &parameters) {
  static const Name param_groups("param_groups"), params("params");
  auto groups = param_groups.of(optimizer);
  if (!PyList_Check(groups.get())) {
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(groups.get()); i++) {
    PyObject *these = params.in(PyList_GET_ITEM(groups.get(), i));
    if (these == nullptr || !PyList_Check(these)) {
      return false;
    }
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(these); k++) {
      PyObject *one = PyList_GET_ITEM(these, k);
      if (!THPVariable_Check(one)) {
        return false;
      }
      const at::Tensor &parameter = THPVariable_Unpack(one); // the optimizer holds the group, which holds it
      if (is_for_python(parameter)) {
        return false;
      }
      if (parameter.grad().defined()) {
        parameters.push_back(&parameter);
      }
    }
  }
  return true;
}

// Takes a step that is about to begin. Returns false if it is for Python.
bool take(PyObject *optimizer, PyObject *args, PyObject *kwargs) {
  static const Name defaults("defaults"), differentiable("differentiable"), fused("fused");
  auto is_set = [](PyObject *value) { return value != nullptr && holds(PyObject_IsTrue(value)); };
  Thread &mine = thread();
  unmute(mine);
  auto *type = (PyObject *)Py_TYPE(optimizer);
  if (!flags.on || !mine.usual || mine.step != nullptr || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
      PyTuple_GET_SIZE(args) != 1 || PyDict_GET_SIZE(kwargs) != 0 || !is_ours(type)) {
    return false;
  }
  auto table = defaults.of(optimizer);
  c10::SmallVector<const at::Tensor *, 32> parameters;
  if (is_set(differentiable.in(table)) || !collect(optimizer, parameters)) {
    return false;
  }
  About *known = about(type, is_set(fused.in(table)));
  if (known == nullptr) {
    return false;
  }
  for (const at::Tensor *one : parameters) {
    note(known->written, known->step, known->place, *one);
  }
  mine.muted = true;
  set_key(false);
  return true;
}

} // namespace

PyObject *before_step(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  static const Name before("before_step");
  auto taken = [&] {
    const bool is_usual_call = count == 3 && PyTuple_Check(arguments[1]) && PyDict_Check(arguments[2]);
    return is_usual_call && take(arguments[0], arguments[1], arguments[2]) ? THPObjectPtr::none() : THPObjectPtr();
  };
  return taken_or(taken, [&] { return by_python(before, arguments, count); });
}

PyObject *after_step(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  static const Name after("after_step");
  Thread &mine = thread();
  if (mine.muted) {
    unmute(mine);
    Py_RETURN_NONE;
  }
  return by_python(after, arguments, count);
}

void set_step(const pybind11::object &step, const pybind11::object &stepped) {
  Thread &mine = thread();
  mine.usual = step.is_none() || keep(step.ptr());
  mine.step = step.is_none() ? nullptr : step.ptr();
  mine.steps_alone = stepped.is_none();
  mine.stepped.clear();
  if (!mine.steps_alone) {
    for (pybind11::handle storage : stepped) {
      if (!storage.is_none()) {
        mine.stepped.push_back(storage.cast<uintptr_t>());
      }
    }
    std::sort(mine.stepped.begin(), mine.stepped.end());
  }
}

void forget_steps() {
  known_steps.clear();
  known_types.clear();
}

} // namespace noclobber
