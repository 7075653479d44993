#!/usr/bin/env bash
# Trains the first example on two ranks. On a machine where nothing has been built yet it takes the
# shortest way there: only the packages that this takes, the core compiled while torch is being
# installed, and no part that ranks of one host can do without. "make build" completes the rest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

LOG="$ROOT/build/demo.log"
INSTALLATION_LOG="$ROOT/build/demo_installation.log"
INSTALLATION=""

failed() { # failed WHAT LOG
  echo "error: $1 failed; from $2:" >&2
  # What a compiler complains of comes long before the last lines.
  grep -m 20 -A 3 -E 'FAILED:|error:|Error' "$2" >&2 || tail -n 30 "$2" >&2
  exit 1
}

end_installation() {
  # With what it has started, so that no pip goes on beside the next attempt's.
  [[ -z "$INSTALLATION" ]] || kill -- -"$INSTALLATION" 2>/dev/null || true
}

# Everything goes to the log; of it, what is being compiled is shown.
show_compiling() {
  tee -a "$LOG" | sed -nuE \
    's|^ *\[([0-9]+)/([0-9]+)\] Building [A-Z]+ object .*dir/(.*)\.o$|      compile \1 of \2: \3|p'
}

build_core() {
  local targets=(mydist) more
  mapfile -t more < <(xargs -rn 1 printf '%s\n' <<<"${CMAKE_ARGS:-}") # As setup.py splits it.
  cmake -S . -B "$DEV_TREE" -G Ninja -DMYDIST_BUILD_TORCH=OFF -DMYDIST_BUILD_TESTS=OFF \
    -DMYDIST_WITH_MPI="$MYDIST_WITH_MPI" -DMYDIST_WITH_GLOO="$MYDIST_WITH_GLOO" \
    -DMYDIST_WITH_CUDA="${MYDIST_WITH_CUDA:-AUTO}" "${more[@]}" || return
  if cmake --build "$DEV_TREE" --target help | grep -q '^mydist_nccl:'; then
    targets=(mydist_nccl mydist)
  fi
  local target
  for target in "${targets[@]}"; do
    cmake --build "$DEV_TREE" --target "$target" --parallel "$JOBS" || return
  done
}

build_for_demo() {
  export_demo_options
  mkdir -p build
  : >"$LOG"
  echo "[1/4] Installing Debian packages: a compiler, CMake, Ninja, the images of Fashion-MNIST"
  scripts/setup.sh --demo packages >"$INSTALLATION_LOG" 2>&1 ||
    failed "installing Debian packages" "$INSTALLATION_LOG"
  grep -A 1 '^No apt-get here' "$INSTALLATION_LOG" || true
  if [[ -e "$DEV_TREE/configured_with.txt" ]]; then
    scripts/setup.sh --demo python >"$INSTALLATION_LOG" 2>&1 ||
      failed "installing torch" "$INSTALLATION_LOG"
  else
    echo "[2/4] Installing torch and NumPy, and compiling the core of mydist meanwhile"
    trap end_installation EXIT
    setsid scripts/setup.sh --demo python >"$INSTALLATION_LOG" 2>&1 &
    INSTALLATION=$!
    build_core 2>&1 | show_compiling || failed "compiling the core" "$LOG"
    echo "      waiting for torch to be installed"
    wait "$INSTALLATION" || failed "installing torch" "$INSTALLATION_LOG"
    INSTALLATION=""
  fi
  echo "[3/4] Compiling what joins torch and the core"
  scripts/build.sh --demo 2>&1 | show_compiling || failed "compiling" "$LOG"
}

if compgen -G "$STAMPS/package-????????????????" >/dev/null; then
  scripts/setup.sh
  scripts/build.sh
else
  build_for_demo
  echo "      Run make build to add MPI, Gloo and the parameter server"
fi
python="$(find_python)"
if [[ "$python" == "$ROOT/.venv/bin/"* ]]; then
  echo "      For your own programs: source .venv/bin/activate puts mydistrun into your PATH"
fi
echo "[4/4] Training LeNet on Fashion-MNIST with two ranks"
exec scripts/in_environment.sh mydistrun -np 2 --timeline-filename build/demo_timeline.json \
  python examples/train_fashion_mnist.py --epochs 2
