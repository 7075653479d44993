#!/usr/bin/env bash
# Installs what is missing: Debian packages, .venv, torch, Python packages. Does nothing when all
# is there. Usage: setup.sh [GROUP...], groups of debian_packages.txt besides those that building and
# testing take. For the demo, which takes less: setup.sh --demo packages, then setup.sh --demo python.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

PARTS=(packages python)
REQUIREMENTS=(scripts/requirements.txt scripts/requirements-run.txt)
if [[ "${1:-}" == --demo ]]; then
  GROUPS_WANTED=(build demo)
  PARTS=("$2")
  REQUIREMENTS=(scripts/requirements-run.txt)
else
  GROUPS_WANTED=(build demo base "$@")
fi

packages_of() { # packages_of GROUP
  awk -v group="[$1]" '/^\[/ { on = ($0 == group); next } on && NF && !/^#/' \
    scripts/debian_packages.txt
}

missing_packages() {
  local group package
  for group in "${GROUPS_WANTED[@]}"; do
    for package in $(packages_of "$group"); do
      dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        echo "$package"
    done
  done
}

install_debian_packages() {
  local missing=() become_root=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "No apt-get here. mydist needs your system's equivalents of these Debian packages:"
    for group in "${GROUPS_WANTED[@]}"; do packages_of "$group"; done | paste -sd' '
    command -v cmake >/dev/null || die "cmake is missing; install the packages above first."
    return
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  echo "Installing Debian packages: ${missing[*]}"
  if [[ "$(id -u)" != 0 ]]; then
    command -v sudo >/dev/null || die "these Debian packages are missing and there is no sudo." \
      "As root run: apt-get install ${missing[*]}"
    become_root=(sudo)
  fi
  "${become_root[@]}" apt-get update -q
  "${become_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qy --no-install-recommends "${missing[@]}"
}

python_is_recent() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

create_environment() {
  local base options=()
  for base in python3 python3.13 python3.12 python3.11; do
    if command -v "$base" >/dev/null && python_is_recent "$base"; then
      # A torch of the system's Python is taken as given as well.
      has_module "$base" torch && options=(--system-site-packages)
      echo "Creating .venv with $("$base" --version)"
      "$base" -m venv "${options[@]}" .venv
      return
    fi
  done
  die "no Python 3.11 or newer on PATH. Install one, or name it in MYDIST_PYTHON."
}

# For the test of our declarations, where there is a CUDA whose headers it includes. Of 300 MB one
# file is kept; where it cannot be had, the test is skipped.
fetch_nccl_header() {
  local stamp wheels
  command -v nvcc >/dev/null || [[ -x "${CUDA_HOME:-}/bin/nvcc" ]] || return 0
  stamp="$(echo "$NCCL_REQUIREMENT" | stamp_of nccl_header)"
  [[ ! -e "$stamp" || ! -e "$NCCL_HEADER" ]] || return 0
  echo "Fetching nccl.h from $NCCL_REQUIREMENT (a large download; PIP_INDEX_URL is honoured)"
  mkdir -p build "$(dirname "$NCCL_HEADER")"
  wheels="$(mktemp -d -p build)"
  if "$PYTHON" -m pip download -qq --no-deps --only-binary=:all: --retries 3 -d "$wheels" \
    "$NCCL_REQUIREMENT" && "$PYTHON" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel: header = wheel.read("nvidia/nccl/include/nccl.h")
with open(sys.argv[2], "wb") as file: file.write(header)' "$wheels"/*.whl "$NCCL_HEADER"; then
    set_stamp nccl_header "$stamp"
  else
    echo "No nccl.h: the test that compares our declarations with it will be skipped."
  fi
  rm -rf "$wheels"
}

