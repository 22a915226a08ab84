"""Errors that stop a backfill. A row that fails alone is no error."""

from typing import ClassVar


class BackfillError(Exception):
    """A job can't begin, or can't go on: the message is one line. What is done stays, and --resume goes on from
    there."""

    resumes: ClassVar[bool] = True


class RefusedJob(BackfillError):
    """The arguments, or what they name, are wrong: nothing was begun."""


class WrongIds(BackfillError):
    """The input has ids of several types: --resume would stop there too."""

    resumes = False


class InputChanged(BackfillError):
    """A file is not what it was when the job was planned: --resume refuses it too."""

    resumes = False


class SinkAway(BackfillError):
    """The database can't be reached, or refuses, now; later it may not."""


class Stopped(BackfillError):
    """A signal asked the job to stop."""


def in_words(error: BaseException) -> str:
    """One line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
