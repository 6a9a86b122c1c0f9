#include "write_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace noclobber {

namespace {

constexpr auto KEY_OF_PYTHON = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

struct KeyOff {
  explicit KeyOff(Overwriting *overwriting) : above(std::exchange(thread().overwriting, overwriting)) { set_key(false); }
  ~KeyOff() {
    thread().overwriting = above;
    set_key(true);
  }
  Overwriting *above;
};

void pass_to_python(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  handle.redispatchBoxed(below | c10::DispatchKeySet(KEY_OF_PYTHON), stack);
}

void pass_below(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
  handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY_OF_PYTHON), stack);
}

// Returns the tensors that an operator which raised was given, as a tuple; None if they are not known. PyTorch takes the
// arguments off the stack when an operator has returned, but moves lists out before (torch 2.13;
// tests/observe/native/test_refused.py).
THPObjectPtr tensors_on(const torch::jit::Stack &stack, const c10::FunctionSchema &schema) {
  const auto &arguments = schema.arguments();
  const bool lists = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument &one) {
    return one.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
  if (lists || stack.size() < arguments.size()) {
    return THPObjectPtr::none();
  }
  std::vector<at::Tensor> found;
  for (const c10::IValue &value : torch::jit::last(stack, arguments.size())) {
    if (value.isTensor() && value.toTensor().defined()) {
      found.push_back(value.toTensor());
    }
  }
  auto tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(found.size())));
  for (size_t i = 0; i < found.size(); i++) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), owned(THPVariable_Wrap(found[i])).release());
  }
  return tuple;
}

// Tells Python of an operator that raised, with what it was given, and throws its error on as Python's.
[[noreturn]] void throw_on(const Operator &op, const at::Tensor &tensor, const torch::jit::Stack &stack,
                           const c10::FunctionSchema &schema) {
  Gil gil;
  torch::translate_exception_to_python(std::current_exception());
  python_error raised;
  raised.persist();
  PyObject *type = raised.type;
  if (PyErr_GivenExceptionMatches(type, PyExc_RuntimeError) != 0) {
    unless_fails([&] {
      static PyObject *const failed = from_python("failed");
      PyErr_NormalizeException(&raised.type, &raised.value, &raised.traceback);
      auto written = tensor.defined() ? owned(THPVariable_Wrap(tensor)) : THPObjectPtr::none();
      auto given = tensors_on(stack, schema);
      owned(PyObject_CallFunctionObjArgs(failed, op.written, written.get(), given.get(), raised.value, nullptr));
      return true;
    }, false);
  }
  throw raised;
}

// Calls a function with each tensor in an argument, until it returns false; returns whether it has not. What is no tensor
// is `otherwise`.
template <class Visit> bool each_tensor(const c10::IValue &value, bool otherwise, Visit visit) {
  if (value.isTensor()) {
    return visit(value.toTensor());
  }
  if (value.isTensorList()) {
    auto elements = value.toListRef();
    return std::all_of(elements.begin(), elements.end(), [&](const c10::IValue &one) { return visit(one.toTensor()); });
  }
  return otherwise || value.isNone();
}

struct WriteKernel final : c10::OperatorKernel {
  explicit WriteKernel(Operator op) : op(std::move(op)) {}

  void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    const size_t count = handle.schema().arguments().size();
    at::Tensor first;
    Overwriting overwriting{op.statistics, {}};
    if (are_for_python(thread()) || !note_all(stack, count, first, overwriting)) {
      return pass_to_python(handle, keys, stack);
    }
    KeyOff off(&overwriting);
    try {
      pass_below(handle, keys, stack);
    } catch (...) {
      throw_on(op, first, *stack, handle.schema());
    }
  }

