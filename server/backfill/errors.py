"""What stops a job. What concerns one row alone is no error: see rows.py."""


class BackfillError(Exception):
    """Why a job can't begin, or can't go on: one line. What is done stays, and --resume goes on from there."""


class RefusedJob(BackfillError):
    """The arguments, or what they name, are wrong: nothing was begun."""


class WrongIds(BackfillError):
    """The input has ids of several types: --resume would stop there too."""


class Stopped(BackfillError):
    """A signal asked the job to stop."""


def in_words(error: BaseException) -> str:
    """One line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
