"""`embedline backfill IN OUT`: its options, and where it is computed."""

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embedline.client.preference import CancellationToken
from server.settings.flag import SettingsError
from server.settings.precedence import settings_from

if TYPE_CHECKING:
    from server.features.backfill.job import Job, Options

_FORMATS, _DTYPES = ("parquet", "npy"), ("float16", "float32")


def backfill(
    location: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A file or a folder of Parquet, Arrow, JSONL or CSV (these two also .gz, .zst, .bz2), here or at "
            "s3://, gs://, hf://.",
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The folder of the job, here or at s3://, gs://, hf://: a new one, or with --resume its own. Or a "
            "database: postgresql://user@host/database, qdrant+https://host:6333/collection.",
        ),
    ],
    *,
    column: Annotated[str, typer.Option(help="With the texts.")] = "text",
    id_column: Annotated[
        str | None, typer.Option(help="With whole numbers or texts, kept as they are. Else rows are numbered.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="A running server; repeat it for several with one model. Without it the engine is started here."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="A TOML file as for ray serve: up to max_replicas workers on a Ray cluster, each with an engine.",
        ),
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="EMBEDLINE_API_KEY", help="Of the servers of --url.")] = None,
    model: Annotated[str | None, typer.Option(help="Which of several models at --url.")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Numbers of a row, where fewer are wanted.")] = None,
    prompt_name: Annotated[str | None, typer.Option(help="A prompt of the model, put before each text.")] = None,
    output_dtype: Annotated[
        str, typer.Option(help=f"Of the vectors as they are written: {' or '.join(_DTYPES)}.")
    ] = _DTYPES[0],
    format: Annotated[
        str | None, typer.Option(help=f"{' or '.join(_FORMATS)}, the latter with the ids beside it in Parquet.")
    ] = None,
    job_folder: Annotated[
        str | None,
        typer.Option(help="The folder of a job whose OUT is a database: what is done, and which rows were bad."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Of PostgreSQL, with or without its schema. By default embeddings.")
    ] = None,
    shard_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of a part, but for the last. By default 50,000, or fewer for wide rows."),
    ] = None,
    worker: Annotated[
        str, typer.Option(help="i/n: this process does the i-th of n equal parts of the job, from 0 on. All share OUT.")
    ] = "0/1",
    max_errors: Annotated[int, typer.Option(min=0, help="With more bad rows than this the exit code is 1.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the job of OUT, or begin it.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Print how far the job of OUT is, and end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compute a sample, print what the job would take, write nothing.")
    ] = False,
    **words: Any,
) -> None:
    """Embed every row of a data set exactly once, into files or a database. A killed job goes on with --resume.

    Exit code 0: every row has its vector. 1: the job stopped, or more rows are bad than --max-errors. 2: refused.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise SettingsError("this command needs pyarrow, which is not here: pip install 'embedline[backfill]'")
    from server.features.backfill.job import Job, Options, print_status
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
        if status:
            print_status(options.out)
            return
        _check_where(url, ray, words)
        if ray is not None:
            sys.exit(_on_ray(options, ray))
        job = Job(options)
        sys.exit(_at_servers(job, url, api_key) if url else _here(job, words))


@contextlib.contextmanager
def _in_a_line() -> Iterator[None]:
    from server.features.backfill.errors import BackfillError, RefusedJob

    try:
        yield
    except RefusedJob as error:
        raise SettingsError(str(error)) from None
    except BackfillError as error:
        print(f"embedline: {error}{'; --resume goes on' if error.resumes else ''}", file=sys.stderr)
        sys.exit(1)


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


def _check_where(urls: list[str] | None, ray: str | None, words: dict[str, Any]) -> None:
    """Flags of the engine are for the one that is started here."""
    given = [name for name, word in words.items() if word not in (None, [], ()) and name != "auto_truncate"]
    if given and urls:
        raise SettingsError(f"--{given[0].replace('_', '-')} can't be given with --url: the server has its model")
    if given and ray is not None:
        raise SettingsError(f"--{given[0].replace('_', '-')} can't be given with --ray: its file says it")
    if urls and ray is not None:
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
