# SPDX-License-Identifier: Apache-2.0
"""What to look at when the middleware refuses something where security (SROS 2) is on."""

from __future__ import annotations

import os

_NOT_BUILT_IN = "security libraries"
"""Part of what Fast DDS says when it was built without security; no keystore mends that."""


def security_is_on() -> bool:
    """Whether this process was told to run with security, in rcl's own spelling."""
    return os.environ.get("ROS_SECURITY_ENABLE") == "true"


def security_hint(error: BaseException) -> str:
    """What else may be behind a refusal, as a sentence to append; empty where security is off or not built in."""
    if not security_is_on() or _NOT_BUILT_IN in str(error):
        return ""
    return (" Security is on (ROS_SECURITY_ENABLE): the keystore must have this node's enclave, made for this "
            "ROS_DOMAIN_ID, and the enclave's policy must grant this (config/kvstream.policy.xml).")
