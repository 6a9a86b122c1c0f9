// The saves that autograd holds, and the live table of them by storage. A save becomes a Handle of Python's only when
// something unusual happens to it: a write meets it, its bytes have changed, or somebody asks for it.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <compare>
#include <map>
#include <unordered_map>

#include "fingerprints.h"
#include "places.h"

namespace noclobber {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

constexpr auto KEY = c10::DispatchKey::TESTING_ONLY_GenericMode; // on in a watched thread, but not within its kernels

// Set by Python when this module is connected; borrowed from then on.
inline PyObject *parameter_type = nullptr;
inline PyObject *make_handle = nullptr; // made_handle of bridge.py
inline std::atomic<int64_t> *latest_moment = nullptr;

// -- tensors -----------------------------------------------------------------------------------------------------------

// Returns true for a tensor whose Python object, if it has one, is of torch.Tensor or Parameter.
inline bool is_plain(const at::TensorImpl *tensor, bool or_parameter = true) {
  PyObject *object = tensor->pyobj_slot()->load_pyobj();
  return object == nullptr || Py_TYPE(object) == (PyTypeObject *)THPVariableClass ||
         (or_parameter && (PyObject *)Py_TYPE(object) == parameter_type);
}

// Returns true if the dimensions of a tensor have names, which torch 2.13 has done away with.
template <class Tensor> bool has_names(const Tensor *tensor) {
  if constexpr (requires { tensor->has_named_tensor_meta(); }) {
    return tensor->has_named_tensor_meta();
  } else {
    return false;
  }
}

// Returns true for a tensor whose memory, version and geometry can be read here as they are.
inline bool is_usual(at::TensorImpl *tensor) {
  static const c10::DispatchKeySet unusual({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                            c10::DispatchKey::Batched, c10::DispatchKey::Functionalize,
                                            c10::DispatchKey::NestedTensor, c10::DispatchKey::Conjugate,
                                            c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return !tensor->is_python_dispatch() && tensor->has_storage() && !tensor->has_symbolic_sizes_strides() &&
         !tensor->is_inference() && !has_names(tensor) && !tensor->key_set().has_any(unusual) && tensor->layout() == at::kStrided &&
         is_plain(tensor);
}

// Returns what `private.storage_key` returns: the address where the storage begins, or that of the StorageImpl.
// tests/observe/native/test_identities.py compares the two, and `identity_of` with Python's.
inline uintptr_t storage_key(at::TensorImpl *tensor) {
  auto *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  auto begin = (uintptr_t)storage->data();
  return begin != 0 ? begin : (uintptr_t)storage;
}

inline const void *first_byte(at::TensorImpl *tensor) {
  return (const char *)tensor->unsafe_storage().unsafeGetStorageImpl()->data() +
         tensor->storage_offset() * (int64_t)tensor->itemsize();
}

// The bytes of a storage that a tensor shows, from the first to the one behind the last; as `span` of core/records.py.
struct Span {
  int64_t begin = 0, end = INT64_MAX;
};

inline Span span_of(const at::TensorImpl *tensor) {
  int64_t last = tensor->storage_offset();
  for (int64_t i = 0; i < tensor->dim(); i++) {
    last += (tensor->size(i) - 1) * tensor->stride(i);
  }
  const auto size = (int64_t)tensor->itemsize();
  return {tensor->storage_offset() * size, (last + 1) * size};
}

// Returns what is the same for tensors that share a version counter: the address of the counter.
inline const void *counter_of(const at::TensorImpl *tensor) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void *)); // one pointer; test_identities.py
  const void *counter;
  std::memcpy(&counter, &tensor->version_counter(), sizeof(counter));
  return counter;
}

inline uint32_t version_of(const at::TensorImpl *tensor) { return tensor->version_counter().current_version(); }

// -- the hooks of a thread ---------------------------------------------------------------------------------------------