private:
  using Tensors = c10::SmallVector<const at::Tensor *, 4>;

  // Notes what the operator is about to write; `first` is the first of it. Returns false if it is for Python.
  bool note_all(torch::jit::Stack *stack, size_t count, at::Tensor &first, Overwriting &overwriting) const {
    if (op.flag >= 0 && !torch::jit::peek(*stack, op.flag, count).toBool()) {
      return true;
    }
    Tensors noted;
    for (int position : op.arguments) {
      auto look = [&](const at::Tensor &tensor) { return looks_at(tensor, first, noted, overwriting); };
      if (!each_tensor(torch::jit::peek(*stack, position, count), false, look)) {
        return false;
      }
    }
    if (flags.keeping && c10::GradMode::is_enabled() && gets_beside(stack, count)) {
      return false;
    }
    const Place *place = noted.empty() ? nullptr : place_here();
    if (flags.watching && place != nullptr && place->looks > 0) {
      place->looks--;
      if (std::any_of(noted.begin(), noted.end(), [&](const at::Tensor *tensor) { return meets_a_save(*tensor); })) {
        return false; // Python looks who holds the memory
      }
    }
    for (const at::Tensor *tensor : noted) {
      note(op.written, thread().step_that_writes(storage_key(*tensor)), place, *tensor);
    }
    return true;
  }

  bool meets_a_save(const at::Tensor &tensor) const {
    const uintptr_t key = storage_key(tensor);
    return is_counted(op, tensor) && (is_saved(key) || python_saves.has(key));
  }

  // Whether the operator gets memory that it writes by another argument too: it may save that before it writes.
  bool gets_beside(torch::jit::Stack *stack, size_t count) const {
    c10::SmallVector<uintptr_t, 4> written, beside;
    for (size_t position = 0; position < count; ++position) {
      const bool writes = std::find(op.arguments.begin(), op.arguments.end(), (int)position) != op.arguments.end();
      each_tensor(torch::jit::peek(*stack, position, count), true, [&](const at::Tensor &tensor) {
        if (tensor.defined() && tensor.has_storage()) {
          (writes ? written : beside).push_back(storage_key(tensor));
        }
        return true;
      });
    }
    return std::find_first_of(beside.begin(), beside.end(), written.begin(), written.end()) != beside.end();
  }

  bool looks_at(const at::Tensor &tensor, at::Tensor &first, Tensors &noted, Overwriting &overwriting) const {
    if (!tensor.defined()) {
      return true;
    }
    if (!first.defined()) {
      first = tensor;
    }
    const Way way = way_of(op, tensor);
    if (way == Way::FOR_PYTHON) {
      return false;
    }
    if (way == Way::NOTED) {
      noted.push_back(&tensor);
    }
    if (!is_counted(op, tensor)) {
      overwriting.ranges.push_back({storage_key(tensor), first_byte(tensor.unsafeGetTensorImpl())});
    }
    return true;
  }

  Operator op;
};

struct PassingKernel final : c10::OperatorKernel {
  explicit PassingKernel(PyObject *views) : views(views) {}

  void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    if (!flags.on) {
      return pass_to_python(handle, keys, stack);
    }
    if (views != nullptr) {
      note_views(views);
    }
    // The key stays included: this tells a save inside that no operator is writing.
    c10::impl::ExcludeDispatchKeyGuard passed_over(KEY);
    pass_below(handle, keys, stack);
  }

private:
  PyObject *views;
};

template <class Kernel> void enroll(const std::string &name, const std::string &overload, Kernel *kernel) {
  static std::vector<c10::RegistrationHandleRAII> registered;
  registered.push_back(c10::Dispatcher::singleton().registerImpl(
      {name, overload}, KEY, c10::KernelFunction::makeFromBoxedFunctor(std::unique_ptr<Kernel>(kernel)), std::nullopt,
      nullptr, "noclobber"));
}

} // namespace

void enroll_write(const std::string &name, const std::string &overload, Operator op) {
  enroll(name, overload, new WriteKernel(std::move(op)));
}

void enroll_passing(const std::string &name, const std::string &overload, const pybind11::str &views) {
  enroll(name, overload, new PassingKernel(pybind11::len(views) != 0 ? views.inc_ref().ptr() : nullptr));
}

} // namespace noclobber
