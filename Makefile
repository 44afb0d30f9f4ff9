# make demo, make test: each sets up everything it needs, and says what it does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS := $(shell nproc 2>/dev/null || echo 2)
CPP := build/cpp
ENGINE := $(shell find engine adapters CMakeLists.txt pyproject.toml -type f)
SOURCES := $(shell find engine adapters -name '*.cc' -o -name '*.h' -o -name '*.inc')

say = @printf '\n== %s\n'

.PHONY: help demo test lint types cpp-test py-test sanitize bench bench-quick wheel clean

help:
	@echo "make demo      set up, then train a small model"
	@echo "make test      set up, then lint, types, C++ tests and Python tests"
	@echo "make sanitize  the C++ tests under the address, undefined and thread sanitizers"
	@echo "make bench     speed and memory against the physical limit and TFRA 0.8.1"
	@echo "make wheel     a wheel in dist/, tried in a clean environment"

# The environment: made once, made again when the requirements change.
$(VENV)/.ready: pyproject.toml tools/requirements.py
	$(say) "Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
	$(BIN)/python tools/requirements.py build test > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

# The package, with its Python files used where they are.
$(VENV)/.installed: $(VENV)/.ready $(ENGINE)
	$(say) "building and installing tfra"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --editable .
	@touch $@

demo: $(VENV)/.installed
	$(say) "demo: training a recommender on a stream of new ids"
	$(BIN)/python examples/stream_demo.py

test: lint types cpp-test py-test
	$(say) "all passed"

lint: $(VENV)/.ready
	$(say) "lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)

types: $(VENV)/.installed
	$(say) "types"
	$(BIN)/mypy

$(CPP)/build.ninja: $(VENV)/.ready CMakeLists.txt engine/CMakeLists.txt
	$(BIN)/cmake -S . -B $(CPP) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DTFRA_TESTS=ON -DTFRA_BENCH=ON > /dev/null
	@touch $@

cpp-test: $(CPP)/build.ninja
	$(say) "C++ tests"
	$(BIN)/cmake --build $(CPP) -j $(JOBS)
	$(CPP)/engine/engine_tests

py-test: $(VENV)/.installed
	$(say) "Python tests"
	$(BIN)/python -m pytest

SANITIZE = $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DTFRA_TESTS=ON -DTFRA_SANITIZE=$(2) > /dev/null && \
  $(BIN)/cmake --build build/$(1) -j $(JOBS)

sanitize: $(VENV)/.ready
	$(say) "address and undefined-behaviour sanitizers"
	$(call SANITIZE,asan,address$(comma)undefined)
	build/asan/engine/engine_tests
	$(say) "thread sanitizer"
	$(call SANITIZE,tsan,thread)
	build/tsan/engine/engine_tests Concurren
	$(say) "no report"

bench: $(VENV)/.installed $(CPP)/build.ninja
	$(say) "engine against the physical limit"
	$(BIN)/cmake --build $(CPP) -j $(JOBS) --target engine_bench
	$(CPP)/engine/engine_bench
	$(CPP)/engine/engine_bench --keys 10000000 --dim 8,128
	$(say) "Table against TFRA 0.8.1"
	$(BIN)/python bench/compare.py

bench-quick: $(VENV)/.installed $(CPP)/build.ninja
	$(BIN)/cmake --build $(CPP) -j $(JOBS) --target engine_bench
	$(CPP)/engine/engine_bench --keys 1000000
	$(BIN)/python bench/compare.py --quick

wheel: $(VENV)/.ready
	$(say) "wheel"
	rm -rf dist build/wheel-test
	$(BIN)/python -m build --wheel --no-isolation --outdir dist
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && wheel-test/bin/python -c "import tfra; t = tfra.Table(dim=4); \
	  t.upsert([1], [[1, 2, 3, 4]]); print('installed and used:', tfra.__version__, t)"
	@ls -l dist

clean:
	rm -rf $(VENV) build dist

comma := ,
