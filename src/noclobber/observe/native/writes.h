// The kernels of the operators that write, and the log of writes. A write that nothing unusual is about is noted here; all
// others go on to Python's kernel, which lies on the next key below and does what it does without this module.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>

#include "saves.h"

namespace noclobber {

constexpr auto KEY_OF_PYTHON = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr size_t RECENT = 8192; // writes that are kept, needed or not, as in core/history.py

// What an operator writes: a `Written` of Python, and the positions of its arguments. It lives as long as the process.
struct Operator {
  PyObject *written;
  std::vector<int> arguments;
  int flag; // the position of the flag that makes it write; -1 if it always writes
  bool uncounted, moves_none, detaches, resizes, statistics;
};

// -- the log -----------------------------------------------------------------------------------------------------------

struct Record {
  PyObject *written, *step; // borrowed from an Operator or from `known_steps`; `step` is null outside of optimizers
  const Place *place;
  uintptr_t key;
  int64_t version, offset;
  at::DimVector sizes, strides;
  at::ScalarType dtype;
  bool in_backward;
  int64_t node, moment;
  bool in_graph;
};

struct ManyViews {
  int64_t node;
  PyObject *op;
  const Place *place;
};

inline std::mutex log_lock; // as table_lock
inline std::vector<Record> records;
inline std::vector<ManyViews> views;
inline size_t records_limit = RECENT;

inline int64_t next_moment() { return latest_moment->fetch_add(1, std::memory_order_relaxed) + 1; }

// -- what Python says ----------------------------------------------------------------------------------------------------

struct Flags {
  std::atomic<bool> on{false};       // whether anything is watched
  std::atomic<bool> watching{false}; // whether saves are recorded
  std::atomic<bool> careful{false};  // whether counted writes must be checked too
  std::atomic<bool> keeping{false};  // whether bytes are preserved
};
inline Flags flags;
inline PyObject *attentive = nullptr; // a dictionary of those to call before each write; only its size is looked at
inline PyObject *attended = nullptr; // a dictionary by storage: those to call before the writes to one
inline PyObject *returned = nullptr; // a dictionary by storage: the views that custom Functions returned
inline PyObject *failed = nullptr;    // Python's function, called with an operator that raised

// Asks about a storage, or about all of them (0). True also where it fails: then Python decides. Throws what a signal
// handler raised meanwhile, as KeyboardInterrupt.
inline bool answers(PyObject *function, uintptr_t key) {
  Gil gil;
  Owned number(key != 0 ? PyLong_FromUnsignedLongLong(key) : Py_NewRef(Py_None));
  Owned answer(number != nullptr ? PyObject_CallOneArg(function, number) : nullptr);
  const bool yes = answer == nullptr || PyObject_IsTrue(answer) != 0;
  clear_error();
  return yes;
}

// True if a dictionary may have this key. True also where it fails, as `answers`.
inline bool has_key(PyObject *dictionary, uintptr_t key) {
  Gil gil;
  Owned number(PyLong_FromUnsignedLongLong(key));
  const bool there = number == nullptr || PyDict_Contains(dictionary, number) != 0;
  clear_error();
  return there;
}

inline bool is_in(PyObject *dictionary, uintptr_t key) { return PyDict_GET_SIZE(dictionary) != 0 && has_key(dictionary, key); }

// One of Python's tables by storage (`LiveSaves`): what is not sorted yet, and what is filed.
struct PythonTable {
  PyObject *unsorted = nullptr, *filed = nullptr;
  std::atomic<bool> any_filed{false};
  PyObject *has_alive = nullptr; // Python's function: whether something is alive on this storage, or at all (None)

  bool any() const { return any_filed || (unsorted != nullptr && PyList_GET_SIZE(unsorted) != 0); }

  bool any_alive() const { return any() && answers(has_alive, 0); }

