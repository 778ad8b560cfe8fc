# SPDX-License-Identifier: Apache-2.0
"""The package's own errors: each names the value, the limit and the remedy in its message."""

from __future__ import annotations


class KvStreamError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingsError(KvStreamError, ValueError):
    """A setting has an invalid value."""


class BudgetError(KvStreamError):
    """The byte budget is too small, or an allocation failed."""


class CapacityError(KvStreamError):
    """An append would exceed the planned slots; the memory is unchanged."""


class ModelError(KvStreamError):
    """A model cannot be found, belongs to an unsupported family, or lacks a file."""


class FrameError(KvStreamError, ValueError):
    """A frame has an unusable shape, type or stamp; the frame was not stored."""


class PoseError(KvStreamError, ValueError):
    """A pose has values that are not finite, or a quaternion of length 0."""


class NonFiniteError(KvStreamError):
    """The model computed NaN or infinite values; the frame or the answer was dropped and the memory is unchanged."""


class RecordingError(KvStreamError):
    """A recording or video is missing, cannot be read or holds no pictures."""


class QuestionError(KvStreamError, ValueError):
    """A question or one of its limits is invalid; the memory is unchanged."""


class NotCoveredError(QuestionError):
    """Nothing is remembered of the time, place or camera that a question is about."""


class QuestionCancelled(KvStreamError):
    """The caller or a time limit stopped the answer; the memory was rolled back."""


class MemoryFileError(KvStreamError):
    """A memory file cannot be written, or is missing, damaged, of another version, model or other settings."""


class ArchiveError(KvStreamError):
    """The archive's folder or file cannot be used: other settings, in use by another process, or damaged."""
