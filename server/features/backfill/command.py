"""`embedline backfill IN OUT`: its options, and where it is computed."""

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embedline.client.preference import CancellationToken
from server.settings.flag import SettingsError
from server.settings.precedence import settings_from

if TYPE_CHECKING:
    from server.features.backfill.job import Job, Options

_EXIT_STOPPED = 1
_FORMATS, _DTYPES = ("parquet", "npy"), ("float16", "float32")

_In = Annotated[
    str,
    typer.Argument(
        metavar="IN",
        help="A file or a folder of Parquet, Arrow, JSONL or CSV (these two also .gz, .zst, .bz2), here or at s3://, "
        "gs://, hf://.",
    ),
]
_Out = Annotated[
    str,
    typer.Argument(
        metavar="OUT",
        help="The folder of the job, here or at s3://, gs://, hf://: a new one, or with --resume its own. Or a "
        "database: postgresql://user@host/database, qdrant+https://host:6333/collection.",
    ),
]
_Column = Annotated[str, typer.Option(help="With the texts.")]
_IdColumn = Annotated[
    str | None, typer.Option(help="With whole numbers or texts, kept as they are. Else rows are numbered.")
]
_Url = Annotated[
    list[str] | None,
    typer.Option(help="A running server; repeat it for several with one model. Without it the engine is started here."),
]
_Ray = Annotated[
    str | None,
    typer.Option(
        metavar="CONFIG",
        help="A TOML file as for ray serve: up to max_replicas workers on a Ray cluster, each with an engine.",
    ),
]
_ApiKey = Annotated[str | None, typer.Option(envvar="EMBEDLINE_API_KEY", help="Of the servers of --url.")]
_Model = Annotated[str | None, typer.Option(help="Which of several models at --url.")]
_Dtype = Annotated[str, typer.Option(help=f"Of the vectors as they are written: {' or '.join(_DTYPES)}.")]
_Format = Annotated[
    str | None,
    typer.Option(help=f"{' or '.join(_FORMATS)}, the latter with the ids beside it in Parquet."),
]
_JobFolder = Annotated[
    str | None, typer.Option(help="The folder of a job whose OUT is a database: what is done, and which rows were bad.")
]
_Table = Annotated[str | None, typer.Option(help="Of PostgreSQL, with or without its schema. By default embeddings.")]
_ShardRows = Annotated[
    int | None, typer.Option(min=1, help="Rows of a part, but for the last. By default 50,000, or fewer for wide rows.")
]
_Worker = Annotated[
    str, typer.Option(help="i/n: this process does the i-th of n equal parts of the job, from 0 on. All share OUT.")
]
_MaxErrors = Annotated[int, typer.Option(min=0, help="With more bad rows than this the exit code is 1.")]
_Status = Annotated[bool, typer.Option("--status", help="Print how far the job of OUT is, and end.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Compute a sample, print what the job would take, write nothing.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with the job of OUT, or begin it.")]


def backfill(
    location: _In,
    out: _Out,
    *,
    column: _Column = "text",
    id_column: _IdColumn = None,
    url: _Url = None,
    ray: _Ray = None,
    api_key: _ApiKey = None,
    model: _Model = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Numbers of a row, where fewer are wanted.")] = None,
    prompt_name: Annotated[str | None, typer.Option(help="A prompt of the model, put before each text.")] = None,
    output_dtype: _Dtype = _DTYPES[0],
    format: _Format = None,
    job_folder: _JobFolder = None,
    table: _Table = None,
    shard_rows: _ShardRows = None,
    worker: _Worker = "0/1",
    max_errors: _MaxErrors = 0,
    resume: _Resume = False,
    status: _Status = False,
    dry_run: _DryRun = False,
    **words: Any,
) -> None:
    """Embed every row of a data set exactly once, into files or a database. A killed job goes on with --resume.

    Exit code 0: every row has its vector. 1: the job stopped, or more rows are bad than --max-errors. 2: refused.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise SettingsError("this command needs pyarrow, which is not here: pip install 'embedline[backfill]'")
    from server.features.backfill.job import Options
    from server.features.backfill.sinks import kind_of

    _check_words(location, out, output_dtype, format)
    given = {"dimensions": dimensions, "prompt_name": prompt_name}
    ask: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if words.get("auto_truncate") is False:
        ask["truncate"] = False
    with _in_a_line():
        kind = kind_of(out)
        _check_out(kind, format, job_folder, table)
        options = Options(
            location=location,
            out=job_folder or out,
            sink=out if kind is not None else None,
            table=table,
            column=column,
            id_column=id_column,
            model=model,
            ask=ask,
            dtype=output_dtype,
            format=kind or format or _FORMATS[0],
            shard_rows=shard_rows,
            resume=resume,
            worker=_worker(worker),
            max_errors=max_errors,
            dry_run=dry_run,
        )
        _run(options, _Where(url, api_key, ray, words), shows_status=status)


@dataclass(frozen=True, slots=True)
class _Where:
    """The options for what computes the rows: servers at URLs, a Ray cluster, or an engine that is started here."""

    urls: list[str] | None
    api_key: str | None
    ray: str | None  # the path of its config
    words: dict[str, Any]  # of the engine here


def _run(options: "Options", where: _Where, *, shows_status: bool) -> None:
    """Exits with the job's code, but after a status. Raises BackfillError and SettingsError."""
    from server.features.backfill.job import Job, print_status

    if shows_status:
        print_status(options.out)
        return
    _check_where(where)
    if where.ray is not None:
        sys.exit(_on_ray(options, where.ray))
    job = Job(options)
    sys.exit(_at_servers(job, where.urls, where.api_key) if where.urls else _here(job, where.words))


