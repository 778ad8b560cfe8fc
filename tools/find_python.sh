#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the first Python 3.10 - 3.13 among the arguments (default: the usual names), or nothing.
[ $# -gt 0 ] || set -- python3 python3.13 python3.12 python3.11 python3.10
for python in "$@"; do
  if "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    echo "$python"
    exit 0
  fi
done
