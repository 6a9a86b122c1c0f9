#include "places.h"

#include <c10/util/flat_hash_map.h>

#include <unordered_map>

#include "frames.h"

namespace noclobber {

std::atomic<uint64_t> places_era{1};

namespace {

// The owner of a file's code, with the numbers of core/seen/sites.py, which decides it.
enum Kind : int8_t { USER = 0, LIBRARY = 1, SKIP = 2, TRACED = 3, GRAPH = 4 };

struct Key {
  void *code;
  int instruction;
  const Place *inside;
  bool operator==(const Key &) const = default;
};
struct KeyHash {
  size_t operator()(const Key &key) const { return c10::get_hash(key.code, key.instruction, key.inside); }
};

using Places = std::unordered_map<Key, Place, KeyHash>;
using Codes = std::vector<THPObjectPtr>;

// With the lock.
Places &places = *new Places;
Codes &codes = *new Codes; // so that no other code gets the address of one that is known here

// What one thread knows of places, so that the common case needs no lock.
struct Known {
  uint64_t era = 0;
  ska::flat_hash_map<void *, int8_t> kinds;
  ska::flat_hash_map<Key, const Place *, KeyHash> places;
};

Known &known() {
  static thread_local Known mine;
  const uint64_t era = places_era.load(std::memory_order_acquire);
  if (mine.era != era) {
    mine = {.era = era, .kinds = {}, .places = {}};
  }
  return mine;
}

void keep_code(void *code) { // with the GIL
  auto kept = THPObjectPtr::dup((PyObject *)code);
  std::lock_guard<std::mutex> guard(lock);
  codes.push_back(std::move(kept));
}

int8_t learned_kind(Known &mine, void *code) {
  Gil gil;
  static PyObject *const kind_of = from_python("kind_of");
  int kind = SKIP, settled = 0;
  auto asked = [&] {
    auto answer = owned(PyObject_CallOneArg(kind_of, ((PyCodeObject *)code)->co_filename));
    parse(answer, "ip", &kind, &settled);
    return settled != 0;
  };
  if (unless_fails(asked, false)) {
    keep_code(code);
    mine.kinds[code] = (int8_t)kind;
  }
  return (int8_t)kind;
}

const Place *place_at(Known &mine, void *code, int instruction, const Place *inside) {
  const Key key{code, instruction, inside};
  if (auto found = mine.places.find(key); found != mine.places.end()) {
    return found->second;
  }
  const Place *place;
  bool is_new;
  {
    std::lock_guard<std::mutex> guard(lock);
    auto [at, added] = places.try_emplace(key, (PyObject *)code, instruction, inside);
    place = &at->second;
    is_new = added;
  }
  if (is_new) {
    Gil gil;
    keep_code(code);
  }
  mine.places[key] = place;
  return place;
}

const Place *place_of_tuple(Known &mine, PyObject *shown) { // with the GIL
  PyObject *code = nullptr, *inside = nullptr;
  int instruction = 0;
  if (shown == Py_None) {
    return nullptr;
  }
  parse(shown, "OiO", &code, &instruction, &inside);
  return place_at(mine, code, instruction, place_of_tuple(mine, inside));
}

const Place *asked_place(Known &mine) {
  Gil gil;
  static PyObject *const place_in_python = from_python("place_here");
  auto asked = [&] { return place_of_tuple(mine, owned(PyObject_CallNoArgs(place_in_python))); };
  return unless_fails(asked, (const Place *)nullptr);
}

} // namespace

const Place *place_here() {
  Known &mine = known();
  const Place *inside = nullptr;
  bool in_graph = false;
  for (void *frame = noclobber_innermost_frame(); frame != nullptr; frame = noclobber_calling_frame(frame)) {
    void *code = noclobber_code_of(frame);
    auto found = mine.kinds.find(code);
    const int8_t kind = found != mine.kinds.end() ? found->second : learned_kind(mine, code);
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

THPObjectPtr shown_place(const Place *place) {
  if (place == nullptr) {
    return THPObjectPtr::none();
  }
  if (!place->shown) {
    auto inside = shown_place(place->inside);
    place->shown = owned(Py_BuildValue("(OiO)", place->code, place->instruction, inside.get()));
  }
  return place->shown.dup();
}

PyObject *identity_of(const Place *place) {
  static PyObject *const identity = from_python("identity");
  if (!place->identity) {
    place->identity = owned(PyObject_CallOneArg(identity, shown_place(place)));
  }
  return place->identity;
}

void forget_places() {
  Places dropped;
  Codes dropped_codes;
  std::lock_guard<std::mutex> guard(lock);
  places_era.fetch_add(1, std::memory_order_release);
  dropped.swap(places);
  dropped_codes.swap(codes);
}

} // namespace noclobber
