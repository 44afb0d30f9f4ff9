# make demo, make test: each sets up everything it needs, and says what it does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS := $(shell nproc 2>/dev/null || echo 2)
CPP := build/cpp
ENGINE := $(shell find engine adapters CMakeLists.txt pyproject.toml -type f)
SOURCES := $(shell find engine adapters fuzz stress -name '*.cc' -o -name '*.h' -o -name '*.inc')

say = @printf '\n== %s\n'

.PHONY: help demo test lint types cpp-test py-test test-tf-matrix sanitize sanitize-engine \
  sanitize-adapters fuzz stress bench bench-quick bench-large docs wheel wheels clean

help:
	@echo "make demo      set up, then train a recommender on MovieLens and compare it"
	@echo "make test      set up, then lint, types, C++ tests and Python tests"
	@echo "make test-tf-matrix  the TensorFlow tests on TensorFlow 2.16 to 2.21, with one built library"
	@echo "make sanitize  the C++ tests and those of both adapters under the address and undefined sanitizers,"
	@echo "               and C++ tests with threads under the thread sanitizer"
	@echo "make fuzz      every fuzz target for FUZZ_SECONDS=60 (needs clang)"
	@echo "make stress    random operations of 8 threads on every kind of table for SECONDS=300, against oracles,"
	@echo "               with faults, forks and kills (SEED= and ROUND= repeat one)"
	@echo "make bench     speed and memory against the physical limit and TFRA 0.8.1"
	@echo "make bench-large  50 million keys, trained with 2 GB of memory for rows (needs 54 GB of disk)"
	@echo "make docs      the documentation as a site, in build/site"
	@echo "make wheel     a manylinux wheel in dist/, tested in a clean environment"
	@echo "make wheels    the wheels of a release (needs Python 3.10 to 3.13)"

# The environment: made once, made again when the requirements change.
$(VENV)/.ready: pyproject.toml tools/requirements.py
	$(say) "Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
	$(BIN)/python tools/requirements.py build test demo > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	version=$$($(BIN)/python -c 'import tensorflow as tf; print(tf.__version__)' 2> /dev/null) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "tf-keras==$${version%.*}.*"
	@touch $@

# The package, with its Python files used where they are.
$(VENV)/.installed: $(VENV)/.ready $(ENGINE)
	$(say) "building and installing tfra"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --editable .
	@touch $@

demo: $(VENV)/.installed
	$(say) "demo: a recommender learns from a stream of ratings by ever new users"
	PYTHONPATH=examples $(BIN)/python -m movielens

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
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DTFRA_TESTS=ON -DTFRA_BENCH=ON > /dev/null
	@touch $@

cpp-test: $(CPP)/build.ninja
	$(say) "C++ tests"
	$(BIN)/cmake --build $(CPP) -j $(JOBS)
	$(CPP)/engine/engine_tests

py-test: $(VENV)/.installed
	$(say) "Python tests"
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# One wheel, tried on several versions of TensorFlow, each in an environment of its own.
TF_VERSIONS := 2.16.2 2.18.1 2.20.0 2.21.0
TESTS_OF_TENSORFLOW := $(addprefix tests/dynamic_embedding/,tables variable training keras2 tf1 lookup \
  saving keras)

