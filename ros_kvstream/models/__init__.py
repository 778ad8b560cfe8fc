# SPDX-License-Identifier: Apache-2.0
"""One interface over the model families; one file per family."""