// The pack and unpack hook that noclobber pushed on a thread's stack. Python's own hooks stand for all that is unusual.
struct Hooks : c10::intrusive_ptr_target {
  Hooks(PyObject *pack, PyObject *unpack, PyObject *handed, bool contents, bool keeping, PyObject *moved)
      : pack(pack), unpack(unpack), handed(handed), contents(contents), keeping(keeping), moved(moved) {
    Py_INCREF(pack);
    Py_INCREF(unpack);
    Py_XINCREF(handed);
    Py_XINCREF(moved);
  }
  ~Hooks() override {
    if (Py_IsInitialized()) {
      Gil gil;
      Py_DECREF(pack);
      Py_DECREF(unpack);
      Py_XDECREF(handed);
      Py_XDECREF(moved);
    }
  }
  PyObject *pack, *unpack;
  PyObject *handed; // the dict of storages that foreign code may hold, or null
  bool contents, keeping; // whether saves get a fingerprint, and whether bytes are preserved
  // The dict of storages whose large tensors need a fingerprint although code outside of torch cannot write them
  // (`Contents.moved`); null where every save needs one.
  PyObject *moved;
};

constexpr size_t HISTORY = 16384; // places of past saves that are kept for each thread, as in core/save_hooks.py

struct PastSave {
  int64_t node;
  const Place *place;
};

struct Kept;

// What an operator overwrites where a version may not tell.
struct Overwriting {
  struct Range {
    uintptr_t storage;
    const void *begin;
    Kept *saved = nullptr; // the save of it that the operator has made
  };
  bool statistics = false; // whether it is batch norm: in training, its backward does not read what it overwrites
  c10::SmallVector<Range, 4> ranges;
};

inline std::atomic<uint64_t> armings{0}; // how often noclobber has begun to see

struct Thread {
  uint64_t arming = 0; // the one in which this thread was entered
  bool usual = false; // whether writes of this thread may be taken here: it was entered, and no optimizer step is on
  bool muted = false; // whether the key is off for an optimizer step that was taken here
  c10::intrusive_ptr<Hooks> hooks;
  Overwriting *overwriting = nullptr; // what the kernel under way overwrites
  std::vector<PastSave> past;
  size_t next_past = 0;
  uint64_t era = 0; // of the places in `past`
};

inline Thread &thread() {
  static thread_local Thread mine;
  return mine;
}

inline void note_past(Thread &mine, int64_t node, const Place *place) {
  uint64_t era = places_era.load(std::memory_order_relaxed);
  if (mine.era != era) {
    mine.past.assign(HISTORY, PastSave{-1, nullptr});
    mine.era = era;
  }
  mine.past[mine.next_past] = {node, place};
  mine.next_past = (mine.next_past + 1) % HISTORY;
}

// -- the live table ----------------------------------------------------------------------------------------------------

struct Link {
  Link *before = this, *after = this;
  void unlink() {
    before->after = after;
    after->before = before;
    before = after = this;
  }
  void append_to(Link &list) {
    before = list.before;
    after = &list;
    list.before->after = this;
    list.before = this;
  }
  bool is_alone() const { return after == this; }
};

// What tells the bytes of a large tensor, as `identity` of witness/digests.py. `begin` is null for all other tensors.
struct Identity {
  const void *begin = nullptr;
  uint32_t version = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::DimVector sizes, strides;
  bool operator==(const Identity &) const = default;
};
struct IdentityHash {
  size_t operator()(const Identity &identity) const { return mixed((uintptr_t)identity.begin, identity.version); }
};

inline int64_t large = 0; // bytes from which on a tensor that is saved several times is hashed once

// Returns what tells bytes that cannot have changed by a counted write; empty for small tensors, and for memory that torch
// did not allocate.
inline Identity identity_of(const at::Tensor &tensor) {
  if (tensor.numel() * (int64_t)tensor.element_size() < large || !tensor.storage().resizable() ||
      tensor.storage().data() == nullptr) {
    return {};
  }
  return {tensor.const_data_ptr(), version_of(tensor.unsafeGetTensorImpl()), tensor.scalar_type(),
          at::DimVector(tensor.sizes()), at::DimVector(tensor.strides())};
}

// Returns true for memory that torch has allocated for this process alone.
inline bool is_of_torch(const at::Tensor &tensor) {
  return tensor.storage().data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
}

struct Kept;

