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

// A reference that this owns.
class Owned {
public:
  explicit Owned(PyObject *object = nullptr) : object(object) {}
  ~Owned() { Py_XDECREF(object); }
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  operator PyObject *() const { return object; }

private:
  PyObject *object;
};

// Returns whether anybody must be told of the call.
inline bool anybody_waits() {
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

// One Backward of a thread, which stands for each call that is taken here, one after another.
struct PlainCall {
  std::shared_ptr<c10::SafePyObject> kept, none;
  PyObject *call = nullptr; // borrowed from `kept`
  const Place *place = nullptr;
  uint64_t era = 0; // of the place
  bool taken = false;

  bool make() {
    PyObject *made = PyObject_CallNoArgs(make_call);
    if (made == nullptr) {
      return false;
    }
    kept = std::make_shared<c10::SafePyObject>(made, getPyInterpreter());
    none = std::make_shared<c10::SafePyObject>(Py_NewRef(Py_None), getPyInterpreter());
    call = made;
    return true;
  }

  void drop() { // somebody else may hold the call
    kept.reset();
    call = nullptr;
    taken = false;
  }
};

inline PlainCall &plain_call() {
  static thread_local PlainCall mine;
  return mine;
}

inline bool describe(PlainCall &mine, PyObject *frame, PyObject *outputs, PyObject *args) {
  static const Name place("place"), outputs_("outputs"), gradients("gradients"), inputs("inputs"), over("over"),
      frame_("frame"), node("node");
  mine.place = place_here();
  mine.era = places_era.load(std::memory_order_relaxed);
  Owned shown(shown_place(mine.place)), number(PyLong_FromUnsignedLongLong(at::sequence_number::peek()));
  return place.set(mine.call, shown) && outputs_.set(mine.call, outputs) &&
         gradients.set(mine.call, PyTuple_GET_ITEM(args, 0)) && inputs.set(mine.call, PyTuple_GET_ITEM(args, 3)) &&
         frame_.set(mine.call, frame) && node.set(mine.call, number) && over.set(mine.call, Py_False);
}

// Takes a call that is about to begin. Returns null if it is for Python.
inline PyObject *take_call(PyObject *frame, PyObject *outputs, PyObject *args, PyObject *kwargs) {
  static const Name backwards("backwards"), dict("__dict__");
  PlainCall &mine = plain_call();
  unmute(thread()); // a step that raised is over
  if (mine.taken || !is_plain_call(args, kwargs) || !c10::impl::tls_is_dispatch_key_included(KEY)) {
    return nullptr;
  }
  Owned state(dict.of(local_state));
  PyObject *under_way = state != nullptr ? backwards.in(state) : nullptr;
  if (under_way == nullptr || PyList_GET_SIZE(under_way) != 0 || !is_only_installed(state) || anybody_waits() ||
      runs_python() || (mine.call == nullptr && !mine.make()) || !describe(mine, frame, outputs, args) ||
      PyList_Append(under_way, mine.call) != 0) {
    return nullptr;
  }
  set_call(mine.kept);
  mine.taken = true;
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  return Py_NewRef(mine.call);
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
inline bool end_call(PlainCall &mine) {
  static const Name backwards("backwards"), dict("__dict__"), outputs("outputs"), gradients("gradients"),
      inputs("inputs"), frame("frame");
  // Of the call: PyTorch's state of the thread, `backwards`, the function that calls, and the interpreter's stack.
  constexpr Py_ssize_t HOLDERS = 4;
  Owned state(dict.of(local_state)), nothing(PyTuple_New(0));
  PyObject *under_way = state != nullptr ? backwards.in(state) : nullptr;
  if (under_way == nullptr || PyList_GET_SIZE(under_way) != 1 || PyList_GET_ITEM(under_way, 0) != mine.call ||
      Py_REFCNT(mine.call) > HOLDERS || mine.place == nullptr || mine.era != places_era || !is_only_installed(state) ||
      !nothing_happened(mine.call) || !note_end(mine.place, state)) {
    return false;
  }
  if (!outputs.set(mine.call, nothing) || !gradients.set(mine.call, nothing) || !inputs.set(mine.call, nothing) ||
      !frame.set(mine.call, Py_None) || PyList_SetSlice(under_way, 0, 1, nullptr) != 0) {
    return false;
  }
  c10::impl::tls_set_dispatch_key_included(KEY, true);
  set_call(mine.none);
  mine.taken = false;
  return true;
}

// What core/engine.py calls before and after each call.
inline PyObject *begin_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  PyObject *call = count == 4 ? take_call(arguments[0], arguments[1], arguments[2], arguments[3]) : nullptr;
  if (call != nullptr) {
    return call;
  }
  PyErr_Clear();
  return PyObject_Vectorcall(begins_in_python, arguments, (size_t)count, nullptr);
}

inline PyObject *end_backward(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  PlainCall &mine = plain_call();
  if (count == 3 && mine.taken && arguments[0] == mine.call) {
    if (arguments[2] == Py_None && end_call(mine)) {
      Py_RETURN_NONE;
    }
    PyErr_Clear();
    mine.drop();
  }
  return PyObject_Vectorcall(ends_in_python, arguments, (size_t)count, nullptr);
}

} // namespace noclobber
