#include "threads.h"

#include <algorithm>

namespace noclobber {

Flags flags;

constexpr size_t HISTORY = 16384; // places of past saves that are kept for each thread, as in core/seen/thread_state.py

Hooks::~Hooks() {
  if (Py_IsInitialized()) {
    Gil gil;
    for (THPObjectPtr *one : {&pack, &unpack, &handed, &moved}) {
      *one = nullptr;
    }
  }
}

Thread &thread() {
  static thread_local Thread mine;
  return mine;
}

void Thread::saves_at(int64_t node, const Place *place) {
  const uint64_t now = places_era.load(std::memory_order_relaxed);
  if (era != now) {
    past.assign(HISTORY, PastSave{-1, nullptr});
    era = now;
  }
  past[next_past] = {node, place};
  next_past = (next_past + 1) % HISTORY;
}

const Place *Thread::place_of(int64_t node) const {
  for (size_t i = 1; era == places_era && i <= past.size(); i++) {
    const PastSave &one = past[(next_past + HISTORY - i) % HISTORY];
    if (one.node == node) {
      return one.place;
    }
  }
  return nullptr;
}

PyObject *Thread::step_that_writes(uintptr_t storage) const {
  return steps_alone || std::binary_search(stepped.begin(), stepped.end(), storage) ? step : nullptr;
}

void enter(c10::intrusive_ptr<Hooks> hooks) {
  Thread &mine = thread();
  mine.arming = flags.armings;
  mine.usual = true;
  mine.muted = false;
  mine.hooks = std::move(hooks);
}

void leave() {
  Thread &mine = thread();
  mine.usual = mine.muted = false;
  mine.step = nullptr;
  mine.hooks = {};
}

void unmute(Thread &mine) {
  if (mine.muted) {
    mine.muted = false;
    set_key(true);
  }
}

} // namespace noclobber