// Where a save lies: sorted by storage, and there by the power of 2 that is not less than its length in bytes, and by where
// it begins. So those that a span meets lie side by side.
struct Filed {
  uintptr_t storage;
  int size;
  int64_t begin;
  auto operator<=>(const Filed &) const = default;
};
using LiveTable = std::multimap<Filed, Kept *>;

enum ViewKind : int8_t { NO_VIEW = 0, VIEW = 1, MADE_ASIDE = 2, ONE_OF_SEVERAL = 3 }; // the classes of save_hooks.py

// What is known of one save. All but `alias` and `handle` is written once, when the save is made.
struct Kept : c10::intrusive_ptr_target, Link {
  at::Tensor alias; // shares storage and version counter, and holds no graph; only until there is a handle
  c10::weak_intrusive_ptr<at::TensorImpl> tensor{c10::intrusive_ptr<at::TensorImpl>()};
  uint32_t version = 0;
  ViewKind view = NO_VIEW;
  bool has_digest = false;
  bool in_graph = false;
  bool is_statistic = false; // of batch norm in training, whose node saves it but does not read it
  uint64_t digest = 0;
  Identity identity;
  int64_t node = 0, moment = 0;
  const Place *place = nullptr;
  c10::intrusive_ptr<Hooks> hooks;
  Span span;
  const void *counter = nullptr;                // that of the version, once the save is filed
  std::optional<LiveTable::iterator> filed;
  std::atomic<PyObject *> handle{nullptr}; // Python's Handle of this save once there is one; set with the GIL

  ~Kept() override {
    if (handle != nullptr && Py_IsInitialized()) {
      Gil gil;
      Py_DECREF(handle.load());
    }
  }
};

inline std::mutex table_lock; // never held while Python runs, nor while the GIL is waited for
inline Link unsorted;
inline LiveTable live_saves;
inline std::unordered_map<const void *, size_t> live_counters; // how many filed saves have a version counter
inline std::atomic<size_t> alive{0};
inline std::unordered_map<Identity, Kept *, IdentityHash> saved_digests;

// A write must know of a save wherever it goes, and Python with it, if the save is of large bytes that have no fingerprint
// yet, or of a view outside of the graph: Python notes its base.
inline bool is_met_anywhere(const Kept &save) {
  return (save.hooks->contents && !save.has_digest) || (save.view != NO_VIEW && !save.in_graph);
}

inline void file_saves() { // with the lock
  while (!unsorted.is_alone()) {
    auto *kept = static_cast<Kept *>(unsorted.after);
    kept->unlink();
    auto *alias = kept->alias.unsafeGetTensorImpl();
    kept->span = is_met_anywhere(*kept) ? Span{} : span_of(alias);
    kept->counter = counter_of(alias);
    live_counters[kept->counter]++;
    const int size = (int)std::bit_width((uint64_t)(kept->span.end - kept->span.begin));
    kept->filed = live_saves.emplace(Filed{storage_key(alias), size, kept->span.begin}, kept);
  }
}

// Calls `visit` with the saves on a storage that a span meets, until it returns true; returns whether it has. With the lock.
template <class Visit> bool any_meeting(uintptr_t storage, Span span, Visit visit) {
  auto at = live_saves.lower_bound({storage, 0, INT64_MIN});
  while (at != live_saves.end() && at->first.storage == storage) {
    const int size = at->first.size;
    const int64_t from = size < 62 ? span.begin - (int64_t(1) << size) : INT64_MIN;
    at = live_saves.lower_bound({storage, size, from});
    for (; at != live_saves.end() && at->first < Filed{storage, size, span.end}; ++at) {
      if (at->second->span.end > span.begin && visit(*at->second)) {
        return true;
      }
    }
    at = live_saves.lower_bound({storage, size + 1, INT64_MIN});
  }
  return false;
}

// Returns true if a save that is not Python's yet lies on a storage.
inline bool is_saved(uintptr_t key) {
  if (alive == 0) {
    return false;
  }
  std::lock_guard<std::mutex> guard(table_lock);
  file_saves();
  auto at = live_saves.lower_bound({key, 0, INT64_MIN});
  return at != live_saves.end() && at->first.storage == key;
}

