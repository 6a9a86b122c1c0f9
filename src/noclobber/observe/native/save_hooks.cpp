#include "save_hooks.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <unordered_map>

#include "history.h"

namespace noclobber {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

namespace {

Engine *python_engine = nullptr;

std::atomic<bool> sharing{false};
std::unordered_map<Identity, uint64_t, IdentityHash> read_digests; // with the lock

// What is outside of the graph may lie on the gradient of a leaf, to which backward adds.
std::optional<uint64_t> digest_at_read(const at::Tensor &alias, bool in_graph) {
  Identity identity = sharing && in_graph ? identity_of(alias) : Identity{};
  if (identity.begin == nullptr) {
    return fingerprint(alias);
  }
  {
    std::lock_guard<std::mutex> guard(lock);
    if (auto known = read_digests.find(identity); known != read_digests.end()) {
      return known->second;
    }
  }
  auto digest = fingerprint(alias);
  if (digest) {
    std::lock_guard<std::mutex> guard(lock);
    read_digests.emplace(std::move(identity), *digest);
  }
  return digest;
}

// Returns true for memory that torch has allocated for this process alone.
bool is_of_torch(const at::Tensor &tensor) {
  return tensor.storage().data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
}

ViewKind view_of(const at::Tensor &tensor) {
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

// Returns true if the operator that saves may overwrite the storage too, and the version may not tell. What an operator
// writes that Python takes is not known here: the key is off in it, as in a backward.
bool is_overwritten(const Thread &mine, uintptr_t key) {
  if (mine.overwriting == nullptr) {
    return !key_is_set();
  }
  return std::any_of(mine.overwriting->ranges.begin(), mine.overwriting->ranges.end(),
                     [key](const Overwriting::Range &range) { return range.storage == key; });
}

// Marks the save of a running statistic that batch norm makes in training. Memory that it saves twice may be its weight
// too, which it reads.
void mark_statistic(const Thread &mine, const at::Tensor &tensor, Save &save) {
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
bool is_unread(const Save &save) {
  auto node = save.is_statistic ? torch::autograd::get_current_node() : nullptr;
  return node != nullptr && (int64_t)node->sequence_nr() == save.node;
}

// Where bytes are preserved, a write to other bytes may have moved the version.
bool is_unchanged(const Save &save, const at::Tensor &alias) {
  if (version_of(alias.unsafeGetTensorImpl()) != save.version) {
    return save.hooks->keeping && save.digest && digest_at_read(alias, save.in_graph) == save.digest;
  }
  return !save.digest || is_unread(save) || digest_at_read(alias, save.in_graph) == save.digest;
}

bool is_for_python(const Thread &mine, const at::Tensor &tensor) {
  Hooks &hooks = *mine.hooks;
  // A mode sees the detach of an alias, and knows noclobber's own by the Python frames.
  return mine.arming != flags.armings || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         !is_usual(tensor.unsafeGetTensorImpl()) || (hooks.contents && !tensor.is_cpu()) ||
         (hooks.handed && is_in(hooks.handed, storage_key(tensor)));
}

// Takes the fingerprint of a save. Returns false if it has bytes that cannot be read.
bool take_digest(const Thread &mine, Save &save) {
  if (!is_overwritten(mine, storage_key(save.alias))) {
    save.identity = identity_of(save.alias);
  }
  const bool is_large = save.identity.begin != nullptr;
  Hooks &hooks = *save.hooks;
  if (hooks.moved && is_large && is_of_torch(save.alias) && !is_in(hooks.moved, storage_key(save.alias))) {
    save.identity = {};
    return true; // nothing is handed out, so code outside of torch cannot write it
  }
  save.digest = is_large ? digest_of(save.identity) : std::nullopt;
  if (!save.digest) {
    save.digest = fingerprint(save.alias);
    if (save.digest && is_large) {
      keep_digest(save);
    }
  }
  return save.digest.has_value();
}

// The hooks of one save. Either everything is here in `save`, or `python` holds the hooks that Python's engine gives.
struct SaveHooks final : SavedVariableHooks {
  c10::intrusive_ptr<Save> save;
  std::unique_ptr<SavedVariableHooks> python;

  void call_pack_hook(const at::Tensor &tensor) override {
    Thread &mine = thread();
    const int64_t moment = latest_moment(); // before the question: where seeing begins anew meanwhile, it is from before
    if (is_for_python(mine, tensor) || !pack(mine, tensor, moment)) {
      save.reset();
      python = python_engine->get_default_saved_variable_hooks();
      python->call_pack_hook(tensor);
    }
  }

  bool pack(Thread &mine, const at::Tensor &tensor, int64_t moment) {
    save = c10::make_intrusive<Save>();
    save->hooks = mine.hooks;
    save->alias = tensor.tensor_data();
    save->tensor = c10::weak_intrusive_ptr<at::TensorImpl>(tensor.getIntrusivePtr());
    save->version = version_of(save->alias.unsafeGetTensorImpl());
    save->in_graph = tensor.requires_grad();
    save->view = view_of(tensor);
    mark_statistic(mine, tensor, *save);
    if (mine.hooks->contents && !take_digest(mine, *save)) {
      return false;
    }
    save->node = (int64_t)at::sequence_number::peek() - 1; // of the node that is being made
    save->moment = moment;
    save->place = place_here();
    mine.saves_at(save->node, save->place);
    add(*save);
    return true;
  }

  at::Tensor call_unpack_hook() override {
    if (python) {
      return python->call_unpack_hook();
    }
    at::Tensor alias;
    {
      std::lock_guard<std::mutex> guard(lock);
      alias = save->alias; // undefined once there is a handle
    }
    if (alias.defined() && is_unchanged(*save, alias)) {
      return alias;
    }
    Gil gil;
    return THPVariable_Unpack(owned(PyObject_CallOneArg(save->hooks->unpack, handle_of(*save))));
  }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data() const override {
    if (python) {
      return python->retrieve_unpack_hook_data();
    }
    Gil gil;
    PyObject *handle = handle_of(*save);
    return std::make_pair(c10::SafePyObject(save->hooks->unpack.dup().release(), getPyInterpreter()),
                          c10::SafePyObject(Py_NewRef(handle), getPyInterpreter()));
  }

  ~SaveHooks() override {
    if (save) {
      take_out(*save);
    }
  }
};

std::atomic<bool> taking_saves{false};

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
          state.stack.top().first.ptr(getPyInterpreter()) == mine.hooks->pack) {
        return std::make_unique<SaveHooks>();
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

HookedEngine *hooked_engine = nullptr; // never freed: the engine's threads are not joined either

Engine &the_hooked_engine() { return *hooked_engine; }
Engine &the_python_engine() { return *python_engine; }

} // namespace

void share_reads(bool on) {
  sharing = on;
  std::lock_guard<std::mutex> guard(lock);
  read_digests.clear();
}

void take_saves(bool on) {
  Engine &now = Engine::get_default_engine();
  if (hooked_engine == nullptr) {
    python_engine = &now;
    hooked_engine = new HookedEngine();
  }
  const bool is_ours = &now == (on ? python_engine : static_cast<Engine *>(hooked_engine));
  if (is_ours) {
    torch::autograd::set_default_engine_stub(on ? the_hooked_engine : the_python_engine);
  }
  taking_saves = on && is_ours;
}

} // namespace noclobber
