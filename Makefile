# make demo   set everything up, train a small search agent, write runs/demo/report.html
# make test   set everything up, run the tests
# make test-verl  a second environment with verl, its tests (CPU only; six minutes on two idle cores, 40 at most)
# make lint   ruff, mypy --strict, import-linter
# make bench  the benchmarks that take minutes

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TORCH := torch==2.13.0
DEMO := runs/demo

VERL := .venv-verl
VERL_INSTALLED := $(VERL)/.installed
VERL_SECONDS ?= 2400

.PHONY: demo test test-verl lint bench clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	@if [ -f $(DEMO)/config.toml ]; then $(BIN)/factagent train --resume $(DEMO) > /dev/null; \
	else $(BIN)/factagent train --config configs/demo.toml --out $(DEMO) > /dev/null; fi
	@echo "summary: $(DEMO)/summary.json"
	@$(BIN)/factagent report $(DEMO) --out $(DEMO)/report.html

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --durations 10

# Ray and hydra leave files where they run; whatever hangs is ended.
test-verl: $(VERL_INSTALLED)
	OMP_NUM_THREADS=1 timeout --kill-after 20 $(VERL_SECONDS) $(VERL)/bin/python -m pytest -q --confcutdir tests/verl \
	  -o filterwarnings=default --durations 10 tests/verl

# Every check runs, so that one report shows everything; any failure fails the target.
lint: $(INSTALLED)
	@status=0; \
	run() { echo "$$*"; "$$@" || status=1; }; \
	run $(BIN)/ruff check .; \
	run $(BIN)/ruff format --check .; \
	run $(BIN)/mypy --strict src; \
	run $(BIN)/lint-imports; \
	exit $$status

bench: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/credit.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/step.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch comes first: whatever asks for it later finds it there and does not choose another build.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "factagent needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "install one and run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing $(TORCH) (the largest part; a minute or more)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) -c constraints.txt
	@echo "installing factagent and its other dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

# verl in an environment of its own: it takes an older transformers than the rest.
$(VERL_INSTALLED): pyproject.toml constraints-verl.txt
	@test -x $(VERL)/bin/python || { echo "making $(VERL)"; $(PYTHON) -m venv $(VERL); }
	@echo "installing $(TORCH) (the largest part; a minute or more)"
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) -c constraints-verl.txt
	@echo "installing verl and what the adapters need"
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt -e '.[verl]' pytest
	@touch $@
