"""Writes config/kvstream.yaml from the parameter table: ``python -m ros_kvstream.node.parameter_file > FILE``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from ros_kvstream.node.parameter_table import (
    CAMERAS_DESCRIPTION,
    PARAMETERS,
    SHARE_DESCRIPTION,
    TOPIC_DESCRIPTION,
    TRANSPORT_DESCRIPTION,
    TRANSPORTS,
    Change,
    Value,
)

WIDTH = 118
INDENT = " " * 4


def render() -> str:
    """The whole parameter file: every parameter at its default, with its description, limits and when it may change."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Every parameter of kvstream_node at its default. Made by `python -m ros_kvstream.node.parameter_file`."
    yield "/**:"
    yield "  ros__parameters:"
    yield from _entry("cameras", '["camera"]', CAMERAS_DESCRIPTION)
    yield from _entry("camera.topic", '"image"', TOPIC_DESCRIPTION)
    yield from _entry("camera.transport", '"raw"', f"{TRANSPORT_DESCRIPTION} One of: {', '.join(TRANSPORTS)}.")
    yield from _entry("camera.share", "0.0", f"{SHARE_DESCRIPTION} May be changed {Change.RUNNING.value}.")
    for spec in PARAMETERS:
        limits = f" From {spec.low:.10g} to {spec.high:.10g}." if spec.low is not None and spec.high is not None else ""
        yield from _entry(spec.name, _yaml(spec.default), f"{spec.description}{limits} {spec.constraints}")


def _entry(name: str, value: str, description: str) -> Iterator[str]:
    yield ""
    yield from textwrap.wrap(description, WIDTH, initial_indent=f"{INDENT}# ", subsequent_indent=f"{INDENT}# ",
                             break_long_words=False, break_on_hyphens=False)
    yield f"{INDENT}{name}: {value}"


def _yaml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    sys.stdout.write(render())
