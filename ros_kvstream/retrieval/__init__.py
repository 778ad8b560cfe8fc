# SPDX-License-Identifier: Apache-2.0
"""Which archived frames answer a question: experts, rank fusion, and the context for the answer."""
