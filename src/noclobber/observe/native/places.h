// Places: the innermost line of the program that a save or a write comes from, without frame objects and without the GIL.
// They are what `core/sites.place_of` returns, and Python decides whose code a file is (`core/sites.KINDS`).
#pragma once

#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "frames.h"

namespace noclobber {

// The owner of a file's code, with the numbers of core/sites.py.
enum Kind : int8_t { USER = 0, LIBRARY = 1, SKIP = 2, TRACED = 3, GRAPH = 4 };

// The code, the offset of the instruction in bytes, and the library's place inside the call or null. Each place exists
// once and lives until `forget_places`, so two places are equal if their addresses are. `shown` is what Python sees of
// it, once Python has asked, and `identity` what core/sites.py returns for that, once it was needed. `looks` is how
// often a write there is still asked whether it meets a save.
struct Place {
  Place(PyObject *code, int instruction, const Place *inside) : code(code), instruction(instruction), inside(inside) {}
  PyObject *code;
  int instruction;
  const Place *inside;
  mutable PyObject *shown = nullptr, *identity = nullptr;
  mutable std::atomic<int> looks{16}; // as MOST_LOOKS of core/history.py
};

inline size_t mixed(uintptr_t one, uintptr_t other) {
  uint64_t bits = (one >> 4) * 0x9E3779B97F4A7C15ull ^ other * 0xC2B2AE3D27D4EB4Full;
  return bits ^ (bits >> 29);
}

// A hash table with open addressing, for keys that are never removed one by one.
template <class Key, class Value> class Table {
public:
  Table() : rows(256) {}

  Value *find(const Key &key) {
    for (size_t at = key.hash() & (rows.size() - 1);; at = (at + 1) & (rows.size() - 1)) {
      if (rows[at].first == key) {
        return &rows[at].second;
      }
      if (rows[at].first == Key{}) {
        return nullptr;
      }
    }
  }

  void put(const Key &key, Value value) {
    if (2 * ++used > rows.size()) {
      auto old = std::move(rows);
      rows = std::vector<std::pair<Key, Value>>(2 * old.size());
      for (auto &row : old) {
        if (!(row.first == Key{})) {
          place(row.first, row.second);
        }
      }
    }
    place(key, value);
  }

private:
  void place(const Key &key, Value value) {
    size_t at = key.hash() & (rows.size() - 1);
    while (!(rows[at].first == Key{})) {
      at = (at + 1) & (rows.size() - 1);
    }
    rows[at] = {key, value};
  }

  std::vector<std::pair<Key, Value>> rows;
  size_t used = 0;
};

struct CodeKey {
  void *code = nullptr;
  bool operator==(const CodeKey &other) const { return code == other.code; }
  size_t hash() const { return mixed((uintptr_t)code, 0); }
};

struct PlaceKey {
  void *code = nullptr;
  int instruction = 0;
  const Place *inside = nullptr;
  bool operator==(const PlaceKey &other) const {
    return code == other.code && instruction == other.instruction && inside == other.inside;
  }
  size_t hash() const { return mixed((uintptr_t)code, (uintptr_t)instruction + (uintptr_t)inside); }
};
struct PlaceKeyHash {
  size_t operator()(const PlaceKey &key) const { return key.hash(); }
};

// Python's functions: `kind_of(path)` returns the kind and whether it is for good; `place()` returns the place of the
// line that runs, as a tuple or None.
inline PyObject *kind_of = nullptr, *place_in_python = nullptr;

inline std::mutex places_lock;
inline std::deque<Place> all_places;
inline std::unordered_map<PlaceKey, const Place *, PlaceKeyHash> place_by_key;
inline std::vector<PyObject *> codes; // so that no other code gets the address of one that is known here
inline std::atomic<uint64_t> places_era{1};

// What one thread knows of places, so that the common case needs no lock.
struct KnownPlaces {
  uint64_t era = 0;
  Table<CodeKey, int8_t> kinds;
  Table<PlaceKey, const Place *> places;
};

inline KnownPlaces &known_places() {
  static thread_local std::unique_ptr<KnownPlaces> mine;
  uint64_t era = places_era.load(std::memory_order_acquire);
  if (!mine || mine->era != era) {
    mine = std::make_unique<KnownPlaces>();
    mine->era = era;
  }
  return *mine;
}

class Gil {
public:
  Gil() : state(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state); }
  Gil(const Gil &) = delete;
  Gil &operator=(const Gil &) = delete;

private:
  PyGILState_STATE state;
};

// A reference that this owns.
class Owned {
public:
  explicit Owned(PyObject *object = nullptr) : object(object) {}
  ~Owned() { Py_XDECREF(object); }
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  operator PyObject *() const { return object; }

private:
  PyObject *object;
};

