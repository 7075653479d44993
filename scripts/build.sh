#!/usr/bin/env bash
# Builds mydist and installs it in editable mode. The first run, and every run after a change of
# Python, torch or build options, goes through pip; the others only rebuild what changed.
# Usage: build.sh [TARGET], a CMake target; default mydist_package, "all" adds the C++ tests.
# --demo: what the ranks of one host need, and nothing else; the next build completes it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

PYTHON="$(find_python)"
[[ -x "$PYTHON" ]] || die "$PYTHON does not exist. Run: make setup"
has_module "$PYTHON" torch || die "$PYTHON has no torch. Run: make setup"

STEP=package
TARGET="${1:-mydist_package}"
# make test and make faults let ranks fail at failpoints; an ordinary build refuses that.
TREE_OPTIONS="-DMYDIST_BUILD_TESTS=ON -DMYDIST_BUILD_BENCHMARKS=ON -DMYDIST_FAILPOINTS=ON"
if [[ "${1:-}" == --demo ]]; then
  STEP=demo
  TARGET=mydist_package
  TREE_OPTIONS=""
  export_demo_options
fi

describe_build() {
  cat setup.py pyproject.toml VERSION scripts/build.sh
  "$PYTHON" -c 'import sys, importlib.metadata as m; print(sys.version, m.version("torch"))'
  echo "$PYTHON ${CMAKE_ARGS:-} ${MYDIST_WITH_MPI:-} ${MYDIST_WITH_GLOO:-} ${MYDIST_WITH_CUDA:-} ${MYDIST_WITH_PS:-}"
  # A package installed later may switch on a backend that was left out.
  ls -d /usr/include/gloo /usr/local/cuda* "$NCCL_HEADER" 2>/dev/null || true
  command -v mpicxx c++ ccache nvcc || true
  echo "${CUDA_HOME:-} ${CUDAToolkit_ROOT:-}"
}

STAMP="$(describe_build | stamp_of "$STEP")"
if [[ ! -e "$STAMP" || ! -f "$DEV_TREE/build.ninja" ]] || ! has_module "$PYTHON" mydist; then
  # What an interrupted build leaves is neither of the two.
  rm -f "$STAMPS"/package-* "$STAMPS"/demo-*
  MYDIST_BUILD_DIR="$DEV_TREE" CMAKE_ARGS="$TREE_OPTIONS ${CMAKE_ARGS:-}" \
    MAX_JOBS="$JOBS" "$PYTHON" -m pip install -v --no-build-isolation --no-deps -e .
  set_stamp "$STEP" "$STAMP"
fi
cmake --build "$DEV_TREE" --target "$TARGET" --parallel "$JOBS"
[[ "$TARGET" != all ]] || cmake --build "$DEV_TREE" --target mydist_package --parallel "$JOBS"
cmake --install "$DEV_TREE" --prefix python/mydist >/dev/null
