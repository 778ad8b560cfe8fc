#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the first Python of the given ones, or of the usual names, that is 3.10 - 3.13. Prints nothing where there is none.
[ $# -gt 0 ] || set -- python3 python3.13 python3.12 python3.11 python3.10
for python in "$@"; do
  if "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    echo "$python"
    exit 0
  fi
done
