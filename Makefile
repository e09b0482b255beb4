# make repro: everything, from a fresh machine to the report. The tests have three tiers: make check, test and soak.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3 2>/dev/null))
JOBS ?= 3
# If OMP_NUM_THREADS is set, nproc prints its value instead of the number of cores.
CORES ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell expr $(CORES) + 1)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
STAMP := $(VENV)/.installed
IMAGES := /usr/share/datasets/fashion-mnist
export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install data repro comparison check lowest test soak lint compiled quick pytest weather ui docs tutorials clean distclean
help:
	@echo "make install   .venv with the versions of constraints.txt"
	@echo "make repro     the default run, 4 to 5 min: what is out of date, JOBS=$(JOBS) stages at once, then the report and a small search"
	@echo "make comparison the whole comparison, about half an hour: all methods on all 60,000 images"
	@echo "make check     after each edit, 80 s: lint, types, import contracts, the tests that need no process and no Ray"
	@echo "make lowest    the tests of make check with the lowest version of each dependency, in .state/lowest"
	@echo "make test      before a commit, 8 min: the same and the whole product at small size"
	@echo "make soak      before a release, long: slow cases, tutorials, clusters, kills, S3; prints the seconds of each file"
	@echo "make weather   make test's tests on a busy machine, in the background, twice, in reverse"
	@echo "make lint      lint, types, import contracts alone"
	@echo "make ui        the tracking page"
	@echo "make docs      docs/ as a site"
	@echo "make tutorials run docs/tutorials, and write their pages"
	@echo "make clean     remove results (DVC's cache keeps them: dvc checkout); distclean: also .venv and cache"

