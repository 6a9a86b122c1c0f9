// What Python sees of the native part, which takes the usual saves and writes next to libtorch and leaves all others to
// Python. bridge.py is the only caller.

#include "backward_calls.h"
#include "optimizer_steps.h"
#include "reads.h"
#include "regions.h"
#include "save_hooks.h"
#include "shown.h"
#include "storage_ref.h"
#include "write_kernels.h"

namespace py = pybind11;

namespace noclobber {
namespace {

void connect_all(const py::object &python, uintptr_t moments) {
  hold_lock_at_forks();
  connect(python);
  count_on(reinterpret_cast<std::atomic<int64_t> *>(moments));
}

void begin(bool watching, int64_t from, const py::dict &attentive, const py::dict &attended, const py::dict &followed,
           const py::dict &reread, const py::list &saves) {
  large = from;
  log_with(attentive.ptr(), attended.ptr(), followed.ptr());
  hear_of_reread(reread.ptr());
  python_saves.hear_of_unsorted(saves.ptr());
  flags.careful = flags.keeping = false;
  flags.watching = watching;
  flags.on = true;
  flags.armings++;
  forget_digests(); // nobody has seen what was written since
  take_saves(watching);
}

void end() {
  flags.on = false;
  take_saves(false);
}

void enter_with(const py::object &pack, const py::object &unpack, const py::object &handed, bool contents, bool keeping,
                const py::object &moved) {
  auto kept = [](const py::object &one) { return THPObjectPtr::dup(one.is_none() ? nullptr : one.ptr()); };
  c10::intrusive_ptr<Hooks> hooks;
  if (!pack.is_none()) {
    hooks = c10::make_intrusive<Hooks>();
    hooks->pack = kept(pack);
    hooks->unpack = kept(unpack);
    hooks->handed = kept(handed);
    hooks->moved = kept(moved);
    hooks->contents = contents;
    hooks->keeping = keeping;
  }
  enter(std::move(hooks));
}

// Hands over what a write of a tensor to some bytes of a storage meets. Returns true if another save shares its counter.
bool meet(uintptr_t key, const at::Tensor &tensor, int64_t begin, int64_t end) {
  hand_over(key, {begin, end});
  return !tensor.is_inference() && moves_a_save(tensor.unsafeGetTensorImpl());
}

// Returns what `identity` of witness/digests.py returns, but for the shape, which is a tuple.
py::object identity(const at::Tensor &tensor) {
  const Identity one = identity_of(tensor);
  if (one.begin == nullptr) {
    return py::none();
  }
  return py::make_tuple((uintptr_t)one.begin, one.version, shown(one.sizes), shown(one.strides), shown(one.dtype));
}

void forget(bool places) {
  forget_history();
  forget_steps();
  if (places && alive == 0) { // else they stay until a later call, as saves refer to them
    forget_places();
  }
}

// -- what runs in every training step ------------------------------------------------------------------------------------
//
// Functions of Python's own interface: a call through pybind11 costs several times as much as what these do.

PyObject *share(PyObject *, PyObject *on) {
  share_reads(on == Py_True);
  Py_RETURN_NONE;
}

PyObject *count_alive(PyObject *, PyObject *) { return PyLong_FromSize_t(alive); }

PyObject *number_moment(PyObject *, PyObject *) { return PyLong_FromLongLong(next_moment()); }

PyObject *show_place_here(PyObject *, PyObject *) {
  HANDLE_TH_ERRORS
  return shown_place(place_here()).release();
  END_HANDLE_TH_ERRORS
}

// Hears that a step of this thread is over, also one that raised. Returns the place of the line that calls backward.
PyObject *backward_begins(PyObject *, PyObject *) {
  unmute(thread());
  return show_place_here(nullptr, nullptr);
}

PyObject *saves_filed(PyObject *, PyObject *by_storage) {
  python_saves.hear_of_filed(by_storage);
  Py_RETURN_NONE;
}

// Returns the fingerprint of a tensor; none if it is for Python.
std::optional<uint64_t> readable(const at::Tensor &tensor) {
  return is_usual(tensor.unsafeGetTensorImpl()) && tensor.is_cpu() ? fingerprint(tensor) : std::nullopt;
}

THPObjectPtr shown(std::optional<uint64_t> digest) { return digest ? number(*digest) : THPObjectPtr::none(); }

PyObject *show_fingerprint(PyObject *, PyObject *tensor) {
  HANDLE_TH_ERRORS
  return shown(readable(THPVariable_Unpack(tensor))).release();
  END_HANDLE_TH_ERRORS
}

// Returns what `storage_key` of torch_api/tensors/storages.py returns; None if it is for Python.
PyObject *show_storage_key(PyObject *, PyObject *shown_tensor) {
  auto *tensor = THPVariable_Unpack(shown_tensor).unsafeGetTensorImpl();
  return is_usual(tensor) ? PyLong_FromUnsignedLongLong(storage_key(tensor)) : Py_NewRef(Py_None);
}

// Returns what `storage_ref` of torch_api/tensors/storages.py returns; None if it is for Python.
PyObject *show_storage_ref(PyObject *, PyObject *shown_tensor) {
  HANDLE_TH_ERRORS
  auto *tensor = THPVariable_Unpack(shown_tensor).unsafeGetTensorImpl();
  if (!is_usual(tensor)) {
    Py_RETURN_NONE;
  }
  return storage_ref(tensor).release();
  END_HANDLE_TH_ERRORS
}

// Returns what a custom Function is given, as `given` of core/seen/hot_path.py. None if it is for Python.
PyObject *show_given(PyObject *, PyObject *arguments) {
  HANDLE_TH_ERRORS
  auto inputs = owned(PyList_New(0)), keys = owned(PyList_New(0)), others = owned(PySet_New(nullptr));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
    PyObject *argument = PyTuple_GET_ITEM(arguments, i);
    if (!THPVariable_Check(argument)) {
      continue;
    }
    const at::Tensor &tensor = THPVariable_Unpack(argument);
    auto *impl = tensor.unsafeGetTensorImpl();
    if (!is_usual(impl)) {
      Py_RETURN_NONE;
    }
    auto key = number(storage_key(impl));
    if (!tensor.requires_grad()) {
      holds(PySet_Add(others, key));
      continue;
    }
    THPObjectPtr node(PyObject_GetAttrString(argument, "grad_fn"));
    if (!node && !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
      throw python_error();
    }
    if (!node || node == Py_None) {
      PyErr_Clear(); // PyTorch may refuse to say, and will raise this itself
      continue;
    }
    const auto digest = readable(tensor);
    if (!digest) {
      Py_RETURN_NONE;
    }
    auto input = owned(Py_BuildValue("(OOIOIK)", argument, node.get(), (unsigned)tensor.output_nr(), key.get(),
                                     version_of(impl), (unsigned long long)*digest));
    holds(PyList_Append(inputs, input));
    holds(PyList_Append(keys, key));
  }
  return PyTuple_Pack(3, inputs.get(), keys.get(), others.get());
  END_HANDLE_TH_ERRORS
}

// Returns the writes that were noted at a moment or later to a storage, oldest first, and keeps them.
PyObject *show_writes_since(PyObject *, PyObject *const *asked, Py_ssize_t) {
  HANDLE_TH_ERRORS
  return writes_since(PyLong_AsLongLong(asked[0]), PyLong_AsUnsignedLongLong(asked[1])).release().ptr();
  END_HANDLE_TH_ERRORS
}

// What takes the place of torch.compile's `set_eval_frame`, as `around_regions` of torch_api/dispatch/compile_guard.py says.
PyObject *set_eval_frame(PyObject *asked, PyObject *callback) {
  PyObject *native = PyTuple_GET_ITEM(asked, 0), *begins = PyTuple_GET_ITEM(asked, 1), *ended = PyTuple_GET_ITEM(asked, 2);
  if (callback != Py_None) {
    return PyObject_CallOneArg(begins, callback);
  }
  THPObjectPtr before(PyObject_CallOneArg(native, callback));
  return !before || before == Py_None ? before.release() : PyObject_CallOneArg(ended, before);
}

PyObject *eval_frame_function(PyObject *, PyObject *const *asked, Py_ssize_t) {
  static PyMethodDef method = {"set_eval_frame", set_eval_frame, METH_O, nullptr};
  THPObjectPtr kept(PyTuple_Pack(3, asked[0], asked[1], asked[2]));
  return kept ? PyCFunction_New(&method, kept) : nullptr;
}

template <class Function> constexpr PyCFunction fast(Function function) { return (PyCFunction)(void (*)())function; }

PyMethodDef each_step[] = {
    {"saves_filed", saves_filed, METH_O, nullptr},
    {"outside", fast(show_outside), METH_FASTCALL, nullptr},
    {"region_functions", fast(region_functions), METH_FASTCALL, nullptr},
    {"storage_key", show_storage_key, METH_O, nullptr},
    {"storage_ref", show_storage_ref, METH_O, nullptr},
    {"fingerprint", show_fingerprint, METH_O, nullptr},
    {"given", show_given, METH_O, nullptr},
    {"writes_since", fast(show_writes_since), METH_FASTCALL, nullptr},
    {"eval_frame_function", fast(eval_frame_function), METH_FASTCALL, nullptr},
    {"before_step", fast(before_step), METH_FASTCALL, nullptr},
    {"after_step", fast(after_step), METH_FASTCALL, nullptr},
    {"begin_backward", fast(begin_backward), METH_FASTCALL, nullptr},
    {"end_backward", fast(end_backward), METH_FASTCALL, nullptr},
    {"backward_begins", backward_begins, METH_NOARGS, nullptr},
    {"share", share, METH_O, nullptr},
    {"alive", count_alive, METH_NOARGS, nullptr},
    {"next_moment", number_moment, METH_NOARGS, nullptr},
    {"place_here", show_place_here, METH_NOARGS, nullptr},
    {},
};

} // namespace
} // namespace noclobber

