#!/usr/bin/env bash
# Everything that checks the source without running it. All checks run; one failure fails the whole.
# Usage: lint.sh [--fix]   --fix reformats instead of complaining about the format.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT" || exit 1

PYTHON="$(find_python)" || exit 1
PYTHON_FOLDERS=(setup.py cmake scripts)
for folder in python launcher tests examples benchmarks; do
  [[ -d "$folder" ]] && PYTHON_FOLDERS+=("$folder")
done
mapfile -t CPP_FILES < <(find csrc python/mydist/bench tests/cpp tests/fuzz tests/gpu benchmarks -name '*.h' -o -name '*.cc' -o -name '*.cu' 2>/dev/null | sort)
CLANG_FORMAT="${MYDIST_CLANG_FORMAT:-clang-format-14}"

if [[ "${1:-}" == --fix ]]; then
  "$PYTHON" -m ruff check -q --fix "${PYTHON_FOLDERS[@]}"
  "$PYTHON" -m ruff format -q "${PYTHON_FOLDERS[@]}"
  "$CLANG_FORMAT" -i "${CPP_FILES[@]}"
  exit 0
fi

FAILED=()
check() { # check NAME COMMAND...
  local name="$1"
  shift
  if "$@"; then echo "ok      $name"; else
    echo "FAILED  $name"
    FAILED+=("$name")
  fi
}

check "ruff check" "$PYTHON" -m ruff check -q "${PYTHON_FOLDERS[@]}"
check "ruff format" "$PYTHON" -m ruff format -q --check "${PYTHON_FOLDERS[@]}"
check "mypy --strict" scripts/typecheck.sh
check "clang-format" "$CLANG_FORMAT" --dry-run -Werror "${CPP_FILES[@]}"
check "layers" "$PYTHON" scripts/check_layers.py
check "python imports" "$PYTHON" scripts/check_python_imports.py
check "sizes and names" "$PYTHON" scripts/check_sizes.py
check "shellcheck" shellcheck --external-sources --source-path=scripts scripts/*.sh .ci/run
((${#FAILED[@]} == 0)) || die "lint failed: ${FAILED[*]}"
