# The README's commands. Everything they need, they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find csrc -name '*.txt' -o -name '*.h' -o -name '*.cpp')

.PHONY: install demo test kernels lint types wheel clean

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

# The kernels alone: under AddressSanitizer and UBSan; under ThreadSanitizer, built without OpenMP (whose
# runtime it cannot see into) and called from several threads; a few under valgrind, and for ARM under
# qemu; and no symbol of an instruction set's unit outside its namespace, where the linker could merge it with another's.
KERNEL_TESTS = build/kernel-tests
KERNEL_PROBLEMS ?= 1000
kernels:
	cmake -S tests/csrc -B $(KERNEL_TESTS)/address -DLEANCONV_SANITIZE=address,undefined >/dev/null
	cmake --build $(KERNEL_TESTS)/address --parallel 2 >/dev/null
	UBSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=detect_leaks=1 $(KERNEL_TESTS)/address/random_problems $(KERNEL_PROBLEMS)
	cmake -S tests/csrc -B $(KERNEL_TESTS)/thread -DLEANCONV_SANITIZE=thread \
		-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON >/dev/null
	cmake --build $(KERNEL_TESTS)/thread --parallel 2 >/dev/null
	TSAN_OPTIONS=halt_on_error=1 $(KERNEL_TESTS)/thread/random_problems 100
	cmake -S tests/csrc -B $(KERNEL_TESTS)/plain >/dev/null
	cmake --build $(KERNEL_TESTS)/plain --parallel 2 >/dev/null
	sh tests/csrc/check_symbols.sh $(KERNEL_TESTS)/plain
	@if command -v valgrind >/dev/null; then \
		OMP_NUM_THREADS=2 valgrind --quiet --error-exitcode=1 $(KERNEL_TESTS)/plain/random_problems 8; \
	else echo "valgrind is not here: skipped"; fi
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64-static >/dev/null; then \
		cmake -S tests/csrc -B $(KERNEL_TESTS)/neon -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
			-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null && \
		cmake --build $(KERNEL_TESTS)/neon --parallel 2 >/dev/null && \
		qemu-aarch64-static -L /usr/aarch64-linux-gnu $(KERNEL_TESTS)/neon/random_problems 60; \
	else echo "a compiler and an emulator for ARM are not here: NEON skipped"; fi

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
