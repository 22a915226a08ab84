"""`embedline bench URL`: the options of embedline.bench as flags of the command line."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from embedline.bench import options as bounds
from embedline.bench.options import Options, OptionsError
from embedline.bench.run import run
from server.settings.flag import SettingsError


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:8080.")],
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Requests in flight: the next is sent when one is answered. 64 by default. With --rate the "
            "most that may be in flight (4096); what is due beyond it is not sent and counts as failed."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts in a request.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Open loop: so many requests a second, whether answers come or not. Latency then counts "
            "from when a request was due, as its user would feel it."
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help=f"With --rate, the gaps between requests: {' or '.join(bounds.ARRIVALS)}.")
    ] = "poisson",
    duration: Annotated[
        float, typer.Option(help="Seconds of load. Ten or more; the p99 of few requests is noise.")
    ] = 10.0,
    requests: Annotated[int | None, typer.Option(help="Send so many requests instead of --duration.")] = None,
    warmup: Annotated[float, typer.Option(help="Seconds of the same load before it, which don't count.")] = 2.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.")] = 60.0,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="A file with a text a line, sent in turn. By default English texts are made, with lengths "
            "spread log-normally around 40 tokens; your own texts say more."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name in the requests.")] = "default",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="EMBEDLINE_API_KEY", help="Sent as a bearer token. In the environment others can't see it."
        ),
    ] = None,
    route: Annotated[str, typer.Option(help=f"{' or '.join(bounds.ROUTES)}.")] = bounds.ROUTES[0],
    encoding: Annotated[str, typer.Option(help=f"Of the answers: {', '.join(bounds.ENCODINGS)}.")] = "float",
    request_class: Annotated[
        str | None,
        typer.Option("--class", help=f"{' or '.join(bounds.CLASSES)}. By default the server chooses by size."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the made texts and of the random gaps.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write everything, every latency too, into this file.")] = None,
) -> None:
    """Load a server and print its rates, latencies and failures."""
    given = locals()  # the options by their names
    given["concurrency"] = concurrency if concurrency is not None else (64 if rate is None else 4096)
    try:
        sys.exit(run(Options(**given)))
    except OptionsError as error:
        raise SettingsError(str(error)) from None