// Returns true if the version of a save that is not Python's yet moves when that of a tensor does.
inline bool moves_a_save(const at::TensorImpl *tensor) {
  if (alive == 0) {
    return false;
  }
  std::lock_guard<std::mutex> guard(table_lock);
  file_saves();
  return live_counters.count(counter_of(tensor)) != 0;
}

// Where the elements of a tensor lie in its storage: in rows of one length, at the same place in each.
struct Rows {
  explicit Rows(const at::TensorImpl *tensor) : begin(tensor->storage_offset()) {
    for (int64_t i = 0; i < tensor->dim(); i++) {
      const int64_t steps = tensor->size(i) - 1, stride = tensor->stride(i);
      if (steps <= 0) {
        continue;
      }
      if (stride > row) {
        inner += row * rows; // the dimension that was taken for that of the rows lies within one
        row = stride;
        rows = steps;
      } else {
        inner += stride * steps;
      }
    }
  }
  int64_t end() const { return begin + inner + row * rows; }
  int64_t begin, row = 0, rows = 0, inner = 1; // `inner`: the elements from the first to the last in a row
};

// Returns true if two tensors of one storage certainly share no byte. False is not exact.
inline bool are_apart(const at::TensorImpl *one, const at::TensorImpl *other) {
  if (one->itemsize() != other->itemsize()) {
    return false;
  }
  if (one->numel() == 0 || other->numel() == 0) {
    return true;
  }
  const Rows first(one), second(other);
  if (first.end() <= second.begin || second.end() <= first.begin) {
    return true;
  }
  if (first.row != second.row || first.row == 0) {
    return false;
  }
  const int64_t a = first.begin % first.row, b = second.begin % second.row;
  return a + first.inner <= first.row && b + second.inner <= first.row &&
         (a + first.inner <= b || b + second.inner <= a);
}

// Returns true if a write to a tensor may concern a save that is not Python's yet.
inline bool may_clobber(uintptr_t key, const at::TensorImpl *written) {
  if (alive == 0) {
    return false;
  }
  std::lock_guard<std::mutex> guard(table_lock);
  file_saves();
  return any_meeting(key, span_of(written), [written](const Kept &save) {
    return is_met_anywhere(save) || !are_apart(save.alias.unsafeGetTensorImpl(), written);
  });
}

inline void take_out(Kept &kept) { // with the lock
  if (!kept.is_alone()) {
    kept.unlink();
    alive--;
  }
  if (kept.filed) {
    live_saves.erase(*kept.filed);
    kept.filed.reset();
    if (auto known = live_counters.find(kept.counter); --known->second == 0) {
      live_counters.erase(known);
    }
    alive--;
  }
  if (kept.identity.begin != nullptr) {
    auto known = saved_digests.find(kept.identity);
    if (known != saved_digests.end() && known->second == &kept) {
      saved_digests.erase(known);
    }
  }
}

// Returns the Handle of a save, borrowed; null with Python's error set if it cannot be made. To be called with the GIL.
inline PyObject *handle_of(Kept &kept) {
  if (kept.handle != nullptr) {
    return kept.handle;
  }
  PyObject *tensor = Py_None, *made = nullptr;
  auto original = kept.tensor.lock();
  if (original) {
    tensor = THPVariable_Wrap(at::Tensor(std::move(original)));
  } else {
    Py_INCREF(tensor);
  }
  PyObject *alias = THPVariable_Wrap(kept.alias);
  PyObject *digest = kept.has_digest ? PyLong_FromUnsignedLongLong(kept.digest) : Py_NewRef(Py_None);
  PyObject *place = shown_place(kept.place);
  if (tensor != nullptr && alias != nullptr && digest != nullptr && place != nullptr) {
    made = PyObject_CallFunction(make_handle, "iOOKOLLO", (int)kept.view, tensor, alias,
                                 (unsigned long long)kept.version, digest, (long long)kept.node,
                                 (long long)kept.moment, place);
  }
  Py_XDECREF(tensor);
  Py_XDECREF(alias);
  Py_XDECREF(digest);
  Py_XDECREF(place);
  if (made == nullptr || kept.handle != nullptr) {
    Py_XDECREF(made); // another thread was faster
    return kept.handle;
  }
  // `swap_tensors` refuses a tensor to which weak references of C++ exist.
  kept.tensor = c10::weak_intrusive_ptr<at::TensorImpl>(c10::intrusive_ptr<at::TensorImpl>());
  at::Tensor dropped; // after the lock, as memory may go with it
  {
    std::lock_guard<std::mutex> guard(table_lock);
    kept.handle = made;
    dropped = std::move(kept.alias);
    take_out(kept);
  }
  return made;
}

