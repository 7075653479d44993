# Sourced by what runs several steps: runs them one after the other and tells what each took.
# shellcheck shell=bash

STEP_ROWS=()
STEPS_FAILED=()

# step NAME COMMAND...: runs the command; a failure is remembered, and returned.
step() {
  local name="$1" started="$SECONDS" status=0
  shift
  echo "=== $name"
  "$@" || status=$?
  local word="ok"
  if ((status != 0)); then
    word="FAILED ($status)"
    STEPS_FAILED+=("$name")
  fi
  STEP_ROWS+=("$(printf '%6d s  %-12s %s' "$((SECONDS - started))" "$word" "$name")")
  return "$status"
}

print_steps() { # print_steps TITLE
  echo
  echo "$1"
  printf '%s\n' "${STEP_ROWS[@]}"
  printf '%6d s  in all\n' "$SECONDS"
}
