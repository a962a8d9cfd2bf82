"""Errors a user can meet; each carries the exit code of the command line and a message that says what to do next."""

from __future__ import annotations


class TraceAnalyzeError(Exception):
    """Base of all errors that are shown to a user as one paragraph, without a traceback."""

    exit_code = 2


class UsageError(TraceAnalyzeError):
    """The command line or an argument is wrong (unknown GPU, malformed window, ...)."""

    exit_code = 2


class NotACaptureError(TraceAnalyzeError):
    """Nothing in the file could be read as a capture: what it is, what was expected, what to do."""

    exit_code = 2


class CannotAnswerError(TraceAnalyzeError):
    """The file was read, but the question cannot be answered from it (no kernels, empty window, ...)."""

    exit_code = 3