  // Python is asked only where its answer may be yes: a call costs as much as all else that is done for a write.
  bool has(uintptr_t key) const {
    if (!any()) {
      return false;
    }
    Gil gil; // what moves from one part to the other is always in one of them while it is held
    return (PyList_GET_SIZE(unsorted) != 0 || has_key(filed, key)) && answers(has_alive, key);
  }
};
inline PythonTable python_saves;   // the live table
inline PythonTable python_rereads; // memory that will be read again though no save lies on it

// -- noting ------------------------------------------------------------------------------------------------------------

// Drops old records that no finding can need, as `Memory.prune` does. It is called by the thread that noted the last.
inline void prune() {
  std::vector<Record> old;
  {
    std::lock_guard<std::mutex> guard(log_lock);
    old.swap(records);
  }
  const size_t newest = old.size() > RECENT / 4 ? old.size() - RECENT / 4 : 0;
  std::unordered_map<uintptr_t, bool> needed;
  std::vector<Record> left;
  std::exception_ptr interrupted;
  for (size_t i = 0; i < old.size(); i++) {
    bool stays = i >= newest;
    if (!stays && flags.watching) {
      auto [at, fresh] = needed.try_emplace(old[i].key, true);
      if (fresh && !interrupted) {
        try {
          at->second = is_saved(old[i].key) || python_saves.has(old[i].key) || python_rereads.has(old[i].key);
        } catch (const python_error &) {
          interrupted = std::current_exception();
        }
      }
      stays = at->second;
    }
    if (stays) {
      left.push_back(std::move(old[i]));
    }
  }
  {
    std::lock_guard<std::mutex> guard(log_lock);
    left.insert(left.end(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
    records.swap(left);
    records_limit = std::max(RECENT, 2 * records.size());
  }
  if (interrupted) {
    std::rethrow_exception(interrupted);
  }
}

inline void note(PyObject *written, PyObject *step, const Place *place, const at::Tensor &tensor, uintptr_t key) {
  auto *impl = tensor.unsafeGetTensorImpl();
  auto sizes = impl->sizes(), strides = impl->strides();
  bool full;
  {
    std::lock_guard<std::mutex> guard(log_lock);
    records.push_back(Record{written, step, place, key, (int64_t)version_of(impl), impl->storage_offset(),
                             at::DimVector(sizes.begin(), sizes.end()), at::DimVector(strides.begin(), strides.end()),
                             tensor.scalar_type(), torch::autograd::get_current_graph_task_id() != -1, (int64_t)at::sequence_number::peek(),
                             next_moment(), tensor.requires_grad()});
    full = records.size() > records_limit;
  }
  if (full) {
    prune();
  }
}

inline void note_views(PyObject *op) {
  if (!c10::GradMode::is_enabled()) {
    return;
  }
  const Place *place = place_here();
  std::lock_guard<std::mutex> guard(log_lock);
  if (views.size() >= 2 * RECENT) {
    views.erase(views.begin(), views.begin() + RECENT);
  }
  views.push_back({(int64_t)at::sequence_number::peek(), op, place});
}

// -- deciding ----------------------------------------------------------------------------------------------------------

enum Way { IGNORED, NOTED, FOR_PYTHON };

// Returns true if the write moves the version of all saves of the tensor.
inline bool is_counted(const Operator &op, const at::Tensor &tensor) {
  return tensor.requires_grad() && !op.uncounted && !op.detaches && is_plain(tensor.unsafeGetTensorImpl(), false);
}

// Returns what `private.is_only_holder` returns. The Python object of a storage, where there is one, holds it too.
inline bool is_only_holder(const c10::Storage &storage) {
  const bool in_python = storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
  return storage.use_count() <= 1 + (size_t)in_python && storage.resizable();
}

// Returns true if a write hides something from autograd: gradients are off, and what is written is in the graph, or a view
// of what is.
inline bool is_untracked(const at::Tensor &tensor) {
  return !c10::GradMode::is_enabled() &&
         (tensor.requires_grad() || (tensor.is_view() && tensor._base().requires_grad()));
}

inline Way way_of(const Operator &op, const at::Tensor &tensor) {
  auto *impl = tensor.unsafeGetTensorImpl();
  if (!is_usual(impl)) {
    return FOR_PYTHON;
  }
  if (!flags.watching) {
    const bool moves_none = op.moves_none || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
    return moves_none ? IGNORED : NOTED;
  }
  if (is_untracked(tensor)) {
    return FOR_PYTHON;
  }
  const uintptr_t key = storage_key(impl);
  if (is_in(attended, key) || (!c10::GradMode::is_enabled() && is_in(returned, key))) {
    return FOR_PYTHON;
  }
  const bool in_graph = tensor.requires_grad();
  const bool counted = is_counted(op, tensor);
  if (counted && !flags.careful) {
    return NOTED;
  }
  if ((op.detaches && in_graph) || (op.resizes ? is_saved(key) : may_clobber(key, impl)) || python_saves.has(key)) {
    return FOR_PYTHON;
  }
  if (in_graph || (!op.uncounted && moves_a_save(impl))) {
    return NOTED;
  }
  // No view of the memory is there that PyTorch could refuse, or no version moves.
  const bool alone = !c10::GradMode::is_enabled() || is_only_holder(tensor.storage()) ||
                     c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  return !alone ? NOTED : python_rereads.has(key) ? FOR_PYTHON : IGNORED;
}

// Returns true in an autocast region: Python looks there at what autograd does not see (stale_casts.py).
inline bool in_autocast() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

// Returns true if the engine itself writes: no code of Python that it called. Its own threads may have no frame at all.
// Nobody waits for such a write (gradient_writes.py has the same name), and a backward of many views makes thousands.
inline bool is_of_engine() {
  if (torch::autograd::get_current_graph_task_id() == -1) {
    return false;
  }
  void *frame = noclobber_innermost_frame();
  return frame == nullptr || PyUnicode_CompareWithASCIIString(((PyCodeObject *)noclobber_code_of(frame))->co_name,
                                                              "_engine_run_backward") == 0;
}

inline bool is_for_python(const Thread &mine) {
  return !flags.on || !mine.usual ||
         (flags.watching && ((PyDict_GET_SIZE(attentive) != 0 && !is_of_engine()) ||
                             (!c10::GradMode::is_enabled() && in_autocast())));
}

// -- kernels -----------------------------------------------------------------------------------------------------------

struct KeyOff {
  explicit KeyOff(Overwriting *overwriting) : above(thread().overwriting) {
    c10::impl::tls_set_dispatch_key_included(KEY, false);
    thread().overwriting = overwriting;
  }
  ~KeyOff() {
    thread().overwriting = above;
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  }
  Overwriting *above;
};

inline void pass_to_python(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  handle.redispatchBoxed(below | c10::DispatchKeySet(KEY_OF_PYTHON), stack);
}

// Tells Python of an operator that raised, and throws its error on as Python's.
[[noreturn]] inline void throw_on(const Operator &op, const at::Tensor &tensor) {
  Gil gil;
  torch::translate_exception_to_python(std::current_exception());
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (error != nullptr && PyErr_GivenExceptionMatches(error, PyExc_RuntimeError)) {
    Owned written(tensor.defined() ? THPVariable_Wrap(tensor) : Py_NewRef(Py_None));
    Owned done(written != nullptr ? PyObject_CallFunctionObjArgs(failed, op.written, (PyObject *)written, error, nullptr)
                                  : nullptr);
    try {
      clear_error();
    } catch (const python_error &) {
      Owned first(type), second(error), third(trace);
      throw;
    }
  }
  PyErr_Restore(type, error, trace);
  python_error raised;
  raised.persist();
  throw raised;
}

struct WriteKernel final : c10::OperatorKernel {
  explicit WriteKernel(Operator *op) : op(op) {}

  void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    const size_t count = handle.schema().arguments().size();
    at::Tensor first;
    Overwriting overwriting{op->statistics, {}};
    if (is_for_python(thread()) || !note_all(stack, count, first, overwriting)) {
      return pass_to_python(handle, keys, stack);
    }
    KeyOff off(&overwriting);
    try {
      handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY_OF_PYTHON), stack);
    } catch (...) {
      throw_on(*op, first);
    }
  }

private:
  // Notes what the operator is about to write; `first` is the first of it. Returns false if it is for Python.
  bool note_all(torch::jit::Stack *stack, size_t count, at::Tensor &first, Overwriting &overwriting) const {
    if (op->flag >= 0 && !torch::jit::peek(*stack, op->flag, count).toBool()) {
      return true;
    }
    c10::SmallVector<const at::Tensor *, 4> noted;
    for (int position : op->arguments) {
      const c10::IValue &value = torch::jit::peek(*stack, position, count);
      if (value.isTensor()) {
        if (!look(value.toTensor(), first, noted, overwriting)) {
          return false;
        }
      } else if (value.isTensorList()) {
        for (const c10::IValue &element : value.toListRef()) {
          if (!look(element.toTensor(), first, noted, overwriting)) {
            return false;
          }
        }
      } else if (!value.isNone()) {
        return false;
      }
    }
    if (flags.keeping && c10::GradMode::is_enabled() && gets_beside(stack, count)) {
      return false;
    }
    if (!noted.empty()) {
      const Place *place = place_here();
      if (flags.watching && place != nullptr && place->looks > 0) {
        place->looks--;
        for (const at::Tensor *tensor : noted) {
          const uintptr_t key = storage_key(tensor->unsafeGetTensorImpl());
          if (is_counted(*op, *tensor) && (is_saved(key) || python_saves.has(key))) {
            return false; // Python looks who holds the memory
          }
        }
      }
      for (const at::Tensor *tensor : noted) {
        note(op->written, nullptr, place, *tensor, storage_key(tensor->unsafeGetTensorImpl()));
      }
    }
    return true;
  }