// Makes Handles of the saves on a storage that a span meets, or of all if there is no storage. They are in Python's live
// table then.
inline bool hand_over(std::optional<uintptr_t> key, Span span = {}) { // with the GIL; false with Python's error set
  if (alive == 0) {
    return true;
  }
  std::vector<c10::intrusive_ptr<Kept>> found;
  auto find = [&found](Kept &save) {
    found.push_back(c10::intrusive_ptr<Kept>::unsafe_reclaim_from_nonowning(&save));
    return false;
  };
  {
    std::lock_guard<std::mutex> guard(table_lock);
    file_saves();
    if (key) {
      any_meeting(*key, span, find);
    } else {
      for (auto &[filed, save] : live_saves) {
        find(*save);
      }
    }
  }
  for (auto &kept : found) {
    if (handle_of(*kept) == nullptr) {
      return false;
    }
  }
  return true;
}

// -- what backward has read --------------------------------------------------------------------------------------------

// The fingerprints of large tensors that a backward without Python code has read already: nothing can change them.
inline std::atomic<bool> sharing{false};
inline std::mutex reads_lock;
inline std::unordered_map<Identity, uint64_t, IdentityHash> read_digests;

// What is outside of the graph may lie on the gradient of a leaf, to which backward adds.
inline std::optional<uint64_t> digest_at_read(const at::Tensor &alias, bool in_graph) {
  if (!sharing || !in_graph) {
    return fingerprint(alias);
  }
  Identity identity = identity_of(alias);
  if (identity.begin != nullptr) {
    std::lock_guard<std::mutex> guard(reads_lock);
    auto known = read_digests.find(identity);
    if (known != read_digests.end()) {
      return known->second;
    }
  }
  auto digest = fingerprint(alias);
  if (identity.begin != nullptr && digest) {
    std::lock_guard<std::mutex> guard(reads_lock);
    read_digests.emplace(identity, *digest);
  }
  return digest;
}

// -- hooks -------------------------------------------------------------------------------------------------------------

inline Engine *python_engine = nullptr;

// The hooks of one save. Either everything is here in `kept`, or `python` holds the hooks that Python's engine gives.
struct Save final : SavedVariableHooks {
  c10::intrusive_ptr<Kept> kept;
  std::unique_ptr<SavedVariableHooks> python;

  void call_pack_hook(const at::Tensor &tensor) override {
    Thread &mine = thread();
    if (!takes(mine, tensor) || !pack(mine, tensor)) {
      kept.reset();
      python = python_engine->get_default_saved_variable_hooks();
      python->call_pack_hook(tensor);
    }
  }

  static bool takes(const Thread &mine, const at::Tensor &tensor) {
    const Hooks &hooks = *mine.hooks;
    // A mode sees the detach of an alias, and knows noclobber's own by the Python frames.
    return mine.arming == armings && !c10::impl::TorchDispatchModeTLS::any_modes_set() && is_usual(tensor.unsafeGetTensorImpl()) && (!hooks.contents || tensor.is_cpu()) &&
           !is_among(hooks.handed, tensor) &&
           (!hooks.contents || mine.overwriting != nullptr || c10::impl::tls_is_dispatch_key_included(KEY));
  }

  // Returns true if a dict has the storage of a tensor; false if there is no dict.
  static bool is_among(PyObject *storages, const at::Tensor &tensor) {
    if (storages == nullptr || PyDict_GET_SIZE(storages) == 0) {
      return false;
    }
    Gil gil;
    PyObject *key = PyLong_FromUnsignedLongLong(storage_key(tensor.unsafeGetTensorImpl()));
    const bool is_there = key == nullptr || PyDict_Contains(storages, key) != 0;
    PyErr_Clear();
    Py_XDECREF(key);
    return is_there;
  }

