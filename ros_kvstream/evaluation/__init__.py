"""Recordings, question sets, scores and reports."""
