#include "storage_ref.h"

namespace noclobber {

namespace {

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct StorageRef {
  PyObject_HEAD
  Weak storage;
};

uintptr_t cdata(PyObject *self) { return (uintptr_t)((StorageRef *)self)->storage._unsafe_get_target(); }

PyObject *show_cdata(PyObject *self, void *) { return PyLong_FromUnsignedLongLong(cdata(self)); }

PyObject *expired(PyObject *self, PyObject *) { return PyBool_FromLong(((StorageRef *)self)->storage.expired()); }

Py_hash_t hash(PyObject *self) { return (Py_hash_t)(cdata(self) >> 4); }

PyObject *compare(PyObject *self, PyObject *other, int how) {
  if (Py_TYPE(self) != Py_TYPE(other) || (how != Py_EQ && how != Py_NE)) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  return PyBool_FromLong((cdata(self) == cdata(other)) == (how == Py_EQ));
}

void dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  std::destroy_at(&((StorageRef *)self)->storage);
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject *made_type() {
  static PyMethodDef methods[] = {{"expired", expired, METH_NOARGS, nullptr}, {}};
  static PyGetSetDef attributes[] = {{"cdata", show_cdata, nullptr, nullptr, nullptr}, {}};
  PyType_Slot slots[] = {{Py_tp_dealloc, (void *)dealloc}, {Py_tp_hash, (void *)hash},
                         {Py_tp_richcompare, (void *)compare}, {Py_tp_methods, methods}, {Py_tp_getset, attributes}, {}};
  PyType_Spec spec = {"noclobber_hot_path.StorageRef", sizeof(StorageRef), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return (PyTypeObject *)owned(PyType_FromSpec(&spec)).release();
}

} // namespace

THPObjectPtr storage_ref(at::TensorImpl *tensor) {
  static PyTypeObject *const type = made_type();
  auto made = owned(type->tp_alloc(type, 0));
  new (&((StorageRef *)made.get())->storage) Weak(tensor->unsafe_storage().getWeakStorageImpl());
  return made;
}

} // namespace noclobber