  // Whether the operator gets memory that it writes by another argument too: it may save that before it writes.
  bool gets_beside(torch::jit::Stack *stack, size_t count) const {
    c10::SmallVector<uintptr_t, 4> written, beside;
    for (size_t position = 0; position < count; ++position) {
      const bool writes = std::find(op->arguments.begin(), op->arguments.end(), (int)position) != op->arguments.end();
      auto &keys = writes ? written : beside;
      const c10::IValue &value = torch::jit::peek(*stack, position, count);
      if (value.isTensor()) {
        add_key(value.toTensor(), keys);
      } else if (value.isTensorList()) {
        for (const c10::IValue &element : value.toListRef()) {
          add_key(element.toTensor(), keys);
        }
      }
    }
    return std::any_of(beside.begin(), beside.end(), [&](uintptr_t key) {
      return std::find(written.begin(), written.end(), key) != written.end();
    });
  }

  static void add_key(const at::Tensor &tensor, c10::SmallVector<uintptr_t, 4> &keys) {
    if (tensor.defined() && tensor.unsafeGetTensorImpl()->has_storage()) {
      keys.push_back(storage_key(tensor.unsafeGetTensorImpl()));
    }
  }

  bool look(const at::Tensor &tensor, at::Tensor &first, c10::SmallVector<const at::Tensor *, 4> &noted,
            Overwriting &overwriting) const {
    if (!tensor.defined()) {
      return true;
    }
    if (!first.defined()) {
      first = tensor;
    }
    switch (way_of(*op, tensor)) {
    case FOR_PYTHON:
      return false;
    case NOTED:
      noted.push_back(&tensor);
      break;
    case IGNORED:
      break;
    }
    if (!is_counted(*op, tensor)) {
      auto *impl = tensor.unsafeGetTensorImpl();
      overwriting.ranges.push_back({storage_key(impl), first_byte(impl)});
    }
    return true;
  }

  Operator *op;
};

// Runs an operator without kernels for what it calls. `views` is the operator's name if it returns several views.
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
    handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY_OF_PYTHON), stack);
  }

private:
  PyObject *views;
};

inline std::vector<c10::RegistrationHandleRAII> registered;

template <class Kernel> void enroll_kernel(const std::string &name, const std::string &overload, Kernel *kernel) {
  registered.push_back(c10::Dispatcher::singleton().registerImpl(
      {name, overload}, KEY, c10::KernelFunction::makeFromBoxedFunctor(std::unique_ptr<Kernel>(kernel)), std::nullopt,
      nullptr, "noclobber"));
}

} // namespace noclobber
