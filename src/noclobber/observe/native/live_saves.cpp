#include "live_saves.h"

#include <bit>
#include <unordered_map>

namespace noclobber {

std::atomic<size_t> alive{0};

namespace {

// All with the lock. A save is linked first, and filed when a write asks.
Link linked;
std::multimap<Filed, Save *> live_saves;
std::unordered_map<const void *, size_t> live_counters; // how many filed saves have a version counter
std::unordered_map<Identity, Save *, IdentityHash> saved_digests;

bool is_alone(const Link &link) { return link.after == &link; }

void unlink(Link &link) {
  link.before->after = link.after;
  link.after->before = link.before;
  link.before = link.after = &link;
}

// A write must know of a save wherever it goes, and Python with it, if the save is of large bytes that have no fingerprint
// yet, or of a view outside of the graph: Python notes its base.
bool is_met_anywhere(const Save &save) {
  return (save.hooks->contents && !save.digest) || (save.view != NO_VIEW && !save.in_graph);
}

void file_saves() {
  while (!is_alone(linked)) {
    auto *save = static_cast<Save *>(linked.after);
    unlink(*save);
    auto *alias = save->alias.unsafeGetTensorImpl();
    save->span = is_met_anywhere(*save) ? Span{} : span_of(alias);
    save->counter = counter_of(alias);
    live_counters[save->counter]++;
    const int size = (int)std::bit_width((uint64_t)(save->span.end - save->span.begin));
    save->filed = live_saves.emplace(Filed{storage_key(alias), size, save->span.begin}, save);
  }
}

// Returns what a question of the live table answers.
template <class Question> bool asked(Question question) {
  if (alive == 0) {
    return false;
  }
  std::lock_guard<std::mutex> guard(lock);
  file_saves();
  return question();
}

// Calls `visit` with the saves on a storage that a span meets, until it returns true; returns whether it has.
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

void remove(Save &save) { // with the lock
  if (!is_alone(save)) {
    unlink(save);
    alive--;
  }
  if (save.filed) {
    live_saves.erase(*save.filed);
    save.filed.reset();
    if (auto known = live_counters.find(save.counter); --known->second == 0) {
      live_counters.erase(known);
    }
    alive--;
  }
  if (save.identity.begin != nullptr) {
    auto known = saved_digests.find(save.identity);
    if (known != saved_digests.end() && known->second == &save) {
      saved_digests.erase(known);
    }
  }
}

} // namespace

Save::~Save() {
  if (handle && Py_IsInitialized()) {
    Gil gil;
    handle = nullptr;
  }
}

void add(Save &save) {
  std::lock_guard<std::mutex> guard(lock);
  save.before = linked.before;
  save.after = &linked;
  linked.before->after = &save;
  linked.before = &save;
  alive++;
}

void take_out(Save &save) {
  std::lock_guard<std::mutex> guard(lock);
  remove(save);
}

std::optional<uint64_t> digest_of(const Identity &identity) {
  std::lock_guard<std::mutex> guard(lock);
  auto known = saved_digests.find(identity);
  return known != saved_digests.end() ? known->second->digest : std::nullopt;
}

void keep_digest(Save &save) {
  std::lock_guard<std::mutex> guard(lock);
  saved_digests.emplace(save.identity, &save);
}

void forget_digests() {
  std::lock_guard<std::mutex> guard(lock);
  saved_digests.clear();
}

bool is_saved(uintptr_t storage) {
  return asked([&] {
    auto at = live_saves.lower_bound({storage, 0, INT64_MIN});
    return at != live_saves.end() && at->first.storage == storage;
  });
}

bool may_clobber(uintptr_t storage, const at::TensorImpl *written) {
  auto is_met = [written](const Save &save) {
    return is_met_anywhere(save) || !are_apart(save.alias.unsafeGetTensorImpl(), written);
  };
  return asked([&] { return any_meeting(storage, span_of(written), is_met); });
}

bool moves_a_save(const at::TensorImpl *tensor) {
  return asked([&] { return live_counters.count(counter_of(tensor)) != 0; });
}

PyObject *handle_of(Save &save) {
  if (save.handle) {
    return save.handle;
  }
  static PyObject *const make_handle = from_python("make_handle");
  auto original = save.tensor.lock();
  auto tensor = original ? owned(THPVariable_Wrap(at::Tensor(std::move(original)))) : THPObjectPtr::none();
  auto alias = owned(THPVariable_Wrap(save.alias));
  auto digest = save.digest ? number(*save.digest) : THPObjectPtr::none();
  auto place = shown_place(save.place);
  auto made = owned(PyObject_CallFunction(make_handle, "iOOKOLLO", (int)save.view, tensor.get(), alias.get(),
                                          (unsigned long long)save.version, digest.get(), (long long)save.node,
                                          (long long)save.moment, place.get()));
  if (save.handle) {
    return save.handle; // another thread was faster
  }
  // `swap_tensors` refuses a tensor to which weak references of C++ exist.
  save.tensor = c10::weak_intrusive_ptr<at::TensorImpl>(c10::intrusive_ptr<at::TensorImpl>());
  at::Tensor dropped; // after the lock, as memory may go with it
  std::lock_guard<std::mutex> guard(lock);
  save.handle = std::move(made);
  dropped = std::move(save.alias);
  remove(save);
  return save.handle;
}

void hand_over(std::optional<uintptr_t> storage, Span span) {
  std::vector<c10::intrusive_ptr<Save>> found;
  auto find = [&found](Save &save) {
    found.push_back(c10::intrusive_ptr<Save>::unsafe_reclaim_from_nonowning(&save));
    return false;
  };
  asked([&] {
    if (storage) {
      return any_meeting(*storage, span, find);
    }
    for (auto &[filed, save] : live_saves) {
      find(*save);
    }
    return false;
  });
  for (auto &save : found) {
    handle_of(*save);
  }
}

} // namespace noclobber
