#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the models' tests with the oldest transformers that pyproject.toml allows.
# Usage: tools/test_oldest.sh PYTHON [pytest arguments]; PYTHON belongs to an environment made by `make env`.
# Installs only transformers and its requirements into build/oldest; everything else comes from PYTHON's environment.
set -eu

python=$1
shift
version=$(sed -n 's/^  "transformers>=\([0-9.]*\),.*/\1/p' pyproject.toml)
folder=build/oldest
[ -n "$version" ] || { echo "no lower bound of transformers in pyproject.toml" >&2; exit 2; }

if [ "$(cat $folder/version 2>/dev/null)" != "$version" ]; then
  rm -rf "$folder"
  "$python" -m venv "$folder"
  grep -vE '^(transformers|tokenizers|torch)=' requirements.txt >"$folder/constraints.txt"
  "$folder/bin/python" -m pip install --disable-pip-version-check --quiet ${PIP_ARGS:-} \
    -c "$folder/constraints.txt" "transformers==$version"
  # After pip, which must not treat these packages as its own.
  own=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$own/zz_shared.pth"
  echo "$version" >"$folder/version"
fi

export PYTHONPATH="$PWD"
"$folder/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
exec "$folder/bin/python" -m pytest -p no:cacheprovider test/models "$@"
