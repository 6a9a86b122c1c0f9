#include "write_log.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include "frames.h"

namespace noclobber {

namespace {

constexpr uintptr_t IN_GRAPH = 0; // of core/context.py

struct Looks {
  THPObjectPtr attentive, attended, followed;
};
Looks &look = *new Looks;

bool inside_autograd() { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView); }

// Returns what `private.is_only_holder` returns. The Python object of a storage, where there is one, holds it too.
bool is_only_holder(const c10::Storage &storage) {
  const bool in_python = storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
  return storage.use_count() <= 1 + (size_t)in_python && storage.resizable();
}

// Returns true if a write under `no_grad` hides something from autograd: what is written is computed in the graph, or a view
// of what is in it.
bool is_untracked(const at::Tensor &tensor) {
  return tensor.is_view() ? tensor.requires_grad() || tensor._base().requires_grad()
                          : tensor.requires_grad() && !tensor.is_leaf();
}

// Returns true in an autocast region: Python looks there at what autograd does not see (stale_casts.py).
bool in_autocast() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

// Returns true inside a transform of torch.func. What it calls may have taken the operator's arguments off the stack when it
// raises (torch 2.13, vmap; tests/observe/describe/test_transforms.py).
bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// Returns true if the engine itself writes: no code of Python that it called. Its own threads may have no frame at all.
// Nobody waits for such a write (gradient_writes.py has the same name), and a backward of many views makes thousands.
bool is_of_engine() {
  if (torch::autograd::get_current_graph_task_id() == -1) {
    return false;
  }
  void *frame = noclobber_innermost_frame();
  return frame == nullptr || PyUnicode_CompareWithASCIIString(((PyCodeObject *)noclobber_code_of(frame))->co_name,
                                                              "_engine_run_backward") == 0;
}

} // namespace

void log_with(PyObject *attentive, PyObject *attended, PyObject *followed) {
  look = {THPObjectPtr::dup(attentive), THPObjectPtr::dup(attended), THPObjectPtr::dup(followed)};
}

bool are_for_python(const Thread &mine) {
  return !flags.on || !mine.usual || in_transform() ||
         (flags.watching && ((PyDict_GET_SIZE(look.attentive.get()) != 0 && !is_of_engine()) ||
                             (!c10::GradMode::is_enabled() && in_autocast())));
}

Way way_of(const Operator &op, const at::Tensor &tensor) {
  auto *impl = tensor.unsafeGetTensorImpl();
  if (!is_usual(impl)) {
    return Way::FOR_PYTHON;
  }
  if (!flags.watching) {
    return op.moves_none || inside_autograd() ? Way::IGNORED : Way::NOTED;
  }
  const uintptr_t key = storage_key(impl);
  const bool off = !c10::GradMode::is_enabled(), in_graph = tensor.requires_grad();
  if ((off && is_untracked(tensor)) || is_in(look.attended, key) || (in_graph && is_in(look.attended, IN_GRAPH))) {
    return Way::FOR_PYTHON;
  }
  if (is_counted(op, tensor) && !flags.careful) {
    return Way::NOTED;
  }
  if ((op.detaches && in_graph) || (op.resizes ? is_saved(key) : may_clobber(key, impl)) || python_saves.has(key)) {
    return Way::FOR_PYTHON;
  }
  if (in_graph || (!op.uncounted && moves_a_save(impl)) || is_in(look.followed, key) || is_reread(key)) {
    return Way::NOTED;
  }
  // Is no view of the memory there that PyTorch could refuse, or does no version move?
  const bool is_alone = off || is_only_holder(tensor.storage()) || inside_autograd();
  return is_alone ? Way::IGNORED : Way::NOTED;
}

} // namespace noclobber