test-tf-matrix: $(VENV)/.ready
	$(say) "one wheel for all versions of TensorFlow"
	rm -rf build/matrix && $(BIN)/python -m build --wheel --no-isolation --outdir build/matrix
	for version in $(TF_VERSIONS); do \
	  printf '\n== TensorFlow %s\n' $$version; \
	  : "TensorFlow 2.20 takes any protobuf, and its summaries fail with the sixth"; \
	  more=; test $$version = 2.20.0 && more="protobuf<6"; \
	  test -d .venvs/tf-$$version || $(PYTHON) -m venv .venvs/tf-$$version; \
	  .venvs/tf-$$version/bin/python -m pip install --quiet --disable-pip-version-check \
	    tensorflow-cpu==$$version $$more pytest pytest-xdist hypothesis ml_dtypes pandas && \
	  .venvs/tf-$$version/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    "tf-keras==$${version%.*}.*" && \
	  .venvs/tf-$$version/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --force-reinstall build/matrix/*.whl && \
	  .venvs/tf-$$version/bin/python -m pytest -q -n $(JOBS) --dist loadfile \
	    $(TESTS_OF_TENSORFLOW) || exit 1; done

SANITIZE = $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DPython_EXECUTABLE=$(abspath $(BIN))/python \
  -DTFRA_TESTS=ON -DTFRA_SANITIZE=$(2) > /dev/null && \
  $(BIN)/cmake --build build/$(1) -j $(JOBS)

# Those that have several threads on one table. All tests under the thread sanitizer take hours.
TESTS_WITH_THREADS := Concurren Threads Fork Restrict StripeMoves Streamed Waiting

sanitize: sanitize-engine sanitize-adapters
	$(say) "no report"

sanitize-engine: $(VENV)/.ready
	$(say) "address and undefined-behaviour sanitizers: engine"
	$(call SANITIZE,asan,address$(comma)undefined)
	build/asan/engine/engine_tests
	$(say) "thread sanitizer"
	$(call SANITIZE,tsan,thread)
	build/tsan/engine/engine_tests $(TESTS_WITH_THREADS)

# The package built with sanitizers, in an environment of its own: all other packages come from
# $(VENV), whose files `.pth` are not read from there, so that its own tfra is not found.
SANITIZED := build/sanitized

$(SANITIZED)/.installed: $(VENV)/.ready $(ENGINE) $(shell find src -name '*.py')
	$(say) "building tfra with sanitizers"
	$(BIN)/python -m venv --without-pip $(SANITIZED)
	site=$$($(SANITIZED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	$(BIN)/python -c 'import sys; print(*[p for p in sys.path if p.endswith("site-packages")], sep="\n")' \
	  > $$site/dependencies.pth && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --upgrade --target $$site -C build-dir=build/asan-python \
	  -C cmake.define.TFRA_SANITIZE=address,undefined .
	@touch $@

# The contract of each adapter: every type of keys and values, hostile arguments, threads, files. All
# tests would take an hour.
TESTS_OF_ADAPTERS := $(addprefix tests/,table/test_table_contract.py table/test_table_model.py \
  table/test_table_inputs.py table/test_errors.py table/test_update_rules.py \
  table/test_metadata.py table/test_bounded_table.py table/test_tiers_table.py \
  table/test_table_admission.py process/test_threads.py dynamic_embedding/tables/test_tables.py \
  dynamic_embedding/tables/test_tf_errors.py dynamic_embedding/variable/test_variable.py \
  dynamic_embedding/saving/test_checkpoints.py dynamic_embedding/lookup/test_pooling.py \
  dynamic_embedding/hkv/test_hkv_table.py dynamic_embedding/hkv/test_hkv_saving.py \
  dynamic_embedding/upkeep/test_admission_saving.py)

# Python itself is built without sanitizers: their library must be loaded before it, and with it that
# of C++, in which it looks for what throws. Python and TensorFlow keep memory until the process ends,
# so leaks are looked for in the tests of the engine only. One test measures memory, of which the
# sanitizers take more.
sanitize-adapters: $(SANITIZED)/.installed
	$(say) "address and undefined-behaviour sanitizers: adapters"
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(SANITIZED)/bin/python -m pytest -q -n $(JOBS) --dist loadfile $(TESTS_OF_ADAPTERS) \
	  -k "not take_one_copy"

# Every file fuzz/NAME_fuzz.cc is a target; fuzz/README.md says what each one does.
FUZZ_SECONDS ?= 60
CLANG ?= $(firstword $(foreach name,clang++ $(addprefix clang++-,21 20 19 18 17 16 15 14), \
  $(shell command -v $(name))))

fuzz: $(VENV)/.ready
	$(say) "fuzzing"
	@test -n "$(CLANG)" || { echo "make fuzz needs clang and its sanitizers. On Debian:" \
	  "apt-get install clang-14 libclang-rt-14-dev (or a later version)"; exit 1; }
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DCMAKE_CXX_COMPILER=$(CLANG) -DTFRA_FUZZ=ON -DTFRA_SANITIZE=address,undefined > /dev/null
	$(BIN)/cmake --build build/fuzz -j $(JOBS)
	$(BIN)/python fuzz/run.py build/fuzz $(FUZZ_SECONDS) $(JOBS)

# stress/README.md says what it does. SEED and ROUND repeat what an earlier run did.
SECONDS ?= 300

stress: $(VENV)/.installed
	$(say) "stress"
	$(BIN)/python -m stress --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(ROUND),--round $(ROUND))

bench: $(VENV)/.installed $(CPP)/build.ninja
	$(say) "engine against the physical limit"
	$(BIN)/cmake --build $(CPP) -j $(JOBS) --target engine_bench
	$(BIN)/python bench/engine.py
	$(say) "Table against TFRA 0.8.1"
	$(BIN)/python bench/compare.py
	$(say) "Variable against TFRA 0.8.1"
	$(BIN)/python bench/compare_variable.py
	$(say) "training against TFRA 0.8.1, torch, FBGEMM and static Keras"
	$(BIN)/python bench/compare_training.py
	$(say) "restricting against TFRA 0.8.1; the memory of admission; what counters cost"
	$(BIN)/python bench/compare_restrict.py
	$(BIN)/python bench/counters.py
	$(say) "two levels against one, and against RocksDB"
	$(BIN)/python bench/compare_tiers.py

# Not part of `make bench`: it takes a while, and 54 GB of free disk in $$TMPDIR.
bench-large: $(VENV)/.installed
	$(BIN)/python bench/large.py

bench-quick: $(VENV)/.installed $(CPP)/build.ninja
	$(BIN)/cmake --build $(CPP) -j $(JOBS) --target engine_bench
	$(BIN)/python bench/engine.py --quick
	$(BIN)/python bench/compare.py --quick
	$(BIN)/python bench/compare_variable.py --quick

# The site has an environment of its own: testing needs none of what builds it, and building it reads
# the sources of the package without running them.
DOCS := .venvs/docs

$(DOCS)/.ready: pyproject.toml tools/requirements.py
	$(say) "environment of the documentation in $(DOCS)"
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python tools/requirements.py docs > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/requirements.txt
	@touch $@

docs: $(DOCS)/.ready
	$(say) "documentation"
	$(DOCS)/bin/python tools/bench_page.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "build/site/index.html"

# Tries a wheel in an environment that has nothing else: $(call try-wheel,python,wheel)
try-wheel = rm -rf build/wheel-test && $(1) -m venv build/wheel-test && \
  build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check $(2) && \
  echo $(1) && build/wheel-test/bin/python tests/wheel_programs/wheel_with_numpy.py

wheel: $(VENV)/.installed
	$(say) "wheel"
	rm -rf dist
	$(BIN)/python tools/build_wheel.py dist
	$(say) "the wheel in a clean environment"
	TFRA_WHEEL=$$(ls dist/*.whl) $(BIN)/python -m pytest -q tests/test_wheel.py
	@ls -l dist

# Both wheels of a release: one for CPython 3.12 and later, one for 3.10 and 3.11.
wheels: $(VENV)/.ready
	$(say) "wheels for all Pythons"
	rm -rf dist build/wheels
	for python in python3.10 python3.11 python3.12; do \
	  $$python -m venv build/wheels/$$python && \
	  build/wheels/$$python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --wheel-dir build/wheels/out . || exit 1; done
	$(BIN)/python tools/merge_wheels.py build/wheels/out build/wheels/out/*-cp310-cp310-*.whl \
	  build/wheels/out/*-cp311-cp311-*.whl
	$(BIN)/python tools/build_wheel.py dist build/wheels/out/*-cp310.cp311-*.whl \
	  build/wheels/out/*-abi3-*.whl
	for python in python3.10 python3.11; do \
	  $(call try-wheel,$$python,dist/*-cp310.cp311-*.whl) || exit 1; done
	for python in python3.12 python3.13; do \
	  $(call try-wheel,$$python,dist/*-abi3-*.whl) || exit 1; done
	@ls -l dist

clean:
	rm -rf $(VENV) build dist

comma := ,
