# SPDX-License-Identifier: Apache-2.0
"""Evaluation of memories: question sets, runs, scoring, results and reports."""