  // Returns false if the save has bytes that cannot be read.
  bool pack(Thread &mine, const at::Tensor &tensor) {
    kept = c10::make_intrusive<Kept>();
    Kept &save = *kept;
    save.hooks = mine.hooks;
    save.alias = tensor.tensor_data();
    save.tensor = c10::weak_intrusive_ptr<at::TensorImpl>(tensor.getIntrusivePtr());
    save.version = version_of(save.alias.unsafeGetTensorImpl());
    save.in_graph = tensor.requires_grad();
    save.view = view_of(tensor);
    mark_statistic(mine, tensor, save);
    if (mine.hooks->contents && !digest(mine, save)) {
      return false;
    }
    save.node = (int64_t)at::sequence_number::peek() - 1; // of the node that is being made
    save.moment = latest_moment->load(std::memory_order_relaxed);
    save.place = place_here();
    note_past(mine, save.node, save.place);
    std::lock_guard<std::mutex> guard(table_lock);
    save.append_to(unsorted);
    alive++;
    return true;
  }

  static ViewKind view_of(const at::Tensor &tensor) {
    if (!tensor.is_view()) {
      return NO_VIEW;
    }
    if (tensor.requires_grad()) {
      return VIEW;
    }
    auto *meta = torch::autograd::impl::get_view_autograd_meta(tensor);
    auto made = meta != nullptr ? meta->get_creation_meta() : torch::autograd::CreationMeta::DEFAULT;
    return made == torch::autograd::CreationMeta::NO_GRAD_MODE        ? MADE_ASIDE
           : made == torch::autograd::CreationMeta::MULTI_OUTPUT_NODE ? ONE_OF_SEVERAL
                                                                      : VIEW;
  }

  static bool digest(const Thread &mine, Kept &save) {
    if (!is_overwritten(mine, storage_key(save.alias.unsafeGetTensorImpl()))) {
      save.identity = identity_of(save.alias);
    }
    PyObject *moved = save.hooks->moved;
    if (moved != nullptr && save.identity.begin != nullptr && is_of_torch(save.alias) && !is_among(moved, save.alias)) {
      save.identity = {};
      return true; // `takes` has seen that nothing is handed out
    }
    if (save.identity.begin != nullptr) {
      std::lock_guard<std::mutex> guard(table_lock);
      auto known = saved_digests.find(save.identity);
      if (known != saved_digests.end()) {
        save.digest = known->second->digest;
        return save.has_digest = true;
      }
    }
    auto digest = fingerprint(save.alias);
    if (!digest) {
      return false;
    }
    save.digest = *digest;
    save.has_digest = true;
    if (save.identity.begin != nullptr) {
      std::lock_guard<std::mutex> guard(table_lock);
      saved_digests.emplace(save.identity, &save);
    }
    return true;
  }

  // Returns true if the operator that saves overwrites the storage too, and the version may not tell.
  static bool is_overwritten(const Thread &mine, uintptr_t key) {
    return mine.overwriting != nullptr &&
           std::any_of(mine.overwriting->ranges.begin(), mine.overwriting->ranges.end(),
                       [key](const Overwriting::Range &range) { return range.storage == key; });
  }

  // Marks the save of a running statistic that batch norm makes in training. Memory that it saves twice may be its
  // weight too, which it reads.
  static void mark_statistic(const Thread &mine, const at::Tensor &tensor, Kept &save) {
    if (mine.overwriting == nullptr || !mine.overwriting->statistics) {
      return;
    }
    const void *begin = first_byte(tensor.unsafeGetTensorImpl());
    for (Overwriting::Range &range : mine.overwriting->ranges) {
      if (range.begin == begin) {
        save.is_statistic = range.saved == nullptr;
        if (range.saved != nullptr) {
          range.saved->is_statistic = false;
        }
        range.saved = &save;
        return;
      }
    }
  }

  // Returns true in the backward of the node that saved a statistic.
  static bool is_unread(const Kept &save) {
    if (!save.is_statistic) {
      return false;
    }
    auto node = torch::autograd::get_current_node();
    return node != nullptr && (int64_t)node->sequence_nr() == save.node;
  }

