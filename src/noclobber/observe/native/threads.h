// What the native part knows of each thread, and what of all; as core/seen/thread_state.py.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "places.h"

namespace noclobber {

constexpr auto KEY = c10::DispatchKey::TESTING_ONLY_GenericMode; // on in a watched thread, but not within its kernels

inline bool key_is_set() { return c10::impl::tls_is_dispatch_key_included(KEY); }
inline void set_key(bool on) { c10::impl::tls_set_dispatch_key_included(KEY, on); }

struct Flags {
  std::atomic<bool> on{false};       // whether anything is watched
  std::atomic<bool> watching{false}; // whether saves are recorded
  std::atomic<bool> careful{false};  // whether counted writes must be checked too
  std::atomic<bool> keeping{false};  // whether bytes are preserved
  std::atomic<uint64_t> armings{0};  // how often noclobber has begun to see
};
extern Flags flags;

// The pack and unpack hook that noclobber pushed on a thread's stack. Python's own hooks stand for all that is unusual.
struct Hooks : c10::intrusive_ptr_target {
  ~Hooks() override;
  THPObjectPtr pack, unpack;
  THPObjectPtr handed; // the dict of storages that foreign code may hold, or null
  // The dict of storages whose large tensors need a fingerprint although code outside of torch cannot write them
  // (`Contents.moved`); null where every save needs one.
  THPObjectPtr moved;
  bool contents = false, keeping = false; // whether saves get a fingerprint, and whether bytes are preserved
};

struct Save;

// What an operator overwrites where a version may not tell.
struct Overwriting {
  struct Range {
    uintptr_t storage;
    const void *begin;
    Save *saved = nullptr; // the save of it that the operator has made
  };
  bool statistics = false; // whether it is batch norm: in training, its backward does not read what it overwrites
  c10::SmallVector<Range, 4> ranges;
};

struct Thread {
  uint64_t arming = 0; // the one in which this thread was entered
  bool usual = false;  // whether writes of this thread may be taken here: it was entered, and its step is known
  bool muted = false;  // whether the key is off for an optimizer step that was taken here
  c10::intrusive_ptr<Hooks> hooks;
  Overwriting *overwriting = nullptr; // what the kernel under way overwrites
  PyObject *step = nullptr;           // of an optimizer, under way and not taken here; borrowed (optimizer_steps.h)
  bool steps_alone = true;            // whether all writes belong to it, and not only those to the storages here, sorted
  std::vector<uintptr_t> stepped;

  // Notes where a node saves, and returns where it last did; null if that is not known.
  void saves_at(int64_t node, const Place *place);
  const Place *place_of(int64_t node) const;
  // Returns the step that a write to a storage belongs to; null if there is none.
  PyObject *step_that_writes(uintptr_t storage) const;

private:
  struct PastSave {
    int64_t node;
    const Place *place;
  };
  std::vector<PastSave> past;
  size_t next_past = 0;
  uint64_t era = 0; // of the places in `past`
};

Thread &thread();

// Takes the writes of the calling thread, and its saves where there are hooks; and leaves it to Python.
void enter(c10::intrusive_ptr<Hooks> hooks);
void leave();

// Ends an optimizer step that was taken here: a step that raises does not reach its end.
void unmute(Thread &mine);

} // namespace noclobber
