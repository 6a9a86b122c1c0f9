// The part of noclobber that runs on every save and every write, next to libtorch: a filter that takes the usual ones and
// leaves all others to Python. bridge.py is the only caller.
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <unordered_set>

#include <pthread.h>

#include "backwards.h"
#include "reads.h"

namespace py = pybind11;

namespace noclobber {
namespace {

// Keeps a new reference in the place of an old one.
void replace(PyObject *&kept, const py::object &by) {
  PyObject *old = kept;
  kept = by.is_none() ? nullptr : Py_NewRef(by.ptr());
  Py_XDECREF(old);
}

// No thread holds one of these while it takes another, or while it waits for the GIL.
std::array<std::mutex *, 4> all_locks() { return {&places_lock, &table_lock, &log_lock, &reads_lock}; }

// Holds all locks while this process forks, so that the child finds whole what they guard, and the locks free.
void hold_locks_at_forks() {
  auto lock = [] {
    for (std::mutex *one : all_locks()) {
      one->lock();
    }
  };
  auto unlock = [] {
    for (std::mutex *one : all_locks()) {
      one->unlock();
    }
  };
  static const int held = pthread_atfork(lock, unlock, unlock);
  TORCH_CHECK(held == 0, "no memory");
}

void connect(uintptr_t moments, const py::object &parameter, const py::object &kinds, const py::object &place,
             const py::object &handles, const py::object &saved, const py::object &reread, const py::object &refused) {
  hold_locks_at_forks();
  latest_moment = reinterpret_cast<std::atomic<int64_t> *>(moments);
  replace(parameter_type, parameter);
  replace(kind_of, kinds);
  replace(place_in_python, place);
  replace(make_handle, handles);
  replace(python_saves.has_alive, saved);
  replace(python_rereads.has_alive, reread);
  replace(failed, refused);
}

void enroll_write(const std::string &name, const std::string &overload, const py::object &written,
                  std::vector<int> arguments, int flag, bool uncounted, bool moves_none, bool detaches, bool resizes,
                  bool statistics) {
  auto *op = new Operator{written.inc_ref().ptr(), std::move(arguments), flag,  uncounted,
                          moves_none,              detaches,             resizes, statistics};
  enroll_kernel(name, overload, new WriteKernel(op));
}

void enroll_passing(const std::string &name, const std::string &overload, const py::str &views) {
  enroll_kernel(name, overload, new PassingKernel(py::len(views) != 0 ? views.inc_ref().ptr() : nullptr));
}

void connect_steps(const py::object &before, const py::object &after, const py::object &ours, const py::object &words) {
  replace(before_in_python, before);
  replace(after_in_python, after);
  replace(is_ours, ours);
  replace(about_step, words);
}

void connect_backwards(const py::object &begins, const py::object &ends, const py::object &call, const py::object &hooks,
                       const py::object &identity, const py::object &accumulate, const py::object &state,
                       const py::object &plain, const py::object &of, const std::string &key, Py_ssize_t lines) {
  replace(begins_in_python, begins);
  replace(ends_in_python, ends);
  replace(make_call, call);
  replace(program_has_hooks, hooks);
  replace(identity_in_python, identity);
  replace(accumulated, accumulate);
  replace(context, state);
  replace(watchers, plain);
  replace(local_state, of);
  call_key = key;
  lines_kept = lines;
}

void connect_reads(const py::tuple &named) {
  PyObject *const *of = PySequence_Fast_ITEMS(named.inc_ref().ptr());
  auto type = [&](int number) { return (PyTypeObject *)of[number]; };
  kinds = {of[0],   of[1],   of[2],   of[3], of[4], type(5),
           type(6), type(7), type(8), of[9], of[10], of[11], PyLong_AsSsize_t(of[12]), PyLong_AsSsize_t(of[13])};
}

bool begin(bool watching, int64_t from, const py::object &looks, const py::object &looks_by_key,
           const py::object &saves, const py::object &rereads, const py::object &views_returned) {
  large = from;
  replace(attentive, looks);
  replace(attended, looks_by_key);
  replace(python_saves.unsorted, saves);
  replace(python_rereads.unsorted, rereads);
  replace(returned, views_returned);
  flags.careful = flags.keeping = false;
  flags.watching = watching;
  flags.on = true;
  armings++;
  {
    std::lock_guard<std::mutex> guard(table_lock);
    saved_digests.clear(); // nobody has seen what was written since
  }
  return !watching || take_saves(true);
}

bool end() {
  flags.on = false;
  return !taking_saves || take_saves(false);
}

void enter(const py::object &pack, const py::object &unpack, const py::object &handed, bool contents, bool keeping,
           const py::object &moved) {
  Thread &mine = thread();
  mine.arming = armings;
  mine.usual = true;
  mine.muted = false;
  mine.hooks = {};
  if (!pack.is_none()) {
    mine.hooks = c10::make_intrusive<Hooks>(pack.ptr(), unpack.ptr(), handed.is_none() ? nullptr : handed.ptr(),
                                            contents, keeping, moved.is_none() ? nullptr : moved.ptr());
  }
}

void leave() {
  Thread &mine = thread();
  mine.usual = mine.muted = false;
  mine.hooks = {};
}

void hand_over_at(std::optional<uintptr_t> key) {
  if (!hand_over(key)) {
    throw py::error_already_set();
  }
}

// Hands over what a write of a tensor to some bytes of a storage meets. Returns true if another save shares its counter.
bool meet(uintptr_t key, const at::Tensor &tensor, int64_t begin, int64_t end) {
  if (!hand_over(key, {begin, end})) {
    throw py::error_already_set();
  }
  return !tensor.is_inference() && moves_a_save(tensor.unsafeGetTensorImpl());
}

py::object shown(const Place *place) { return py::reinterpret_steal<py::object>(shown_place(place)); }

py::tuple shown(at::IntArrayRef numbers) { return py::tuple(py::cast(numbers.vec())); }

py::list take_records() {
  std::vector<Record> taken_out;
  {
    std::lock_guard<std::mutex> guard(log_lock);
    taken_out.swap(records);
  }
  py::list rows;
  for (const Record &one : taken_out) {
    auto dtype = py::reinterpret_borrow<py::object>((PyObject *)torch::getTHPDtype(one.dtype));
    auto step = one.step == nullptr ? py::none() : py::reinterpret_borrow<py::object>(one.step);
    rows.append(py::make_tuple(py::reinterpret_borrow<py::object>(one.written), shown(one.place), one.key, one.version,
                               py::make_tuple(one.offset, shown(one.sizes), shown(one.strides), dtype), step, one.in_backward, one.node,
                               one.moment, one.in_graph));
  }
  return rows;
}

py::list take_views() {
  std::vector<ManyViews> taken_out;
  {
    std::lock_guard<std::mutex> guard(log_lock);
    taken_out.swap(views);
  }
  py::list rows;
  for (const ManyViews &one : taken_out) {
    rows.append(py::make_tuple(one.node, py::reinterpret_borrow<py::object>(one.op), shown(one.place)));
  }
  return rows;
}

py::object place_of_node(int64_t node) {
  const Thread &mine = thread();
  if (mine.era == places_era) {
    for (size_t i = 1; i <= mine.past.size(); i++) {
      const PastSave &one = mine.past[(mine.next_past + HISTORY - i) % HISTORY];
      if (one.node == node) {
        return shown(one.place);
      }
    }
  }
  return py::none();
}

// Returns what `identity` of witness/digests.py returns, but for the shape, which is a tuple.
py::object shown_identity(const py::object &tensor) {
  const Identity one = identity_of(THPVariable_Unpack(tensor.ptr()));
  if (one.begin == nullptr) {
    return py::none();
  }
  auto dtype = py::reinterpret_borrow<py::object>((PyObject *)torch::getTHPDtype(one.dtype));
  return py::make_tuple((uintptr_t)one.begin, one.version, shown(one.sizes), shown(one.strides), dtype);
}

// Returns the gradients that leaves have already and that a backward from these tensors may add to.
py::list gradients_behind(const py::list &outputs) {
  std::vector<torch::autograd::Node *> waiting;
  std::unordered_set<torch::autograd::Node *> seen;
  auto reach = [&](torch::autograd::Node *node) {
    if (node != nullptr && seen.insert(node).second) {
      waiting.push_back(node);
    }
  };
  std::vector<torch::autograd::Edge> roots; // of a leaf nobody else may hold the node
  for (const py::handle &one : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(one.ptr())));
    reach(roots.back().function.get());
  }
  py::list gradients;
  while (!waiting.empty()) {
    torch::autograd::Node *node = waiting.back();
    waiting.pop_back();
    if (auto *leaf = dynamic_cast<torch::autograd::AccumulateGrad *>(node)) {
      if (leaf->variable.defined() && leaf->variable.grad().defined()) {
        gradients.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(leaf->variable.grad())));
      }
    }
    for (const torch::autograd::Edge &edge : node->next_edges()) {
      reach(edge.function.get());
    }
  }
  return gradients;
}