PYBIND11_MODULE(noclobber_hot_path, m) {
  using namespace noclobber;
  py::class_<Values>(m, "Values").def("__iter__", &Values::shown);
  auto define = [&m](const char *name, auto function) { m.def(name, torch::wrap_pybind_function(std::move(function))); };
  define("connect", &connect_all);
  define("enroll_write", [](const std::string &name, const std::string &overload, const py::object &written,
                           std::vector<int> arguments, int flag, bool uncounted, bool moves_none, bool detaches,
                           bool resizes, bool statistics) {
    enroll_write(name, overload, {written.inc_ref().ptr(), std::move(arguments), flag, uncounted, moves_none, detaches,
                                  resizes, statistics});
  });
  define("enroll_passing", &enroll_passing);
  define("walk", &walk);
  define("begin", &begin);
  define("end", &end);
  define("enter", &enter_with);
  define("leave", &leave);
  define("set_step", &set_step);
  define("set_careful", [](bool on) { flags.careful = on; });
  define("set_keeping", [](bool on) { flags.keeping = on; });
  define("hand_over", [](std::optional<uintptr_t> storage) { hand_over(storage); });
  define("meet", &meet);
  define("take_records", &take_records);
  define("take_views", &take_views);
  define("place_of_node", [](int64_t node) { return shown(thread().place_of(node)); });
  define("gradients_behind", &gradients_behind);
  define("forget", &forget);
  if (PyModule_AddFunctions(m.ptr(), each_step) != 0) {
    throw py::error_already_set();
  }
  // For the self-test and the tests.
  define("identity", &identity);
}
