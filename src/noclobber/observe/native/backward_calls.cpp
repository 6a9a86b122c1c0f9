#include "backward_calls.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <string>
#include <unordered_set>

#include "history.h"

namespace noclobber {

namespace {

// Returns whether anybody must be told of the call.
bool anybody_waits(PyObject *context) {
  static PyObject *const watchers = from_python("watchers"); // `BackwardCalls.plain`
  static const Name before_backward("before_backward");
  if (before_backward.of(context) != Py_None) {
    return true;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(watchers); i++) {
    if (holds(PyObject_IsTrue(PyTuple_GET_ITEM(PyList_GET_ITEM(watchers, i), 2)))) {
      return true;
    }
  }
  return false;
}

PyObject *context() {
  static PyObject *const one = from_python("context");
  return one;
}

// Returns what the context holds of the calling thread, a dict.
THPObjectPtr state_here() {
  static PyObject *const thread = from_python("thread");
  static const Name dict("__dict__");
  return dict.of(thread);
}

// Returns the list of the calls of a thread that are under way, borrowed; null in a thread that has none yet.
PyObject *under_way(PyObject *state) {
  static const Name backwards("backwards");
  return backwards.in(state);
}

// Returns whether the thread is watched by `install` alone, as it is armed now.
bool is_only_installed(PyObject *state) {
  static const Name entered("entered"), arming("arming"), armings("armings"), contents("contents");
  const Thread &mine = thread();
  if (!flags.on || flags.watching || flags.careful || !mine.usual || mine.hooks || entered.in(state) != Py_True) {
    return false;
  }
  PyObject *then = arming.in(state);
  return then != nullptr && contents.of(context()) == Py_None &&
         holds(PyObject_RichCompareBool(armings.of(context()), then, Py_EQ));
}

bool is_plain_call(PyObject *args, PyObject *kwargs) { // as `records.read` reads them
  static const Name accumulate_grad("accumulate_grad");
  return PyTuple_Check(args) && PyTuple_GET_SIZE(args) >= 4 && PyTuple_GET_ITEM(args, 2) == Py_False &&
         accumulate_grad.in(kwargs) == Py_True;
}

bool runs_python() {
  static PyObject *const program_has_hooks = from_python("program_has_hooks");
  static const Name python_in_backward("python_in_backward");
  return python_in_backward.of(context()) != Py_False || owned(PyObject_CallNoArgs(program_has_hooks)) != Py_False;
}

// Tells PyTorch which call of this thread is under way.
void set_call(const std::shared_ptr<c10::SafePyObject> &call) {
  static const std::string key(PyUnicode_AsUTF8(from_python("call_key")));
  at::impl::ThreadLocalPythonObjects::set(key, call);
}

void set_no_call() {
  static const auto none = std::make_shared<c10::SafePyObject>(Py_NewRef(Py_None), getPyInterpreter());
  set_call(none);
}

// The call of a thread that was taken here and is under way. Each has a Backward of its own: somebody may keep it.
struct PlainCall {
  std::shared_ptr<c10::SafePyObject> kept;
  PyObject *call = nullptr; // borrowed from `kept`
  const Place *place = nullptr;
  uint64_t era = 0; // of the place
};

PlainCall &plain_call() {
  static thread_local PlainCall mine;
  return mine;
}

// Takes a call that is about to begin. Returns null if it is for Python.
THPObjectPtr take(PyObject *frame, PyObject *outputs, PyObject *args, PyObject *kwargs) {
  static PyObject *const make_call = from_python("make_call"); // returns a quiet Backward
  static const Name place("place"), outputs_("outputs"), gradients("gradients"), inputs("inputs"), frame_("frame"),
      node("node");
  unmute(thread());
  if (plain_call().call != nullptr || !is_plain_call(args, kwargs) || !key_is_set()) {
    return {};
  }
  auto state = state_here();
  PyObject *calls = under_way(state);
  if (calls == nullptr || PyList_GET_SIZE(calls) != 0 || !is_only_installed(state) || anybody_waits(context()) ||
      runs_python()) {
    return {};
  }
  const Place *where = place_here();
  auto call = owned(PyObject_CallNoArgs(make_call));
  place.set(call, shown_place(where));
  outputs_.set(call, outputs);
  gradients.set(call, PyTuple_GET_ITEM(args, 0));
  inputs.set(call, PyTuple_GET_ITEM(args, 3));
  frame_.set(call, frame);
  node.set(call, number(at::sequence_number::peek()));
  PlainCall mine{.kept = std::make_shared<c10::SafePyObject>(call.dup().release(), getPyInterpreter()),
                 .call = call,
                 .place = where,
                 .era = places_era.load(std::memory_order_relaxed)};
  holds(PyList_Append(calls, call));
  set_call(mine.kept);
  plain_call() = std::move(mine);
  set_key(false);
  return call;
}

// Returns whether nothing has happened in the call that its end must tell.
bool nothing_happened(PyObject *call) {
  static const Name with_python("with_python"), deliveries("deliveries"), later("later"), ends("ends"),
      explained("explained");
  auto is_empty = [call](const Name &list) { return PyList_GET_SIZE(list.of(call).get()) == 0; };
  return with_python.of(call) == Py_False && deliveries.of(call) == Py_None && is_empty(later) && is_empty(ends) &&
         is_empty(explained);
}

// Notes that this thread's nodes below the next number belong to graphs that may be freed, and which line did that.
void note_end(const Place *place, PyObject *state) {
  static PyObject *const accumulated = from_python("accumulated");
  static const Py_ssize_t most = PyLong_AsSsize_t(from_python("lines"));
  static const Name boundary("boundary"), boundaries("boundaries");
  PyObject *lines = boundaries.in(state), *line = identity_of(place);
  auto next = number(at::sequence_number::peek()), when = number((unsigned long long)next_moment());
  auto shown = shown_place(place);
  auto entry = owned(PyTuple_Pack(2, shown.get(), next.get()));
  auto row = owned(PyTuple_Pack(2, when.get(), shown.get()));
  boundary.put(state, next);
  if (holds(PyDict_Contains(lines, line))) {
    holds(PyDict_DelItem(lines, line)); // a line that is there already becomes the newest
  }
  holds(PyDict_SetItem(lines, line, entry));
  PyObject *oldest, *value;
  Py_ssize_t at = 0;
  if (PyDict_GET_SIZE(lines) > most && PyDict_Next(lines, &at, &oldest, &value)) {
    holds(PyDict_DelItem(lines, THPObjectPtr::dup(oldest)));
  }
  owned(PyObject_CallOneArg(accumulated, row));
}

// Ends a call that was taken. Returns false if its end is for Python.
bool finish(const PlainCall &mine) {
  static const Name frame("frame");
  auto state = state_here();
  PyObject *calls = under_way(state);
  if (calls == nullptr || PyList_GET_SIZE(calls) != 1 || PyList_GET_ITEM(calls, 0) != mine.call ||
      mine.place == nullptr || mine.era != places_era || !is_only_installed(state) || !nothing_happened(mine.call)) {
    return false;
  }
  note_end(mine.place, state);
  frame.set(mine.call, Py_None);
  holds(PyList_SetSlice(calls, 0, 1, nullptr));
  set_key(true);
  set_no_call();
  return true;
}

} // namespace

PyObject *begin_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  static const Name begins("begins");
  auto taken = [&] {
    return count == 4 ? take(arguments[0], arguments[1], arguments[2], arguments[3]) : THPObjectPtr();
  };
  return taken_or(taken, [&] { return by_python(begins, arguments, count); });
}

