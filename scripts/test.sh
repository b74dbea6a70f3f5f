#!/usr/bin/env bash
# Checks the whole repository: style, types, tests. Arguments go to pytest: scripts/test.sh tests/e2e -k demo
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/env.sh

# The report's page is opened in a browser; where none can be had, those tests are skipped.
has_browser() {
    [[ -n "$(type -P chromium chromium-browser google-chrome google-chrome-stable)" ]]
}

install_browser() {
    local as_root=()
    [[ $EUID -eq 0 ]] || as_root=(sudo -n)
    "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium
}

if ! has_browser && ! install_browser >/dev/null 2>&1; then
    echo "test.sh: no Chromium, and none could be installed: tests that need it are skipped" >&2
fi

ruff check
ruff format --check
pyright
pytest "$@"
