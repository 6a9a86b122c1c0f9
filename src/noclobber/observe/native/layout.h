// Where tensors lie in memory, and what tells their memory and versions apart; as witness/layout.py.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace noclobber {

// Returns true for a tensor whose Python object, if it has one, is of torch.Tensor or Parameter.
bool is_plain(const at::TensorImpl *tensor, bool or_parameter = true);

// Returns true for a tensor whose memory, version and geometry can be read here as they are.
bool is_usual(at::TensorImpl *tensor);

// Returns what `private.storage_key` returns: the address where the storage begins, or that of the StorageImpl.
// tests/observe/native/test_identities.py compares the two.
inline uintptr_t storage_key(at::TensorImpl *tensor) {
  auto *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  auto begin = (uintptr_t)storage->data();
  return begin != 0 ? begin : (uintptr_t)storage;
}
inline uintptr_t storage_key(const at::Tensor &tensor) { return storage_key(tensor.unsafeGetTensorImpl()); }

inline const void *first_byte(at::TensorImpl *tensor) {
  return (const char *)tensor->unsafe_storage().unsafeGetStorageImpl()->data() +
         tensor->storage_offset() * (int64_t)tensor->itemsize();
}

// The bytes of a storage that a tensor shows, from the first to the one behind the last.
struct Span {
  int64_t begin = 0, end = INT64_MAX;
};
Span span_of(const at::TensorImpl *tensor);

// Returns true if two tensors of one storage certainly share no byte. False is not exact.
bool are_apart(const at::TensorImpl *one, const at::TensorImpl *other);

// Returns what is the same for tensors that share a version counter: the address of the counter.
inline const void *counter_of(const at::TensorImpl *tensor) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void *)); // one pointer; test_identities.py
  const void *counter;
  std::memcpy(&counter, &tensor->version_counter(), sizeof(counter));
  return counter;
}

inline uint32_t version_of(const at::TensorImpl *tensor) { return tensor->version_counter().current_version(); }

} // namespace noclobber
