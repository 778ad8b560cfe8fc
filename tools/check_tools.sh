#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lists the programs that the build needs and this machine lacks, with the install command. Usage: check_tools.sh PYTHON
python=$1
missing=""
packages=""

lacks() { # what, Debian package
  missing="$missing
  - $1"
  packages="$packages $2"
}

for program in cmake make g++; do
  command -v "$program" >/dev/null 2>&1 || lacks "$program" "$program"
done
if [ -z "$python" ]; then
  lacks "Python 3.10 - 3.13" "python3 python3-venv python3-dev"
else
  name="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || lacks "the venv module of $python" "$name-venv"
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    lacks "the C headers of $python" "$name-dev"
fi

[ -z "$missing" ] && exit 0
cat >&2 <<END
ros_kvstream cannot be built here yet. Missing:$missing
On Debian or Ubuntu:
  sudo apt install$packages
To use another Python: make PYTHON=python3.12 ...
END
exit 1
