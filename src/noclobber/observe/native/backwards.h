// Backward calls under `install`: a plain `backward()` in which no Python runs. Only the thread's key goes off meanwhile,
// and the end of the call is noted. All other calls go to core/engine.py.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>

#include "steps.h"

namespace noclobber {

// Python's functions: what begins and ends all other calls; `make_call()` returns a quiet Backward; `program_has_hooks()`
// returns whether hooks may run; `identity(place)` and `accumulated.append(entry)` as in core/engine.py.
inline PyObject *begins_in_python = nullptr, *ends_in_python = nullptr, *make_call = nullptr;
inline PyObject *program_has_hooks = nullptr, *identity_in_python = nullptr, *accumulated = nullptr;
// The context, its state of the calling thread, and the watchers of every call (`BackwardCalls.plain`).
inline PyObject *context = nullptr, *local_state = nullptr, *watchers = nullptr;
inline std::string call_key;         // under which PyTorch keeps the call of a thread
inline Py_ssize_t lines_kept = 0;    // for how many lines `Thread.boundaries` holds an entry

// Returns whether anybody must be told of the call.
inline bool anybody_waits() {
  static const Name before_backward("before_backward");
  Owned due(before_backward.of(context));
  if (due != Py_None) {
    return true;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(watchers); i++) {
    if (PyObject_IsTrue(PyTuple_GET_ITEM(PyList_GET_ITEM(watchers, i), 2)) != 0) {
      return true;
    }
  }
  return false;
}

// Returns whether the thread is watched by `install` alone, as it is armed now.
inline bool is_only_installed(PyObject *state) {
  const Thread &mine = thread();
  static const Name entered("entered"), arming("arming"), armings("armings"), contents("contents");
  if (!flags.on || flags.watching || flags.careful || !mine.usual || mine.hooks || entered.in(state) != Py_True) {
    return false;
  }
  Owned now(armings.of(context)), fingerprints(contents.of(context));
  PyObject *then = arming.in(state);
  return now != nullptr && then != nullptr && fingerprints == Py_None && PyObject_RichCompareBool(now, then, Py_EQ) == 1;
}

inline bool is_plain_call(PyObject *args, PyObject *kwargs) { // as `records.read` reads them
  static const Name accumulate_grad("accumulate_grad");
  return PyTuple_Check(args) && PyTuple_GET_SIZE(args) >= 4 && PyTuple_GET_ITEM(args, 2) == Py_False &&
         accumulate_grad.in(kwargs) == Py_True;
}

inline bool runs_python() {
  static const Name python_in_backward("python_in_backward");
  Owned known(python_in_backward.of(context));
  if (known != Py_False) {
    return true;
  }
  Owned answer(PyObject_CallNoArgs(program_has_hooks));
  return answer != Py_False;
}

inline void set_call(const std::shared_ptr<c10::SafePyObject> &call) {
  at::impl::ThreadLocalPythonObjects::set(call_key, call);
}

// The call of a thread that was taken here and is under way. Each has a Backward of its own: somebody may keep it.
struct PlainCall {
  std::shared_ptr<c10::SafePyObject> kept;
  PyObject *call = nullptr; // borrowed from `kept`
  const Place *place = nullptr;
  uint64_t era = 0; // of the place
};

inline PlainCall &plain_call() {
  static thread_local PlainCall mine;
  return mine;
}

inline const std::shared_ptr<c10::SafePyObject> &no_call() {
  static const auto none = std::make_shared<c10::SafePyObject>(Py_NewRef(Py_None), getPyInterpreter());
  return none;
}

inline bool describe(PyObject *call, const Place *where, PyObject *frame, PyObject *outputs, PyObject *args) {
  static const Name place("place"), outputs_("outputs"), gradients("gradients"), inputs("inputs"), frame_("frame"),
      node("node");
  Owned shown(shown_place(where)), number(PyLong_FromUnsignedLongLong(at::sequence_number::peek()));
  return place.set(call, shown) && outputs_.set(call, outputs) && gradients.set(call, PyTuple_GET_ITEM(args, 0)) &&
         inputs.set(call, PyTuple_GET_ITEM(args, 3)) && frame_.set(call, frame) && node.set(call, number);
}

// Takes a call that is about to begin. Returns null if it is for Python.
inline PyObject *take_call(PyObject *frame, PyObject *outputs, PyObject *args, PyObject *kwargs) {
  static const Name backwards("backwards"), dict("__dict__");
  unmute(thread()); // a step that raised is over
  if (plain_call().call != nullptr || !is_plain_call(args, kwargs) || !c10::impl::tls_is_dispatch_key_included(KEY)) {
    return nullptr;
  }
  Owned state(dict.of(local_state));
  PyObject *under_way = state != nullptr ? backwards.in(state) : nullptr;
  if (under_way == nullptr || PyList_GET_SIZE(under_way) != 0 || !is_only_installed(state) || anybody_waits() ||
      runs_python()) {
    return nullptr;
  }
  PlainCall mine;
  mine.place = place_here();
  mine.era = places_era.load(std::memory_order_relaxed);
  Owned call(PyObject_CallNoArgs(make_call));
  if (call == nullptr || !describe(call, mine.place, frame, outputs, args)) {
    return nullptr;
  }
  mine.call = call;
  mine.kept = std::make_shared<c10::SafePyObject>(Py_NewRef(call), getPyInterpreter());
  set_call(mine.kept);
  if (PyList_Append(under_way, call) != 0) {
    set_call(no_call());
    return nullptr;
  }
  plain_call() = std::move(mine);
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  return Py_NewRef(call);
}

// Returns whether nothing has happened in the call that its end must tell.
inline bool nothing_happened(PyObject *call) {
  static const Name with_python("with_python"), deliveries("deliveries"), later("later"), ends("ends"),
      explained("explained");
  Owned python(with_python.of(call)), compared(deliveries.of(call));
  if (python != Py_False || compared != Py_None) {
    return false;
  }
  for (const Name *name : {&later, &ends, &explained}) {
    Owned list(name->of(call));
    if (list == nullptr || PyList_GET_SIZE((PyObject *)list) != 0) {
      return false;
    }
  }
  return true;
}

inline PyObject *identity(const Place *place) { // borrowed from the place; null if that fails
  if (place->identity == nullptr) {
    Owned shown(shown_place(place));
    place->identity = PyObject_CallOneArg(identity_in_python, shown);
  }
  return place->identity;
}

// Notes that this thread's nodes below the next number belong to graphs that may be freed, and which line did that.
inline bool note_end(const Place *place, PyObject *state) {
  static const Name boundary("boundary"), boundaries("boundaries");
  PyObject *lines = boundaries.in(state), *line = identity(place);
  Owned number(PyLong_FromUnsignedLongLong(at::sequence_number::peek())), when(PyLong_FromLongLong(next_moment()));
  Owned shown(shown_place(place));
  Owned entry(PyTuple_Pack(2, (PyObject *)shown, (PyObject *)number));
  Owned row(PyTuple_Pack(2, (PyObject *)when, (PyObject *)shown));
  if (lines == nullptr || line == nullptr || entry == nullptr || row == nullptr || !boundary.put(state, number)) {
    return false;
  }
  const int known = PyDict_Contains(lines, line);
  if (known == -1 || (known == 1 && PyDict_DelItem(lines, line) != 0) || PyDict_SetItem(lines, line, entry) != 0) {
    return false; // a line that is there already becomes the newest
  }
  PyObject *oldest, *value;
  Py_ssize_t at = 0;
  if (PyDict_GET_SIZE(lines) > lines_kept && PyDict_Next(lines, &at, &oldest, &value)) {
    Owned held(Py_NewRef(oldest));
    if (PyDict_DelItem(lines, held) != 0) {
      return false;
    }
  }
  Owned done(PyObject_CallOneArg(accumulated, row));
  return done != nullptr;
}

// Ends a call that was taken. Returns false if its end is for Python.
inline bool end_call(const PlainCall &mine) {
  static const Name backwards("backwards"), dict("__dict__"), frame("frame");
  Owned state(dict.of(local_state));
  PyObject *under_way = state != nullptr ? backwards.in(state) : nullptr;
  if (under_way == nullptr || PyList_GET_SIZE(under_way) != 1 || PyList_GET_ITEM(under_way, 0) != mine.call ||
      mine.place == nullptr || mine.era != places_era || !is_only_installed(state) || !nothing_happened(mine.call) ||
      !note_end(mine.place, state)) {
    return false;
  }
  if (!frame.set(mine.call, Py_None) || PyList_SetSlice(under_way, 0, 1, nullptr) != 0) {
    return false;
  }
  c10::impl::tls_set_dispatch_key_included(KEY, true);
  set_call(no_call());
  return true;
}

// What core/engine.py calls before and after each call.
inline PyObject *begin_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  auto taken = [&]() -> PyObject * {
    return count == 4 ? take_call(arguments[0], arguments[1], arguments[2], arguments[3]) : nullptr;
  };
  return taken_or_by_python(taken, begins_in_python, arguments, count);
}

inline PyObject *end_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  auto in_python = [&] { return PyObject_Vectorcall(ends_in_python, arguments, (size_t)count, nullptr); };
  if (count != 3 || arguments[0] != plain_call().call) {
    return in_python();
  }
  const PlainCall mine = std::exchange(plain_call(), {});
  try {
    if (arguments[2] == Py_None && end_call(mine)) {
      Py_RETURN_NONE;
    }
    clear_error();
  } catch (python_error &interrupted) { // the call is over all the same
    Owned done(in_python());
    interrupted.restore();
    return nullptr;
  } catch (const std::exception &) {
    PyErr_Clear();
  }
  return in_python();
}

} // namespace noclobber
