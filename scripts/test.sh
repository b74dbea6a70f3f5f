#!/usr/bin/env bash
# Checks the whole repository: style, types, tests. Arguments go to pytest: scripts/test.sh tests/e2e -k demo
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/env.sh

ruff check
ruff format --check
pyright
pytest "$@"
