# One entry for everything. Second runs skip what is done; see scripts/ for the steps.
.DEFAULT_GOAL := help
.PHONY: help setup setup-check build build-tests demo test deep docs lint format tidy bench figures faults fuzz \
        soak tsan asan asan-binding thread-safety model gpu-check ci clean

# Targets run one after the other; each step is parallel inside.
.NOTPARALLEL:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing: Debian packages, .venv, torch, Python packages
	@scripts/setup.sh

setup-check:
	@scripts/setup.sh check

build: setup ## compile and install in editable mode
	@scripts/build.sh

build-tests: setup
	@scripts/build.sh all

demo: ## train LeNet on Fashion-MNIST with two ranks, with as little built as that takes
	@scripts/demo.sh

test: build-tests ## C++ tests, then Python tests on one to four ranks (TEST_ARGS="--slice 3/16")
	@scripts/test.sh $${TEST_ARGS:-}

deep: build-tests setup-check ## everything that is too slow for every change (PARTS="tests model …")
	@scripts/setup.sh check ci model fuzz integrations
	@scripts/deep.sh $${PARTS:-}

docs: setup-check ## the documentation site in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 scripts/in_environment.sh python -m mkdocs build --strict
	@echo "The site is in build/site; open build/site/index.html. Its search needs a server:"
	@echo "python3 -m http.server --bind 127.0.0.1 --directory build/site"

lint: setup-check ## format, types, layers, sizes, shell scripts
	@scripts/lint.sh

format: setup-check ## reformat the sources
	@scripts/lint.sh --fix

tidy: setup-check ## clang-tidy on the core (slow)
	@cmake -G Ninja -S . -B build/tidy -DCMAKE_CXX_COMPILER=clang++-14 -DMYDIST_UNITY=OFF \
	  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMYDIST_BUILD_TESTS=OFF -DMYDIST_BUILD_TORCH=OFF \
	  -DMYDIST_WITH_CUDA=OFF >/dev/null
	@run-clang-tidy-14 -quiet -p build/tidy -j "$${MAX_JOBS:-$$(getconf _NPROCESSORS_ONLN)}" 'csrc/(base|config|world|timeline|kernels|memory|transport|controller|algorithms|planner|engine|job)/'

bench: build ## measure every target: target, measured, verdict (4 to 20 minutes; keep the machine idle)
	@scripts/bench.sh

figures: build ## measure and draw the pictures of docs/images (10 minutes; keep the machine idle)
	@scripts/in_environment.sh python -m benchmarks.figures

faults: build ## measure how soon each fault is reported (20 minutes; FAULTS_ARGS="--seed 7 --parts matrix")
	@PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" \
	  scripts/in_environment.sh python -m faults $${FAULTS_ARGS:-}

fuzz: setup-check ## any bytes to each parser, 60 s each (FUZZ_SECONDS=, ONLY="report trace"; 41 targets)
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh

soak: build ## random operations on 2 and 4 ranks and on two hosts (SOAK_MINUTES=30, SOAK_SEED=, ONLY=)
	@scripts/soak.sh

tsan: setup-check ## C++ tests under ThreadSanitizer
	@scripts/sanitize.sh thread

asan: setup-check ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/sanitize.sh address

asan-binding: setup-check ## Python tests on one and two ranks, with all of ours under both of these
	@scripts/sanitize_binding.sh

thread-safety: setup-check ## compile with clang's lock analysis
	@scripts/sanitize.sh lock-analysis

model: setup-check ## check the whole model of the frozen schedule with spin (6 minutes; ci checks a part)
	@scripts/setup.sh model
	@scripts/model.sh

gpu-check: ## build, run what needs a GPU, table last (RESULTS=, FILES=, ONLY=, COMMIT=; scripts/gpu_check.py)
	@"$${MYDIST_PYTHON:-python3}" -m scripts.gpu_check "$${RESULTS:-build/gpu_results}" \
	  $${FILES:+--files "$$FILES"} $${ONLY:+--only "$$ONLY"} $${COMMIT:+--commit "$$COMMIT"}

ci: ## what a change has to pass: lint, a part of the model, sanitizers, tests
	@.ci/run

clean: ## remove build trees and compiled parts; .venv stays
	@rm -rf build python/mydist/lib python/mydist/_C.*.so
	@rm -rf .pytest_cache .mypy_cache .ruff_cache