PyObject *end_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  static const Name ends("ends");
  if (count != 3 || arguments[0] != plain_call().call) {
    return by_python(ends, arguments, count);
  }
  const PlainCall mine = std::exchange(plain_call(), {});
  try {
    if (unless_fails([&] { return arguments[2] == Py_None && finish(mine); }, false)) {
      Py_RETURN_NONE;
    }
  } catch (python_error &interrupted) { // the call is over all the same
    THPObjectPtr done(by_python(ends, arguments, count));
    interrupted.restore();
    return nullptr;
  } catch (const std::exception &) { // no memory
  }
  return by_python(ends, arguments, count);
}

std::vector<at::Tensor> gradients_behind(const std::vector<at::Tensor> &outputs) {
  std::vector<torch::autograd::Node *> waiting;
  std::unordered_set<torch::autograd::Node *> seen;
  auto reach = [&](torch::autograd::Node *node) {
    if (node != nullptr && seen.insert(node).second) {
      waiting.push_back(node);
    }
  };
  std::vector<torch::autograd::Edge> roots; // of a leaf nobody else may hold the node
  for (const at::Tensor &one : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(one));
    reach(roots.back().function.get());
  }
  std::vector<at::Tensor> gradients;
  while (!waiting.empty()) {
    torch::autograd::Node *node = waiting.back();
    waiting.pop_back();
    auto *leaf = dynamic_cast<torch::autograd::AccumulateGrad *>(node);
    if (leaf != nullptr && leaf->variable.defined() && leaf->variable.grad().defined()) {
      gradients.push_back(leaf->variable.grad());
    }
    for (const torch::autograd::Edge &edge : node->next_edges()) {
      reach(edge.function.get());
    }
  }
  return gradients;
}

} // namespace noclobber
