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

# The wheel is built without torch in its build environment, then tried beside the torch of .venv.
wheel: install
	rm -rf dist build/bare
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build && bare/bin/leanconv doctor --no-limits
	cd build && bare/bin/python -c "import leanconv._native as n; assert n.library(), n.why_unavailable()"

clean:
	rm -rf $(VENV) build dist
