# Everything that is done with this project by hand. `make demo` and `make test` need only Python 3.11 or newer and make.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; `make PYTHON=...` names another.
PYTHON := $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
FOUND = $(or $(PYTHON),$(error noclobber needs Python 3.11 or newer: make PYTHON=/path/to/python3.11))

LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready

# `make test TORCH=2.15.0` (or `oldest`, `newest`) runs all tests with that release, in its own environment; so do
# `make fuzz`, `make fuzz-preserve` and `make conformance`. `make release` makes the environment only, and prints the version.
TORCH :=
# `make test TESTS=tests/rules` runs these alone.
TESTS :=
# `make native` builds the native part; `make test NATIVE=1`, and the fuzzers with it, let it take what it can.
NATIVE :=
# Python keeps what it has compiled, whatever the surroundings say: hundreds of processes import the same files.
RUN = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 NOCLOBBER_PURE=$(if $(NATIVE),0,1) $(if $(TORCH),$(FOUND) requirements/release.py $(TORCH),$(BIN)/python)

.PHONY: demo test quick native wheels check format bench fuzz fuzz-preserve fuzz-threads conformance release docs lock clean

demo: $(READY)  ## the main job on real training programs
	$(BIN)/python examples/demo.py

test: $(if $(TORCH),,check)  ## everything that must pass; one thread for torch, as two tests run at a time
	$(RUN) -m pytest -n 2 --dist worksteal -q $(TESTS)

PLAIN := tests/model tests/render tests/syntax
quick: check  ## within a minute: the tests that need no torch, and one look at each mode
	$(RUN) -m pytest -n 2 --dist worksteal -q $(PLAIN)
	$(RUN) -m pytest -n 2 --dist worksteal -q -m smoke tests/test_watch.py tests/cli/test_reports.py tests/fix/test_verb.py \
		tests/ops tests/observe/preserve

CXX := c++
WARNED = $(CXX) -Wall -Wextra -Werror
# `make native SANITIZE=1` builds it with the sanitizers of addresses and of undefined behaviour, in a cache of its own, and
# runs its tests under them. A process of several threads that forks can hang in the sanitizer itself, without noclobber.
SANITIZE :=
SANITIZED = XDG_CACHE_HOME=$(CURDIR)/build/sanitized ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)"

native: $(if $(TORCH),,$(READY))  ## builds the native part for this torch: a minute
ifeq ($(SANITIZE),)
	CXX="$(WARNED)" $(RUN) -m noclobber doctor --build-native
else
	$(SANITIZED) CXX="$(WARNED) -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
		$(RUN) -m noclobber doctor --build-native
	$(SANITIZED) NOCLOBBER_PURE=0 $(BIN)/python -m pytest -q tests/observe/native -k "not forks_under_load"
endif

wheels: $(READY)  ## this release's wheel for Linux, with the native part for each torch and Python that can be had: an hour
	$(BIN)/python requirements/wheels.py $(TORCH)

release:
	@$(FOUND) requirements/release.py $(TORCH)

check: $(READY)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: native  ## several minutes; on a machine with nothing else to do
	$(BIN)/python benchmarks/overhead.py --write-readme
	$(BIN)/python benchmarks/preserve.py --write-readme
	$(BIN)/python benchmarks/growth.py --write-readme
	$(BIN)/python benchmarks/startup.py --write-readme

# Random programs against the promise: `make fuzz N=100000 SEED=7 JOBS=2`; without a seed, programs never seen before.
N := 1000
SEED :=
JOBS := 2

fuzz: $(if $(TORCH),,$(READY))  ## half an hour for 100000; fails on a wrong gradient without a finding, and on a false alarm
	$(RUN) -m tests.fuzz.drive --programs $(N) --seed "$(SEED)" --jobs $(JOBS)

fuzz-preserve: $(if $(TORCH),,$(READY))  ## the same for the gradients under `preserve`, which keeps saves and not what hooks are given
	$(RUN) -m tests.fuzz.drive --programs $(N) --seed "$(SEED)" --jobs $(JOBS) \
		--preserve --without "hook,grad write"

# Threads that take turns as often as the interpreter can, for so many seconds of CPU time in each of the four modes.
SECONDS := 60

fuzz-threads: $(if $(TORCH),,$(READY))  ## four minutes; fails where a thread fails, or trains otherwise than bare
	NOCLOBBER_TEST_SECONDS=$(SECONDS) $(RUN) -m pytest -q tests/observe/core/test_threads.py -k contended

# PyTorch's own databases of operators, modules and optimizers, bare and in each mode: `make conformance ONLY="operator a*"`.
ONLY :=
PART := 1

conformance: $(if $(TORCH),,$(READY))  ## an hour for all of it; fails on anything that differs
	$(RUN) -m tests.conformance.drive --only "$(ONLY)" --part $(PART) --seed "$(or $(SEED),today)" --jobs $(JOBS)

docs: $(READY)  ## the documentation, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock:
	$(FOUND) requirements/lock.py

clean:
	rm -rf $(VENV) .venv-torch-* build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment holds what the lock says and nothing else: a new lock makes a new one.
$(LOCKED): requirements/dev.lock
	$(FOUND) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements/dev.lock
	@touch $@

# The build backend is in the lock, so nothing is fetched for it.
$(READY): $(LOCKED) pyproject.toml
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