install_python_packages() {
  PYTHON="$(find_python)"
  [[ "$PYTHON" == "$ROOT/.venv/bin/python" && ! -x "$PYTHON" ]] && create_environment
  python_is_recent "$PYTHON" ||
    die "$PYTHON is older than Python 3.11. Name another in MYDIST_PYTHON."
  local step stamp
  step="$(basename "${REQUIREMENTS[0]}" .txt)"
  stamp="$( (cat "${REQUIREMENTS[@]}" && echo "$PYTHON $TORCH_REQUIREMENT" &&
    stat -c '%i %Y' "$PYTHON") | stamp_of "$step")"
  [[ ! -e "$stamp" ]] || return 0
  if ! has_module "$PYTHON" torch; then
    echo "Installing $TORCH_REQUIREMENT into $PYTHON (a large download; PIP_INDEX_URL is honoured)"
    "$PYTHON" -m pip install -q --no-compile "$TORCH_REQUIREMENT"
    # Of torch only what is imported is compiled: a third of it, with what an optimizer imports.
    PYTHONDONTWRITEBYTECODE="" "$PYTHON" -c "import torch, torch._dynamo, torch.utils.data"
  fi
  "$PYTHON" -m pip install -q -r "${REQUIREMENTS[0]}"
  set_stamp "$step" "$stamp"
}

# Apart from the other packages; see the requirements. Without them the parsers in C++ are still
# fuzzed, so a Python that is too new for atheris is no error.
install_fuzzer() {
  local stamp
  stamp="$( (cat scripts/requirements-fuzz.txt && "$PYTHON" -VV) | stamp_of fuzz)"
  [[ ! -e "$stamp" ]] || return 0
  rm -rf "$FUZZ_PYTHON"
  "$PYTHON" -m venv "$FUZZ_PYTHON"
  if "$FUZZ_PYTHON/bin/python" -m pip install -q --only-binary=:all: -r scripts/requirements-fuzz.txt; then
    set_stamp fuzz "$stamp"
  else
    rm -rf "$FUZZ_PYTHON"
    echo "No atheris for $("$PYTHON" --version): make fuzz leaves the parsers in Python out."
  fi
}

# Libraries that train by torch.distributed, apart from the other packages and on top of them. pip may
# not replace torch: its version is a constraint.
install_integrations() {
  local stamp
  stamp="$( (cat scripts/requirements-integrations.txt && "$PYTHON" -VV &&
    echo "$PYTHON $TORCH_REQUIREMENT") | stamp_of integrations)"
  [[ ! -e "$stamp" ]] || return 0
  echo "Installing what scripts/requirements-integrations.txt names (250 MB)"
  rm -rf "$INTEGRATIONS_PYTHON"
  "$PYTHON" -m venv "$INTEGRATIONS_PYTHON"
  "$PYTHON" - "$INTEGRATIONS_PYTHON" <<'END'
import importlib.metadata, pathlib, sys, sysconfig, torch

root = pathlib.Path(sys.argv[1])
folders = dict.fromkeys([sysconfig.get_path("purelib"), str(pathlib.Path(torch.__file__).parents[1])])
lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
(site,) = root.glob("lib/python*/site-packages")
(site / "of_the_project.pth").write_text("".join(lines))
(root / "constraint.txt").write_text(f"torch=={importlib.metadata.version('torch')}\n")
END
  "$INTEGRATIONS_PYTHON/bin/python" -m pip install -q --only-binary=:all: \
    -c "$INTEGRATIONS_PYTHON/constraint.txt" -r scripts/requirements-integrations.txt
  ! compgen -G "$INTEGRATIONS_PYTHON/lib/python*/site-packages/torch/" >/dev/null ||
    die "pip has put another torch into $INTEGRATIONS_PYTHON."
  set_stamp integrations "$stamp"
}

for part in "${PARTS[@]}"; do
  case "$part" in
    packages) install_debian_packages ;;
    python) install_python_packages ;;
    *) die "setup.sh has no part '$part', expected packages or python." ;;
  esac
done
[[ " ${GROUPS_WANTED[*]} " != *" ci "* ]] || fetch_nccl_header
[[ " ${GROUPS_WANTED[*]} " != *" fuzz "* ]] || install_fuzzer
[[ " ${GROUPS_WANTED[*]} " != *" integrations "* ]] || install_integrations
[[ "${1:-}" == --demo ]] || echo "Set-up complete: $PYTHON, groups: ${GROUPS_WANTED[*]}"
