// The log of the writes that were taken here, and of the operators that returned several views; as core/seen/history.py.
#pragma once

#include "live_saves.h"

namespace noclobber {

// Python's table of saves by storage (`LiveSaves`).
class PythonTable {
public:
  ~PythonTable() {
    unsorted.release();
    filed.release();
  }

  // Hears of the list of what is not sorted yet, and of the dict of what is filed, whenever that gets its first entry or
  // loses its last. With the GIL.
  void hear_of_unsorted(PyObject *list) { unsorted = THPObjectPtr::dup(list); }
  void hear_of_filed(PyObject *by_storage) {
    filed = THPObjectPtr::dup(by_storage);
    any_filed = PyDict_GET_SIZE(by_storage) != 0;
  }

  // Whether something is alive on a storage. Python is asked only where its answer may be yes: a call costs as much as all
  // else that is done for a write. True also where it fails: then Python decides. Throws an interrupt.
  bool has(uintptr_t key);

private:
  PyObject *has_alive = nullptr;
  THPObjectPtr unsorted, filed;
  std::atomic<bool> any_filed{false};
};
extern PythonTable python_saves;

// Hears of the dict of the storages that will be read again though no save lies on them (`Memory.reread`). With the GIL.
void hear_of_reread(PyObject *storages);
bool is_reread(uintptr_t key);

// What every event is numbered with, which Python counts on too.
void count_on(std::atomic<int64_t> *latest);
int64_t latest_moment();
int64_t next_moment();

// Notes a write of an operator, or of an optimizer (`step`): `written` and `step` are borrowed from what lives longer.
void note(PyObject *written, PyObject *step, const Place *place, const at::Tensor &tensor);

// Notes that an operator is about to return several views.
void note_views(PyObject *op);

// Return what was noted since the last call, as `Record` and `Memory.views` have it. With the GIL.
pybind11::list take_records();
// Returns those to a storage, made at a moment or later, and keeps them; oldest first.
pybind11::list writes_since(int64_t moment, uintptr_t key);
pybind11::list take_views();

void forget_history();

} // namespace noclobber
