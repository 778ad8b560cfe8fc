"""The package's own errors: each names the value, the limit and the remedy in its message."""

from __future__ import annotations


class KvStreamError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingsError(KvStreamError, ValueError):
    """A setting has a value that cannot work; raised when the settings are made."""


class BudgetError(KvStreamError):
    """The byte budget is too small for what was asked, or an allocation failed."""


class CapacityError(KvStreamError):
    """An append would pass the planned slots; the memory is unchanged when this is raised."""


class ModelError(KvStreamError):
    """A model cannot be found, is of a family that is not supported, or lacks a file."""


class FrameError(KvStreamError, ValueError):
    """A frame has a shape, type or stamp that the memory cannot take; the frame was not stored."""


class QuestionError(KvStreamError, ValueError):
    """A question or one of its limits is not acceptable; nothing was changed."""


class QuestionCancelled(KvStreamError):
    """Answering was stopped by its caller or by its time limit; the memory was rolled back."""


class MemoryFileError(KvStreamError):
    """A saved memory cannot be written, or is missing, torn, foreign, newer or of other settings; nothing changed."""


class ArchiveError(KvStreamError):
    """The archive's folder or file cannot be used: other settings, another process, a damaged header."""
