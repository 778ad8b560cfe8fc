# SPDX-License-Identifier: Apache-2.0
"""Writes config/kvstream.yaml and docs/parameters.md from the settings' fields: ``python tools/parameters.py``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ros_kvstream.node.parameter_specs import ParameterSpec, camera_specs, parameter_specs

ROOT = Path(__file__).resolve().parents[1]
YAML_WIDTH = 118
INDENT = " " * 4
MARKDOWN_ESCAPES = str.maketrans({"<": "&lt;", "~": r"\~", "*": r"\*"})
PAGE_HEAD = """\
# Parameters

Every parameter of `kvstream_node`. `config/kvstream.yaml` holds the same at their defaults, and
`ros2 param describe /kvstream NAME` shows them for a running node. A bad value is rejected with the reason, at start
and at run time; a misspelt name is rejected at start.

A parameter can be changed

- *running*: at any time, also while the node is active;
- *configure*: while the node is unconfigured; it takes effect at the next configure;
- *start*: only when the node is started.

This page and `config/kvstream.yaml` are generated from the settings in `ros_kvstream/settings.py`,
`ros_kvstream/node/settings.py` and the policies: run `make parameters` after a change.
"""


def parameter_file() -> str:
    """Return config/kvstream.yaml: every parameter at its default with its description, limits and change."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Every parameter of kvstream_node at its default. Generated: "
             "run `make parameters`.", "/**:", "  ros__parameters:"]
    for spec in every_spec("camera"):
        words = " ".join(filter(None, (spec.rules.description, limits(spec), spec.constraints)))
        lines += ["", *textwrap.wrap(words, YAML_WIDTH, initial_indent=f"{INDENT}# ", subsequent_indent=f"{INDENT}# ",
                                     break_long_words=False, break_on_hyphens=False),
                  f"{INDENT}{spec.name}: {json.dumps(spec.to_parameter(spec.default))}"]
    return "\n".join(lines) + "\n"


def parameter_page() -> str:
    """Return docs/parameters.md: one table for each group of parameters."""
    lines = [PAGE_HEAD.rstrip()]
    group = None
    for spec in every_spec("<camera>"):
        prefix = spec.name.rpartition(".")[0]
        if prefix != group:
            group = prefix
            lines += ["", f"## `{group}.*`" if group else "## Node and model", "",
                      "| parameter | default | values | change | description |", "|---|---|---|---|---|"]
        values = ", ".join([*(f"`{choice}`" for choice in spec.rules.choices), limits(spec).rstrip(".")]).strip(", ")
        default = json.dumps(spec.to_parameter(spec.default))
        description = spec.rules.description.translate(MARKDOWN_ESCAPES)
        lines.append(f"| `{spec.name}` | `{default}` | {values} | {spec.rules.change.name.lower()} | {description} |")
    return "\n".join(lines) + "\n"


def every_spec(camera: str) -> Iterator[ParameterSpec]:
    """Yield every parameter, those of a camera of this name included, group by group."""
    specs = [parameter_specs()["cameras"], *camera_specs(camera, alone=True)]
    specs += [spec for spec in parameter_specs().values() if spec.name != "cameras"]
    groups: dict[str, list[ParameterSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.name.rpartition(".")[0], []).append(spec)
    for group in groups.values():
        yield from group


def limits(spec: ParameterSpec) -> str:
    """Return the range of a number in words; empty for other parameters."""
    low, high = spec.rules.low, spec.rules.high
    return f"From {low:.10g} to {high:.10g}." if low is not None and high is not None else ""


if __name__ == "__main__":
    (ROOT / "config" / "kvstream.yaml").write_text(parameter_file())
    (ROOT / "docs" / "parameters.md").write_text(parameter_page())