# constraints.txt names every package, so no tool has to resolve versions. uv installs the packages in a fifth of pip's time,
# from the places that pip's own settings name; all versions are pinned, so the order of these places does not matter. If uv
# fails, WORKERS pips install 60 packages each at a time, starting with the large ones at the end of the list. A new .venv
# has another version of setuptools; it is replaced last, when no other pip uses it. Then the project itself is installed,
# and uv checks in 0.1 s that the list was complete. If the list lacks a package (another system, another Python), an
# ordinary install adds it.
# --no-compile: a module is compiled when it is first imported (and the bytecode is kept, whatever the environment says);
# compiling all modules takes longer than unpacking them.
UV := uv==0.13.9
LIST := sed -n '/^\# The extras/q; /==/p' constraints.txt
SETTINGS := $(BIN)/python -m pip config list | sed -n 's/^.*\.find-links=/export UV_FIND_LINKS=/p; \
  s/^.*\.index-url=/export UV_DEFAULT_INDEX=/p; s/^.*\.extra-index-url=/export UV_INDEX=/p; s/^.*\.cert=/export SSL_CERT_FILE=/p'
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
EXTRAS := pipeline,test,botorch,onnx,tables,lamb,jobs,s3
install: $(STAMP)
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/pip || { echo "installing into $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PIP) $(UV) 2>/dev/null && eval "$$($(SETTINGS))" && $(LIST) | $(BIN)/uv pip install --quiet --no-cache --no-deps \
	  --index-strategy unsafe-best-match --python $(BIN)/python -r - || { echo "uv could not: pip does it"; \
	  $(LIST) | grep -v '^setuptools=' | sort -r | xargs -P $(WORKERS) -n 60 $(PIP) --no-deps && \
	  grep '^setuptools=' constraints.txt | xargs $(PIP) --no-deps; }
	@$(BIN)/uv pip install --quiet --offline --no-cache --no-build-isolation --python $(BIN)/python -c constraints.txt \
	  -e '.[$(EXTRAS)]' 2>/dev/null || $(PIP) --no-build-isolation -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# Fashion-MNIST is a system package where apt exists; elsewhere TFDS fetches it in the prepare stage.
data:
	@test -e $(IMAGES) || ! command -v apt-get >/dev/null || { \
	  if test "$$(id -u)" = 0; then as=""; elif sudo -n true 2>/dev/null; then as="sudo"; \
	  else echo "To have Fashion-MNIST without a download: sudo apt-get install dataset-fashion-mnist"; exit 0; fi; \
	  echo "installing the system package dataset-fashion-mnist"; \
	  $$as apt-get install -qq -y dataset-fashion-mnist >/dev/null 2>&1 || \
	  { $$as apt-get update -qq >/dev/null 2>&1; $$as apt-get install -qq -y dataset-fashion-mnist >/dev/null 2>&1; } || \
	  echo "that failed; by hand: apt-get update && apt-get install dataset-fashion-mnist"; }

PYTEST := OMP_NUM_THREADS=1 python -m pytest
# A worker that died is not replaced: tests/tiers.py ends the session, as its group of tests would run nowhere.
PARALLEL := --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
SEARCH := params/tuned/vbll-boston.yaml

repro: install data
	@python -m pipeline repro -j $(JOBS)
	@if grep -q '^  boston-vbll:' params.yaml && ! test -e $(SEARCH); then python -m pipeline tune vbll --dataset boston --samples 4; fi

# The comparison's runs join those of params.yaml, whose results are kept. git checkout params.yaml dvc.lock report undoes it.
comparison: install data
	@python -m pipeline apply params/comparison.yaml
	@python -m pipeline repro -j $(JOBS)

lint: install
	@ruff check .
	@ruff format --check --quiet .
	@mypy
	@lint-imports

check: install
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: install
	@$(PYTEST) -n $(CORES) $(PARALLEL) -m "not slow and not ray and not process and not soak"

# The lowest version of each direct dependency that pyproject.toml allows, in an environment of its own; the tools of the
# extra test have narrow bounds. torch is the tested one. Lint is of our code, and test_constraints.py of the other versions.
LOWEST := .state/lowest
TORCH := $(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))'
lowest: install
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(TORCH) > $(LOWEST)/torch.txt && eval "$$($(SETTINGS))" && \
	  lowest="$(BIN)/uv pip install --quiet --index-strategy unsafe-best-match --python $(LOWEST)/bin/python" && \
	  $$lowest --resolution lowest-direct -c $(LOWEST)/torch.txt -e '.[$(EXTRAS)]' && \
	  $$lowest --no-deps $$(sed -n '/^curvlinops/p' constraints.txt)
	@PATH="$(CURDIR)/$(LOWEST)/bin:$$PATH" $(PYTEST) -n $(CORES) $(PARALLEL) --ignore tests/test_constraints.py \
	  -m "not slow and not ray and not process and not soak"

# All modules are compiled once, beside lint: not by each worker, and not in each copy of the project that the tests make.
test: install data
	@$(MAKE) --no-print-directory -j 2 lint compiled
	@$(MAKE) --no-print-directory pytest

compiled: install
	@python -m compileall -q src pipeline stages
	@$(PYTEST) --collect-only -qq -m "not soak" >/dev/null 2>&1 || true  # make pytest shows what cannot be collected

pytest: install data
	@$(PYTEST) -n $(WORKERS) $(PARALLEL) -m "not soak"

soak: install data
	@OMP_NUM_THREADS=1 python -m benchmarks.kill_soak --kills 40
	@OMP_NUM_THREADS=1 python -m benchmarks.cluster_faults
	@OMP_NUM_THREADS=1 python -m benchmarks.served_soak --methods swag ensemble --requests 1000
	@$(PYTEST) -n $(CORES) $(PARALLEL) -m soak

weather: install data
	@sh benchmarks/test_weather.sh

ui: install
	@python -m pipeline ui

docs: install
	@python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@python -m website
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "site: $(CURDIR)/.state/site/index.html"

tutorials: install data
	@OMP_NUM_THREADS=1 python -m benchmarks.tutorials

clean:
	rm -rf work report .state mlruns .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

distclean: clean
	rm -rf $(VENV) .dvc/cache .dvc/tmp
