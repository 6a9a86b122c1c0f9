#include "regions.h"

#include <ATen/SequenceNumber.h>
#include <structmember.h>

#include "digests.h"
#include "history.h"
#include "storage_ref.h"
#include "threads.h"

namespace noclobber {

namespace {

// A slot of one of Python's classes, of which objects are made here without a call of `__init__`.
class Slot {
public:
  Slot(PyTypeObject *kind, const char *name) {
    auto member = owned(PyObject_GetAttrString((PyObject *)kind, name));
    TORCH_CHECK(Py_IS_TYPE(member.get(), &PyMemberDescr_Type), "no slot ", name);
    offset = ((PyMemberDescrObject *)member.get())->d_member->offset;
  }
  PyObject *in(PyObject *save) const { return *at(save); } // borrowed
  void fill(PyObject *save, THPObjectPtr value) const { *at(save) = value.release(); }

private:
  PyObject **at(PyObject *save) const { return (PyObject **)((char *)save + offset); }
  Py_ssize_t offset;
};

// Takes an object that is filled with what leads nowhere out of the sight of the garbage collector.
THPObjectPtr unseen(THPObjectPtr made) {
  PyObject_GC_UnTrack(made.get());
  return made;
}

struct RegionSave {
  explicit RegionSave(PyObject *type)
      : kind((PyTypeObject *)Py_NewRef(type)), version(kind, "version"), key(kind, "key"), node(kind, "node"), moment(kind, "moment"),
        place(kind, "place"), digest(kind, "digest"), order(kind, "order"), rough(kind, "rough"),
        filled_last(kind, "filled_last") {}
  PyTypeObject *kind;
  Slot version, key, node, moment, place, digest, order, rough, filled_last;
};

// What Python has asked for: one region's part of it.
struct Asked {
  PyObject *saves, *kind, *contents, *note, *is_as_saved;
  explicit Asked(PyObject *tuple) // the checked one of `region_functions`
      : saves(PyTuple_GET_ITEM(tuple, 0)), kind(PyTuple_GET_ITEM(tuple, 1)), contents(PyTuple_GET_ITEM(tuple, 2)),
        note(PyTuple_GET_ITEM(tuple, 3)), is_as_saved(PyTuple_GET_ITEM(tuple, 4)) {}
  const RegionSave &slots() const {
    static const RegionSave slots(kind);
    return slots;
  }
};

// Returns true if a save in this thread is for Python: nobody watches, or one of Python's kernels may fill it later.
bool is_for_python(const Thread &mine) { return !flags.on || (!key_is_set() && mine.overwriting == nullptr); }

THPObjectPtr note(const Asked &asked, PyObject *holder, const at::Tensor &tensor) {
  static const Name noclobber_save("noclobber_save");
  Thread &mine = thread();
  const bool contents = asked.contents == Py_True;
  if (is_for_python(mine) || !is_usual(tensor.unsafeGetTensorImpl()) || (contents && !tensor.is_cpu())) {
    return {};
  }
  const auto digest = contents ? fingerprint(tensor) : std::nullopt;
  if (contents && !digest) {
    return {};
  }
  const RegionSave &slots = asked.slots();
  const int64_t node = (int64_t)at::sequence_number::peek() - 1; // of the node that is being made
  const Place *place = place_here();
  auto save = unseen(owned(slots.kind->tp_alloc(slots.kind, 0)));
  slots.version.fill(save, number(version_of(tensor.unsafeGetTensorImpl())));
  slots.key.fill(save, number(storage_key(tensor)));
  slots.node.fill(save, owned(PyLong_FromLongLong(node)));
  slots.moment.fill(save, owned(PyLong_FromLongLong(next_moment())));
  slots.place.fill(save, shown_place(place));
  slots.digest.fill(save, digest ? number(*digest) : THPObjectPtr::none());
  slots.order.fill(save, owned(PyLong_FromSsize_t(PyList_GET_SIZE(asked.saves) + 1)));
  slots.rough.fill(save, THPObjectPtr::none());
  slots.filled_last.fill(save, THPObjectPtr::dup(Py_False));
  noclobber_save.set(holder, save);
  holds(PyList_Append(asked.saves, save));
  mine.saves_at(node, place);
  return THPObjectPtr::none();
}

// Returns whether a tensor is as it was saved; null if Python has to say.
THPObjectPtr is_as_saved(const Asked &asked, PyObject *holder, const at::Tensor &tensor) {
  static const Name noclobber_save("noclobber_save");
  auto answer = [](bool is_same) { return THPObjectPtr::dup(is_same ? Py_True : Py_False); };
  auto save = noclobber_save.of(holder);
  const RegionSave &slots = asked.slots();
  if (Py_TYPE(save.get()) != slots.kind || slots.rough.in(save) != Py_None || slots.filled_last.in(save) != Py_False ||
      !is_usual(tensor.unsafeGetTensorImpl())) {
    return {};
  }
  PyObject *digest = slots.digest.in(save);
  if (digest == Py_None) {
    return answer(version_of(tensor.unsafeGetTensorImpl()) <= PyLong_AsUnsignedLong(slots.version.in(save)));
  }
  const auto now = tensor.is_cpu() && PyLong_CheckExact(digest) ? fingerprint(tensor) : std::nullopt;
  return now ? answer(*now == PyLong_AsUnsignedLongLong(digest)) : THPObjectPtr();
}

// A function of Python's: what `function` says of a holder and a tensor, else what the other in `python` does.
template <auto function, auto python> PyObject *of_region(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  const Asked asked(self);
  auto taken = [&] {
    const bool is_usual_call = count == 2 && THPVariable_Check(arguments[1]);
    return is_usual_call ? function(asked, arguments[0], THPVariable_Unpack(arguments[1])) : THPObjectPtr();
  };
  return taken_or(taken, [&] { return PyObject_Vectorcall(asked.*python, arguments, (size_t)count, nullptr); });
}

template <auto function, auto python> PyMethodDef method(const char *name) {
  return {name, (PyCFunction)(void (*)())of_region<function, python>, METH_FASTCALL, nullptr};
}
PyMethodDef note_method = method<note, &Asked::note>("note");
PyMethodDef is_as_saved_method = method<is_as_saved, &Asked::is_as_saved>("is_as_saved");

struct Witness {
  explicit Witness(PyObject *type)
      : kind((PyTypeObject *)Py_NewRef(type)), key(kind, "key"), storage(kind, "storage"), version(kind, "version"),
        digest(kind, "digest"), where(kind, "where") {}
  PyTypeObject *kind;
  Slot key, storage, version, digest, where;
};

// Adds a witness of each tensor in a list whose storage has none yet. Returns false if a tensor is for Python.
bool add_witnesses(PyObject *witnesses, PyObject *tensors, const Witness &slots) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
    auto shown_tensor = THPObjectPtr::dup(PyList_GET_ITEM(tensors, i));
    auto *tensor = THPVariable_Unpack(shown_tensor).unsafeGetTensorImpl();
    if (!is_usual(tensor)) {
      return false;
    }
    auto key = number(storage_key(tensor));
    if (holds(PyDict_Contains(witnesses, key))) {
      continue;
    }
    auto referred = owned(PyTuple_Pack(1, shown_tensor.get()));
    auto witness = unseen(owned(_PyWeakref_RefType.tp_new(slots.kind, referred, nullptr)));
    slots.key.fill(witness, key.dup());
    slots.storage.fill(witness, storage_ref(tensor));
    slots.version.fill(witness, number(version_of(tensor)));
    slots.digest.fill(witness, THPObjectPtr::none());
    slots.where.fill(witness, THPObjectPtr::none());
    holds(PyDict_SetItem(witnesses, key, witness));
  }
  return true;
}

} // namespace

PyObject *show_outside(PyObject *, PyObject *const *asked, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  static const Witness slots(asked[0]);
  auto witnesses = owned(PyDict_New());
  for (Py_ssize_t i = 1; i < count; i++) {
    if (!add_witnesses(witnesses, asked[i], slots)) {
      Py_RETURN_NONE;
    }
  }
  return witnesses.release();
  END_HANDLE_TH_ERRORS
}

PyObject *region_functions(PyObject *, PyObject *const *asked, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 5 && PyList_Check(asked[0]) && PyType_Check(asked[1]), "not a region's");
  auto kept = owned(PyTuple_Pack(5, asked[0], asked[1], asked[2], asked[3], asked[4]));
  auto note = owned(PyCFunction_New(&note_method, kept)), is_as_saved = owned(PyCFunction_New(&is_as_saved_method, kept));
  return PyTuple_Pack(2, note.get(), is_as_saved.get());
  END_HANDLE_TH_ERRORS
}

} // namespace noclobber
