# Every target sets up what it needs: .venv with the pinned packages and an editable build of this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_SOURCES := pyproject.toml constraints.txt CMakeLists.txt __init__.py __init__.pyi py.typed \
	$(wildcard tools/*.py) $(wildcard */native/*.cpp */native/*.h ps_server/*.proto)

.PHONY: demo test lint types unit native-test bench clean

demo: $(VENV)/.installed
	$(BIN)/embershard demo

test: lint types native-test unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/python tools/check_types.py

native-test: $(VENV)/.installed
	$(BIN)/python tests/native/run.py

unit: $(VENV)/.installed
	$(BIN)/python -m pytest

bench: $(VENV)/.installed
	$(BIN)/embershard bench table
	$(BIN)/embershard bench ids
	$(BIN)/embershard bench train

$(VENV)/.installed: $(BUILD_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/set_up.py
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-run
