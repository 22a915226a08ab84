"""The manifest: which job the files are of. Whoever writes them first, writes it; the others must have the same job."""

from server.backfill import plan
from server.backfill.errors import BackfillError, RefusedJob
from server.backfill.out.files import Files
from server.backfill.plan import Plan

MANIFEST = "manifest.json"


def read(files: Files) -> Plan | None:
    """None where no job has begun. Raises RefusedJob where it is none, or may not be read, and BackfillError where the
    place can't be reached."""
    try:
        with files.read(MANIFEST) as stream:
            return plan.from_json(stream.read().decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedJob(f"the manifest of OUT can't be read: {error}") from None


def begin(files: Files, job: Plan) -> None:
    """Write it, unless another worker has. Raises BackfillError, and RefusedJob for another job's OUT."""
    for only_new in (True, False):  # not every store knows the first
        found = read(files)
        if found is not None:
            break
        try:
            _write(files, job, only_new=only_new)
        except BackfillError:
            if not only_new:
                raise
    found = found or read(files)
    if found is None:
        raise BackfillError(f"{files.where}/{MANIFEST} is not there, though it was written")
    found.check_same(job)


def check(files: Files, job: Plan) -> None:
    """Raises BackfillError where it is no longer this job's: two jobs began at once, where nothing locks."""
    try:
        found = read(files)
    except RefusedJob as error:
        raise BackfillError(str(error)) from None
    if found is None or found.job != job.job:
        raise BackfillError("another job has begun in OUT meanwhile")


def _write(files: Files, job: Plan, *, only_new: bool) -> None:
    with files.new_file(MANIFEST, only_new=only_new) as stream:
        stream.write(job.as_json().encode())
