#include "history.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <unordered_map>

#include "shown.h"

namespace noclobber {

namespace py = pybind11;

PythonTable python_saves;

namespace {

constexpr uintptr_t ANYWHERE = 0; // stands for all storages, as in core/seen/history.py
constexpr size_t RECENT = 8192; // writes that are kept, needed or not, as in core/seen/history.py

struct Record {
  PyObject *written, *step; // borrowed; `step` is null outside of optimizers
  const Place *place;
  uintptr_t key;
  int64_t version, offset;
  at::DimVector sizes, strides;
  at::ScalarType dtype;
  bool in_backward;
  int64_t node, moment;
  bool in_graph;
};

struct ManyViews {
  int64_t node;
  PyObject *op;
  const Place *place;
};

std::atomic<int64_t> *moments = nullptr;
THPObjectPtr &reread = *new THPObjectPtr;

// With the lock.
std::vector<Record> records;
std::vector<ManyViews> views;
size_t records_limit = RECENT;

// Drops old records that no finding can need, as `Memory.prune` does. It is called by the thread that noted the last.
void prune() {
  std::vector<Record> old, left;
  {
    std::lock_guard<std::mutex> guard(lock);
    old.swap(records);
  }
  const size_t newest = old.size() > RECENT / 4 ? old.size() - RECENT / 4 : 0;
  std::unordered_map<uintptr_t, bool> needed;
  std::exception_ptr interrupted;
  for (size_t i = 0; i < old.size(); i++) {
    bool stays = i >= newest;
    if (!stays && flags.watching) {
      auto [at, is_new] = needed.try_emplace(old[i].key, true);
      if (is_new && !interrupted) {
        try {
          const uintptr_t key = old[i].key;
          at->second = is_saved(key) || is_reread(key) || python_saves.has(key);
        } catch (const python_error &) {
          interrupted = std::current_exception();
        }
      }
      stays = at->second;
    }
    if (stays) {
      left.push_back(std::move(old[i]));
    }
  }
  {
    std::lock_guard<std::mutex> guard(lock);
    left.insert(left.end(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
    records.swap(left);
    records_limit = std::max(RECENT, 2 * records.size());
  }
  if (interrupted) {
    std::rethrow_exception(interrupted);
  }
}

template <class Row> std::vector<Row> taken_out(std::vector<Row> &rows) {
  std::vector<Row> all;
  std::lock_guard<std::mutex> guard(lock);
  all.swap(rows);
  return all;
}

} // namespace

bool PythonTable::has(uintptr_t key) {
  auto is_any_unsorted = [this] { return unsorted && PyList_GET_SIZE(unsorted.get()) != 0; };
  if (!any_filed && !is_any_unsorted()) {
    return false;
  }
  Gil gil; // what moves from one part to the other is always in one of them while it is held
  if (!is_any_unsorted() && !has_key(filed, key)) {
    return false;
  }
  auto is_alive = [&] {
    if (has_alive == nullptr) {
      has_alive = from_python("has_saves");
    }
    return holds(PyObject_IsTrue(owned(PyObject_CallOneArg(has_alive, number(key)))));
  };
  return unless_fails(is_alive, true);
}

void hear_of_reread(PyObject *storages) { reread = THPObjectPtr::dup(storages); }

bool is_reread(uintptr_t key) { return is_in(reread.get(), key) || is_in(reread.get(), ANYWHERE); }

void count_on(std::atomic<int64_t> *latest) { moments = latest; }

int64_t latest_moment() { return moments->load(std::memory_order_relaxed); }

int64_t next_moment() { return moments->fetch_add(1, std::memory_order_relaxed) + 1; }

void note(PyObject *written, PyObject *step, const Place *place, const at::Tensor &tensor) {
  auto *impl = tensor.unsafeGetTensorImpl();
  Record record{.written = written,
                .step = step,
                .place = place,
                .key = storage_key(impl),
                .version = (int64_t)version_of(impl),
                .offset = impl->storage_offset(),
                .sizes = at::DimVector(impl->sizes()),
                .strides = at::DimVector(impl->strides()),
                .dtype = tensor.scalar_type(),
                .in_backward = torch::autograd::get_current_graph_task_id() != -1,
                .node = (int64_t)at::sequence_number::peek(),
                .moment = next_moment(),
                .in_graph = tensor.requires_grad()};
  bool is_full;
  {
    std::lock_guard<std::mutex> guard(lock);
    records.push_back(std::move(record));
    is_full = records.size() > records_limit;
  }
  if (is_full) {
    prune();
  }
}

void note_views(PyObject *op) {
  if (!c10::GradMode::is_enabled()) {
    return;
  }
  const Place *place = place_here();
  std::lock_guard<std::mutex> guard(lock);
  if (views.size() >= 2 * RECENT) {
    views.erase(views.begin(), views.begin() + RECENT);
  }
  views.push_back({(int64_t)at::sequence_number::peek(), op, place});
}

static py::tuple shown(const Record &one) {
  auto where = py::make_tuple(one.offset, shown(one.sizes), shown(one.strides), shown(one.dtype));
  return py::make_tuple(shown(one.written), shown(one.place), one.key, one.version, where, shown(one.step),
                        one.in_backward, one.node, one.moment, one.in_graph, false);
}

py::list take_records() {
  py::list rows;
  for (const Record &one : taken_out(records)) {
    rows.append(shown(one));
  }
  return rows;
}

py::list writes_since(int64_t moment, uintptr_t key) {
  std::vector<Record> found;
  {
    std::lock_guard<std::mutex> guard(lock);
    int older = 0; // records of several threads may lie in another order than that of their moments
    for (auto one = records.rbegin(); one != records.rend() && older < 16; ++one) {
      older += one->moment < moment;
      if (one->moment >= moment && one->key == key) {
        found.push_back(*one);
      }
    }
  }
  py::list rows;
  for (auto one = found.rbegin(); one != found.rend(); ++one) {
    rows.append(shown(*one));
  }
  return rows;
}

py::list take_views() {
  py::list rows;
  for (const ManyViews &one : taken_out(views)) {
    rows.append(py::make_tuple(one.node, shown(one.op), shown(one.place)));
  }
  return rows;
}

void forget_history() {
  std::lock_guard<std::mutex> guard(lock);
  records.clear();
  views.clear();
  records_limit = RECENT;
}

} // namespace noclobber
