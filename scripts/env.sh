# shellcheck shell=bash
# Sourced by demo.sh and test.sh: makes .venv at the repository's root once, installs the package with its
# `dev` extra there, and puts it first on PATH. Later calls return at once unless pyproject.toml or
# constraints.txt changed. PYTHON=/path/to/python chooses the interpreter.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"

die() {
    echo "env.sh: $*" >&2
    exit 1
}

# The first interpreter that torch 2.7.0 and Composer 0.32.1 have wheels for.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.10 python3.13}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.10 to 3.13 found (tried: ${PYTHON:-python3, python3.10 to python3.13}); set PYTHON=/path/to/python"
}

# What the environment must match: the requirements, and the folder that the editable install points to.
fingerprint() {
    { cat "$root/pyproject.toml" "$root/scripts/constraints.txt" && echo "$root"; } | cksum
}

make_venv() {
    local python
    python="$(find_python)"
    echo "env.sh: making .venv with $("$python" --version)"
    if command -v uv >/dev/null; then
        uv venv --quiet --clear --python "$(command -v "$python")" "$venv"
    else
        "$python" -m venv --clear "$venv" || die "$python cannot make a virtual environment (Debian: install python3-venv)"
        # uv resolves in seconds what takes pip minutes; without it pip does.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv ||
            echo "env.sh: uv is not to be had; pip takes its place" >&2
    fi
}

install_package() {
    local wanted=(-c "$root/scripts/constraints.txt" -e "$root[dev]")
    echo "env.sh: installing composer-mixmon and its requirements (torch alone is about 6 GB on x86-64)"
    if PATH="$PATH:$venv/bin" command -v uv >/dev/null; then
        PATH="$PATH:$venv/bin" uv pip install --quiet --python "$venv/bin/python" "${wanted[@]}" && return
        echo "env.sh: uv could not install; trying pip" >&2
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
}

if [[ "$(cat "$venv/.mixmon-stamp" 2>/dev/null)" != "$(fingerprint)" ]]; then
    make_venv
    install_package || die "installing failed; .venv is incomplete and will be made again next time"
    fingerprint >"$venv/.mixmon-stamp"
fi
export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
