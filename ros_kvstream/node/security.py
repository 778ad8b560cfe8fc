# SPDX-License-Identifier: Apache-2.0
"""Hints for errors of the middleware while security (SROS 2) is enabled."""

from __future__ import annotations

import os

_NOT_BUILT_IN = "security libraries"
"""Part of the error of a Fast DDS that was built without security; a keystore does not help there."""


def security_is_on() -> bool:
    """Whether security is enabled for this process; rcl accepts only this spelling."""
    return os.environ.get("ROS_SECURITY_ENABLE") == "true"


def security_hint(error: BaseException) -> str:
    """Return a sentence to append to an error; empty when security is disabled or not built in."""
    if not security_is_on() or _NOT_BUILT_IN in str(error):
        return ""
    return (" Security is enabled (ROS_SECURITY_ENABLE): the keystore must contain this node's enclave, created for "
            "this ROS_DOMAIN_ID, and the enclave's policy must grant this (config/kvstream.policy.xml).")