// Clears Python's error, if there is one. Throws one that is no Exception: a signal handler has raised it, as
// KeyboardInterrupt, and it is for the program. With the GIL.
inline void clear_error() {
  if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) {
    python_error interrupted;
    interrupted.persist();
    throw interrupted;
  }
  PyErr_Clear();
}

inline void keep_code(PyObject *code) { // with the GIL
  Py_INCREF(code);
  std::lock_guard<std::mutex> guard(places_lock);
  codes.push_back(code);
}

inline int8_t learned_kind(KnownPlaces &mine, void *code) {
  Gil gil;
  auto *object = (PyObject *)code;
  int8_t kind = SKIP;
  PyObject *path = ((PyCodeObject *)object)->co_filename;
  Owned answer(PyObject_CallOneArg(kind_of, path));
  int number = SKIP, settled = 0;
  if (answer == nullptr || !PyArg_ParseTuple(answer, "ip", &number, &settled)) {
    clear_error();
  } else {
    kind = (int8_t)number;
  }
  if (settled) {
    keep_code(object);
    mine.kinds.put(CodeKey{code}, kind);
  }
  return kind;
}

inline const Place *place_at(KnownPlaces &mine, void *code, int instruction, const Place *inside) {
  PlaceKey key{code, instruction, inside};
  if (auto *known = mine.places.find(key)) {
    return *known;
  }
  const Place *place;
  bool fresh = false;
  {
    std::lock_guard<std::mutex> guard(places_lock);
    auto [at, added] = place_by_key.try_emplace(key, nullptr);
    if (added) {
      all_places.emplace_back((PyObject *)code, instruction, inside);
      at->second = &all_places.back();
      fresh = true;
    }
    place = at->second;
  }
  if (fresh) {
    Gil gil;
    keep_code((PyObject *)code);
  }
  mine.places.put(key, place);
  return place;
}

inline const Place *place_of_tuple(KnownPlaces &mine, PyObject *shown) { // with the GIL
  PyObject *code = nullptr, *inside = nullptr;
  int instruction = 0;
  if (shown == nullptr || shown == Py_None || !PyArg_ParseTuple(shown, "OiO", &code, &instruction, &inside)) {
    clear_error();
    return nullptr;
  }
  return place_at(mine, code, instruction, place_of_tuple(mine, inside));
}

inline const Place *asked_place(KnownPlaces &mine) {
  Gil gil;
  Owned shown(PyObject_CallNoArgs(place_in_python));
  return place_of_tuple(mine, shown);
}

// Returns the place of the line that runs in this thread; null if nothing is known of it. Throws an interrupt.
inline const Place *place_here() {
  KnownPlaces &mine = known_places();
  const Place *inside = nullptr;
  bool in_graph = false;
  for (void *frame = noclobber_innermost_frame(); frame != nullptr; frame = noclobber_calling_frame(frame)) {
    void *code = noclobber_code_of(frame);
    int8_t *known = mine.kinds.find(CodeKey{code});
    int8_t kind = known != nullptr ? *known : learned_kind(mine, code);
    if (kind == USER) {
      return place_at(mine, code, noclobber_instruction_of(frame), inside);
    }
    if (kind == LIBRARY && inside == nullptr) {
      inside = place_at(mine, code, noclobber_instruction_of(frame), nullptr);
    }
    if (kind == GRAPH && !in_graph) {
      inside = place_at(mine, code, noclobber_instruction_of(frame), inside);
      in_graph = true;
    }
    if (kind == TRACED) {
      break;
    }
  }
  return asked_place(mine);
}

// Returns a place as Python has it, a new reference: a tuple, or None. With the GIL.
inline PyObject *shown_place(const Place *place) {
  if (place == nullptr) {
    Py_RETURN_NONE;
  }
  if (place->shown == nullptr) {
    place->shown = Py_BuildValue("(OiN)", place->code, place->instruction, shown_place(place->inside));
  }
  return Py_XNewRef(place->shown);
}

// Drops all places. To be called with the GIL, while nothing refers to one.
inline void forget_places() {
  std::vector<PyObject *> dropped;
  {
    std::lock_guard<std::mutex> guard(places_lock);
    places_era.fetch_add(1, std::memory_order_release);
    place_by_key.clear();
    dropped.swap(codes);
    for (Place &place : all_places) {
      dropped.insert(dropped.end(), {place.shown, place.identity});
    }
    all_places.clear();
  }
  for (PyObject *object : dropped) {
    Py_XDECREF(object);
  }
}

} // namespace noclobber
