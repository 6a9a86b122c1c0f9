// A reference to a storage that does not hold the memory, as PyTorch's StorageWeakRef is one.
#pragma once

#include "layout.h"
#include "python.h"

namespace noclobber {

struct StorageRef {
  explicit StorageRef(at::TensorImpl *tensor) : storage(tensor->unsafe_storage().getWeakStorageImpl()) {}
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  bool expired() const { return storage.expired(); }
  uintptr_t cdata() const { return (uintptr_t)storage._unsafe_get_target(); }
};

inline THPObjectPtr shown(StorageRef storage) {
  return owned(pybind11::cast(std::move(storage)).release().ptr());
}

} // namespace noclobber
