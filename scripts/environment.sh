# Sourced by the other scripts: where the tree is, which Python is used, what tests run under.
# shellcheck shell=bash
# shellcheck disable=SC2034  # The variables are for the scripts that source this file.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
STAMPS="$ROOT/build/stamps"
DEV_TREE="$ROOT/build/dev"
# Not nproc: it follows OMP_NUM_THREADS, which is about running, not building.
JOBS="${MAX_JOBS:-$(getconf _NPROCESSORS_ONLN)}"
TORCH_REQUIREMENT="${MYDIST_TORCH_REQUIREMENT:-torch==2.13.0}"
NCCL_REQUIREMENT="nvidia-nccl-cu13==2.32.3"
FUZZ_PYTHON="$ROOT/build/fuzz_python" # An environment with atheris; scripts/setup.sh makes it.
INTEGRATIONS_PYTHON="$ROOT/build/integrations_python" # Of scripts/requirements-integrations.txt.
NCCL_HEADER="$ROOT/build/nccl_header/nccl.h" # cmake/cuda.cmake looks there.

die() {
  echo "error: $*" >&2
  exit 1
}

has_module() { # has_module PYTHON MODULE
  "$1" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)" 2>/dev/null
}

# The interpreter everything runs with: MYDIST_PYTHON, else the active environment when it has
# torch, else .venv (which scripts/setup.sh creates).
find_python() {
  local prefix
  if [[ -n "${MYDIST_PYTHON:-}" ]]; then
    command -v "$MYDIST_PYTHON" ||
      die "MYDIST_PYTHON is '$MYDIST_PYTHON', which is no program. Name a Python 3.11 or newer."
    return
  fi
  for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    if [[ -n "$prefix" && -x "$prefix/bin/python" ]] && has_module "$prefix/bin/python" torch; then
      echo "$prefix/bin/python"
      return
    fi
  done
  echo "$ROOT/.venv/bin/python"
}

# Open MPI refuses to run as root unless told twice; one thread per rank keeps small machines usable.
export_run_environment() {
  if [[ "$(id -u)" == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
  PATH="$(dirname "$1"):$PATH"
  export PATH
}

# What the demo leaves to the next build. Where there is a GPU, its plugin is built, for that GPU.
export_demo_options() {
  export MYDIST_WITH_MPI="${MYDIST_WITH_MPI:-LATER}" MYDIST_WITH_GLOO="${MYDIST_WITH_GLOO:-LATER}"
  export MYDIST_WITH_PS="${MYDIST_WITH_PS:-LATER}"
  if compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; then
    export CUDAARCHS="${CUDAARCHS:-native}"
  else
    export MYDIST_WITH_CUDA="${MYDIST_WITH_CUDA:-LATER}"
  fi
}

# A stamp is an empty file named after a step and the hash of what the step depends on.
stamp_of() { # stamp_of STEP, inputs on stdin
  echo "$STAMPS/$1-$(sha256sum | cut -c1-16)"
}

set_stamp() { # set_stamp STEP FILE
  mkdir -p "$STAMPS"
  rm -f "$STAMPS/$1"-????????????????
  : >"$2"
}
