# The README's commands. Everything they need, they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find csrc -name '*.txt' -o -name '*.h' -o -name '*.cpp')

.PHONY: install demo test lint types wheel clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[dev]' -Cbuild-dir=build/editable
	touch $@

demo: install
	$(BIN)/python examples/digits.py

test: install
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc tests -name "*.h" -o -name "*.cpp")

types: install
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist
