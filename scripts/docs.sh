#!/usr/bin/env bash
# Builds the documentation site in build/site. A broken link or anchor fails.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"
NO_MKDOCS_2_WARNING=1 "$(find_python)" -m mkdocs build --quiet --strict
echo "The site is in build/site; open build/site/index.html."