void forget(bool places) {
  {
    std::lock_guard<std::mutex> guard(log_lock);
    records.clear();
    views.clear();
    records_limit = RECENT;
  }
  forget_steps();
  if (places && alive == 0) { // else they stay until a later call, as saves refer to them
    forget_places();
  }
}

// -- what runs in every training step ------------------------------------------------------------------------------------
//
// Functions of Python's own interface: a call through pybind11 costs several times as much as what these do.

PyObject *share(PyObject *, PyObject *on) {
  sharing = on == Py_True;
  std::lock_guard<std::mutex> guard(reads_lock);
  read_digests.clear();
  Py_RETURN_NONE;
}

PyObject *set_usual(PyObject *, PyObject *on) {
  thread().usual = on == Py_True;
  Py_RETURN_NONE;
}

PyObject *count_alive(PyObject *, PyObject *) { return PyLong_FromSsize_t((Py_ssize_t)alive.load()); }

PyObject *number_moment(PyObject *, PyObject *) { return PyLong_FromLongLong(next_moment()); }

// Hears that a step of this thread is over, also one that raised. Returns the place of the line that calls backward.
PyObject *backward_begins(PyObject *, PyObject *) {
  HANDLE_TH_ERRORS
  unmute(thread());
  return shown_place(place_here());
  END_HANDLE_TH_ERRORS
}

