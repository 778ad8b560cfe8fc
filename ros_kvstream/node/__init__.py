# SPDX-License-Identifier: Apache-2.0
"""The ROS node: lifecycle, images, parameters, worker thread, diagnostics, messages. No model code in here."""
