# The development environment and everything one does in it. `make` alone says what there is.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
PREPARED := $(VENV)/.prepared
# Everything is pinned: nothing is left to resolve.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
SOURCES := service workers migrations tests

# Hundreds of processes import the same modules, and would compile each of them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-cdc demo-lake serve test check lint style types format bench soak cluster lock vendor clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with the pinned packages

# Reruns when what is to be installed changes, and only then.
$(STAMP): pyproject.toml .requirements/all.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "tidefill needs Python 3.11 or newer; this is $$($(PYTHON) --version 2>&1). Say: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --requirement .requirements/all.txt \
		&& uv pip install --quiet --python $(BIN)/python --no-deps --editable .; \
	else \
		$(PIP) --no-compile --requirement .requirements/all.txt && $(PIP) --editable .; \
	fi
	@touch $@

$(PREPARED): $(STAMP)
	-@$(BIN)/tidefill prepare
	@touch $@

demo: $(STAMP) ## Watch a view being built over a live table; KEEP=1 leaves it running
	@$(BIN)/tidefill demo $(if $(KEEP),--keep)

demo-cdc: $(STAMP) ## Watch tables follow an external Postgres under load; KEEP=1 leaves it running
	@$(BIN)/tidefill demo-cdc $(if $(KEEP),--keep)

demo-lake: $(STAMP) ## Watch Delta tables being joined into another one while a program changes them; KEEP=1 leaves it running
	@$(BIN)/tidefill demo-lake $(if $(KEEP),--keep)

serve: $(STAMP) ## Run a service with its own Postgres and worker
	@$(BIN)/tidefill serve

lint: style types ## Formatting, style, types, and which part may import which

style: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(STAMP)
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

# No JVM here lives for long enough to repay what its second compiler costs; nobody pulls the plug.
test check: export TIDEFILL_SPARK_CONF := {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}
test check: export TIDEFILL_TEST_FSYNC := off

# The rest of the tests is that of `soak` and of `cluster`.
QUICK := not soak and not control_plane
DURATIONS := .cache/durations
WHOLE := tests/e2e tests/attacks
REST := --ignore=tests/e2e --ignore=tests/attacks --ignore=tests/soak tests
# $(call part,MARKERS,WHERE): a part only imports the tests that may be its own. WHERE may have `--half`, for every other
# file: tests that share a service wait for it most of the time, so two services serve them side by side.
part = $(BIN)/pytest --junitxml=$(DURATIONS)/$@.xml -m "$(QUICK) and $(1)" $(2)
PARTS := shared-1 shared-2 databases-1 databases-2 own others-1 others-2 types
.PHONY: $(PARTS)

# Three parts at a time, which two cores can serve: with more, each test takes so long that its limits end it. What a part
# has to say is shown when it ends. The tests of databases need no JVM, and do not wait until its classes are laid out.
test: $(STAMP) ## Everything but the long runs and the cluster
	@$(MAKE) --no-print-directory style
	@rm -rf $(DURATIONS)
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target $(PARTS); status=$$?; \
	$(BIN)/python -m tests.support.durations $(DURATIONS); exit $$status

shared-1: $(PREPARED)
	$(call part,e2e and not own_service,--half 1 $(WHOLE))

shared-2: $(PREPARED)
	$(call part,e2e and not own_service,--half 2 $(WHOLE))

databases-1 databases-2: $(STAMP)
	$(call part,not e2e and postgres and not spark,--half $(subst databases-,,$@) $(REST))

own: $(PREPARED)
	$(call part,own_service,tests/e2e)

others-1 others-2: $(PREPARED)
	$(call part,not e2e and (spark or not postgres),--half $(subst others-,,$@) $(REST))

check: lint ## What runs without Spark and without whole processes
	$(BIN)/pytest -m "not spark and not e2e and $(QUICK)" $(REST)

bench: $(PREPARED) ## Measure, and print figures and ratios; BENCH="--rows 1000000 --only backfill" for a part
	$(BIN)/python -m tests.bench $(BENCH)

soak: $(PREPARED) ## The long runs; SOAK_SECONDS=60 for each
	$(BIN)/pytest -m soak --timeout 0 -rP

cluster: export TIDEFILL_TEST_CONTROL_PLANE := build
cluster: $(PREPARED) ## Chart, workers and faults on a real control plane of Kubernetes; needs Go
	$(BIN)/pytest -m control_plane

format: $(STAMP) ## Put the sources in form
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# Needs uv. Keeps what is pinned unless UPGRADE=1.
COMPILE := uv pip compile --quiet --python-version 3.11 --no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade)
lock: ## Pin the packages anew
	$(COMPILE) --extra service --extra workers --extra otel --extra pipelines --extra embedded --extra dev pyproject.toml --output-file .requirements/all.txt
	$(COMPILE) --constraint .requirements/all.txt --extra service --extra otel pyproject.toml --output-file .requirements/service.txt
	$(COMPILE) --constraint .requirements/all.txt --extra workers pyproject.toml --output-file .requirements/workers.txt

vendor: $(STAMP) ## Bring the scripts of others that pages load anew, with checked sums; needs npm
	$(BIN)/python -m tests.support.vendor

clean: ## Remove what was built; .tidefill with its database stays
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