PyObject *show_place_here(PyObject *, PyObject *) {
  HANDLE_TH_ERRORS
  return shown_place(place_here());
  END_HANDLE_TH_ERRORS
}

template <PythonTable &table> PyObject *hear_of(PyObject *, PyObject *by_storage) {
  PyObject *old = std::exchange(table.filed, Py_NewRef(by_storage));
  table.any_filed = PyDict_GET_SIZE(by_storage) != 0;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

bool is_readable(const at::Tensor &tensor) { return is_usual(tensor.unsafeGetTensorImpl()) && tensor.is_cpu(); }

// Returns the fingerprint of a tensor; None if it is for Python.
PyObject *show_fingerprint(PyObject *, PyObject *tensor) {
  HANDLE_TH_ERRORS
  const at::Tensor &shown = THPVariable_Unpack(tensor);
  auto digest = is_readable(shown) ? fingerprint(shown) : std::nullopt;
  return digest ? PyLong_FromUnsignedLongLong(*digest) : Py_NewRef(Py_None);
  END_HANDLE_TH_ERRORS
}

// Returns what is known of a tensor that is being saved under other hooks than noclobber's: its version, its storage, the
// number of the node, the place, and the fingerprint if that is asked for. None if it is for Python.
PyObject *show_save(PyObject *, PyObject *const *arguments, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const at::Tensor &tensor = THPVariable_Unpack(arguments[0]);
  const bool contents = arguments[1] == Py_True;
  auto digest = contents && is_readable(tensor) ? fingerprint(tensor) : std::nullopt;
  if (contents ? !digest : !is_usual(tensor.unsafeGetTensorImpl())) {
    Py_RETURN_NONE;
  }
  const int64_t node = (int64_t)at::sequence_number::peek() - 1;
  const Place *place = place_here();
  note_past(thread(), node, place);
  return Py_BuildValue("(IKLNN)", version_of(tensor.unsafeGetTensorImpl()),
                       (unsigned long long)storage_key(tensor.unsafeGetTensorImpl()), (long long)node,
                       shown_place(place),
                       digest ? PyLong_FromUnsignedLongLong(*digest) : Py_NewRef(Py_None));
  END_HANDLE_TH_ERRORS
}

// A reference to a storage that does not hold the memory, as PyTorch's StorageWeakRef is one.
struct StorageRef {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  bool expired() const { return storage.expired(); }
  uintptr_t cdata() const { return (uintptr_t)storage._unsafe_get_target(); }
};

// Returns what memory a tensor has; None if it is for Python.
PyObject *show_memory(PyObject *, PyObject *shown) {
  HANDLE_TH_ERRORS
  auto *tensor = THPVariable_Unpack(shown).unsafeGetTensorImpl();
  if (!is_usual(tensor)) {
    Py_RETURN_NONE;
  }
  return Py_BuildValue("(KNI)", (unsigned long long)storage_key(tensor),
                       py::cast(StorageRef{tensor->unsafe_storage().getWeakStorageImpl()}).release().ptr(),
                       version_of(tensor));
  END_HANDLE_TH_ERRORS
}

PyMethodDef each_step[] = {
    {"saves_filed", hear_of<python_saves>, METH_O, nullptr},
    {"rereads_filed", hear_of<python_rereads>, METH_O, nullptr},
    {"save", (PyCFunction)(void (*)())show_save, METH_FASTCALL, nullptr},
    {"memory_of", show_memory, METH_O, nullptr},
    {"fingerprint", show_fingerprint, METH_O, nullptr},
    {"before_step", (PyCFunction)(void (*)())before_step, METH_FASTCALL, nullptr},
    {"after_step", (PyCFunction)(void (*)())after_step, METH_FASTCALL, nullptr},
    {"begin_backward", (PyCFunction)(void (*)())begin_backward, METH_FASTCALL, nullptr},
    {"end_backward", (PyCFunction)(void (*)())end_backward, METH_FASTCALL, nullptr},
    {"backward_begins", backward_begins, METH_NOARGS, nullptr},
    {"share", share, METH_O, nullptr},
    {"set_usual", set_usual, METH_O, nullptr},
    {"alive", count_alive, METH_NOARGS, nullptr},
    {"next_moment", number_moment, METH_NOARGS, nullptr},
    {"place_here", show_place_here, METH_NOARGS, nullptr},
    {},
};

} // namespace
} // namespace noclobber