@contextlib.contextmanager
def _in_a_line() -> Iterator[None]:
    from server.features.backfill.errors import BackfillError, RefusedJob

    try:
        yield
    except RefusedJob as error:
        raise SettingsError(str(error)) from None
    except BackfillError as error:
        print(f"embedline: {error}{'; --resume goes on' if error.resumes else ''}", file=sys.stderr)
        sys.exit(_EXIT_STOPPED)


def _check_words(location: str, out: str, output_dtype: str, format: str | None) -> None:
    for value, known, flag in ((output_dtype, _DTYPES, "--output-dtype"), (format, _FORMATS, "--format")):
        if value is not None and value not in known:
            raise SettingsError(f"{flag} must be one of: {', '.join(known)}")
    for word, name in ((location, "IN"), (out, "OUT")):
        if not word:
            raise SettingsError(f"{name} is empty")


def _worker(text: str) -> tuple[int, int]:
    number, separator, of = text.partition("/")
    if separator and number.isdecimal() and of.isdecimal() and 0 <= int(number) < int(of) <= 1_000_000:
        return int(number), int(of)
    raise SettingsError("--worker must be like 0/4: the number of this worker, from 0 on, and how many there are")


def _check_out(kind: str | None, format: str | None, job_folder: str | None, table: str | None) -> None:
    """Files have a format, and a database has a folder beside it."""
    if kind is None and (job_folder is not None or table is not None):
        raise SettingsError("--job-folder and --table are for an OUT that is a database")
    if kind is not None and format is not None:
        raise SettingsError("--format is for files: OUT is a database")
    if kind is not None and not job_folder:
        raise SettingsError("--job-folder must name a folder: the database does not say what is done")


def _check_where(where: _Where) -> None:
    """Flags of the engine are for the one that is started here."""
    given = [name for name, word in where.words.items() if word not in (None, [], ()) and name != "auto_truncate"]
    if given and where.urls:
        raise SettingsError(f"--{given[0].replace('_', '-')} can't be given with --url: the server has its model")
    if given and where.ray is not None:
        raise SettingsError(f"--{given[0].replace('_', '-')} can't be given with --ray: its file says it")
    if where.urls and where.ray is not None:
        raise SettingsError("--url and --ray can't be given together")


def _on_ray(options: "Options", path: str) -> int:
    from server.features.ray.backfill import run
    from server.features.ray.settings import read_ray

    if options.worker != (0, 1) or options.dry_run:
        raise SettingsError(f"--{'dry-run' if options.dry_run else 'worker'} can't be given with --ray")
    return run(options, read_ray(path))


def _at_servers(job: "Job", urls: list[str], api_key: str | None) -> int:
    token = CancellationToken()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: token.cancel())
    return job.run(urls, api_key, token)


def _here(job: "Job", words: dict[str, Any]) -> int:
    from server.features.backfill import own_engine

    settings = settings_from(words, os.environ)
    if len(settings.models) != 1:
        raise SettingsError("--model-id must name one model")
    token = CancellationToken()
    return own_engine.run(settings, lambda url: job.run([url], None, token), cancel=token.cancel)
