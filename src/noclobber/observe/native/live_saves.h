// The saves that autograd holds, by storage and byte range; as model/seen/live_saves.py. A save becomes a Handle of Python's only
// when something unusual happens to it: a write meets it, its bytes have changed, or somebody asks for it.
#pragma once

#include <map>
#include <optional>

#include "digests.h"
#include "threads.h"

namespace noclobber {

enum ViewKind : int8_t { NO_VIEW = 0, VIEW = 1, MADE_ASIDE = 2, ONE_OF_SEVERAL = 3 }; // the classes of core/seen/handles.py

// Where a save lies: sorted by storage, and there by the power of 2 that is not less than its length in bytes, and by where
// it begins. So those that a span meets lie side by side.
struct Filed {
  uintptr_t storage;
  int size;
  int64_t begin;
  auto operator<=>(const Filed &) const = default;
};

struct Link {
  Link *before = this, *after = this;
};

// What is known of one save. All but `alias` and `handle` is written once, before the save is added.
struct Save : c10::intrusive_ptr_target, Link {
  ~Save() override;
  at::Tensor alias; // shares storage and version counter, and holds no graph; only until there is a handle
  c10::weak_intrusive_ptr<at::TensorImpl> tensor{c10::intrusive_ptr<at::TensorImpl>()};
  uint32_t version = 0;
  ViewKind view = NO_VIEW;
  bool in_graph = false;
  bool is_statistic = false; // of batch norm in training, whose node saves it but does not read it
  std::optional<uint64_t> digest;
  Identity identity;
  int64_t node = 0, moment = 0;
  const Place *place = nullptr;
  c10::intrusive_ptr<Hooks> hooks;
  THPObjectPtr handle; // Python's Handle of this save once there is one; with the GIL

  // Once the save is filed, with the lock.
  Span span;
  const void *counter = nullptr; // that of the version
  std::optional<std::multimap<Filed, Save *>::iterator> filed;
};

// How many saves there are of which no Handle was made.
extern std::atomic<size_t> alive;

void add(Save &save);
void take_out(Save &save);

// The fingerprint of a live save of the same large bytes, if there is one, and the next such save's.
std::optional<uint64_t> digest_of(const Identity &identity);
void keep_digest(Save &save);
void forget_digests();

// Whether a save that is not Python's yet lies on a storage; may concern a write to a tensor; or has a version that moves
// when that of a tensor does.
bool is_saved(uintptr_t storage);
bool may_clobber(uintptr_t storage, const at::TensorImpl *written);
bool moves_a_save(const at::TensorImpl *tensor);

// Returns the Handle of a save, borrowed. With the GIL.
PyObject *handle_of(Save &save);

// Makes Handles of the saves on a storage that a span meets, or of all if there is no storage. They are in Python's live
// table then. With the GIL.
void hand_over(std::optional<uintptr_t> storage, Span span = {});

} // namespace noclobber