  // Where bytes are preserved, a write to other bytes may have moved the version.
  static bool is_unchanged(const Kept &save, const at::Tensor &alias) {
    if (version_of(alias.unsafeGetTensorImpl()) != save.version) {
      return save.hooks->keeping && save.has_digest && digest_at_read(alias, save.in_graph) == save.digest;
    }
    return !save.has_digest || is_unread(save) || digest_at_read(alias, save.in_graph) == save.digest;
  }

  at::Tensor call_unpack_hook() override {
    if (python) {
      return python->call_unpack_hook();
    }
    Kept &save = *kept;
    at::Tensor alias;
    {
      std::lock_guard<std::mutex> guard(table_lock);
      alias = save.alias; // undefined once there is a handle
    }
    if (alias.defined() && is_unchanged(save, alias)) {
      return alias;
    }
    Gil gil;
    PyObject *handle = handle_of(save);
    PyObject *read = handle != nullptr ? PyObject_CallOneArg(save.hooks->unpack, handle) : nullptr;
    if (read == nullptr) {
      python_error error;
      error.persist();
      throw error;
    }
    at::Tensor tensor = THPVariable_Unpack(read);
    Py_DECREF(read);
    return tensor;
  }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data() const override {
    if (python) {
      return python->retrieve_unpack_hook_data();
    }
    Gil gil;
    PyObject *handle = handle_of(*kept);
    if (handle == nullptr) {
      python_error error;
      error.persist();
      throw error;
    }
    auto *interpreter = c10::impl::getGlobalPyInterpreter();
    return std::make_pair(c10::SafePyObject(Py_NewRef(kept->hooks->unpack), interpreter),
                          c10::SafePyObject(Py_NewRef(handle), interpreter));
  }

  ~Save() override {
    if (!kept) {
      return;
    }
    std::lock_guard<std::mutex> guard(table_lock);
    take_out(*kept);
  }
};

// -- the engine --------------------------------------------------------------------------------------------------------

inline std::atomic<bool> taking_saves{false};

template <class Method> struct SecondOf;
template <class Result, class Class, class First, class Second, class Third>
struct SecondOf<Result (Class::*)(First, Second, Third)> {
  using type = Second;
};

// The engine of Python with one difference: where noclobber's hooks are uppermost, it gives the hooks above.
struct HookedEngine final : Engine {
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    const Thread &mine = thread();
    if (taking_saves.load(std::memory_order_relaxed) && mine.hooks) {
      auto &state = at::SavedTensorDefaultHooks::get_tls_state();
      if (!state.stack.empty() && !state.is_tracing &&
          state.stack.top().first.ptr(c10::impl::getGlobalPyInterpreter()) == mine.hooks->pack) {
        return std::make_unique<Save>();
      }
    }
    return python_engine->get_default_saved_variable_hooks();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list &roots,
                                         const torch::autograd::variable_list &inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list &outputs) override {
    return python_engine->execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  using Root = SecondOf<decltype(&Engine::execute_with_graph_task)>::type; // torch 2.13 has another pointer than 2.10
  c10::intrusive_ptr<at::ivalue::Future>
  execute_with_graph_task(const std::shared_ptr<torch::autograd::GraphTask> &task, Root root,
                          torch::autograd::InputBuffer &&buffer) override {
    return python_engine->execute_with_graph_task(task, std::move(root), std::move(buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return python_engine->make_anomaly_metadata();
  }
};

inline HookedEngine *hooked_engine = nullptr;

inline Engine &the_hooked_engine() { return *hooked_engine; }
inline Engine &the_python_engine() { return *python_engine; }

// Returns false where somebody else has replaced the engine: then saves stay with Python.
inline bool take_saves(bool on) {
  Engine &now = Engine::get_default_engine();
  if (hooked_engine == nullptr) {
    python_engine = &now;
    hooked_engine = new HookedEngine(); // never freed: the engine's threads are not joined either
  }
  if (&now != (on ? python_engine : static_cast<Engine *>(hooked_engine))) {
    taking_saves = false;
    return !on;
  }
  torch::autograd::set_default_engine_stub(on ? the_hooked_engine : the_python_engine);
  taking_saves = on;
  return true;
}

} // namespace noclobber