PYBIND11_MODULE(noclobber_hot_path, m) {
  using namespace noclobber;
  m.def("connect", &connect);
  m.def("enroll_write", &enroll_write);
  m.def("enroll_passing", &enroll_passing);
  m.def("connect_steps", &connect_steps);
  m.def("connect_backwards", &connect_backwards);
  m.def("connect_reads", &connect_reads);
  py::class_<StorageRef>(m, "StorageRef")
      .def("expired", &StorageRef::expired)
      .def_property_readonly("cdata", &StorageRef::cdata);
  py::class_<Values>(m, "Values").def("__iter__", &Values::shown);
  m.def("walk", &walk);
  m.def("begin", &begin);
  m.def("end", &end);
  m.def("enter", &enter);
  m.def("leave", &leave);
  m.def("set_careful", [](bool on) { flags.careful = on; });
  m.def("set_keeping", [](bool on) { flags.keeping = on; });
  m.def("hand_over", &hand_over_at);
  m.def("meet", &meet);
  m.def("take_records", &take_records);
  m.def("take_views", &take_views);
  m.def("place_of_node", &place_of_node);
  m.def("gradients_behind", &gradients_behind);
  m.def("forget", &forget);
  if (PyModule_AddFunctions(m.ptr(), each_step) != 0) {
    throw py::error_already_set();
  }
  // For the self-test and the tests.
  m.def("storage_key", [](const py::object &tensor) {
    return storage_key(THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl());
  });
  m.def("identity", &shown_identity);
}
