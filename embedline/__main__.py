"""The launcher behind the command `embedline`: finds the application's folder and hands over to server.cli.

Only what Python itself has imported by then is imported here: until `python -m` has had its folder taken off the path,
any other import could run a file of the user's that happens to lie where they stand.
"""

import io
import os
import sys

TYPE_CHECKING = False  # type checkers take it for typing's
if TYPE_CHECKING:
    from typing import Any

_INTERRUPTED = 130  # as of a program that Ctrl-C ends: 128 and the signal's number
_HERE = os.path.dirname(os.path.abspath(__file__))


def _application_folder() -> str:
    """The folder of the packages server, engine and so on: inside this one in a wheel, beside it in a checkout."""
    bundled = os.path.join(_HERE, "_app")
    return bundled if os.path.isdir(bundled) else os.path.dirname(_HERE)


class _Output(io.FileIO):
    """A stream that can't be written, since a disk is full or its reader has gone, ends nothing halfway: what is
    printed from then on is lost, and `error` says why."""

    error: OSError | None = None

    def write(self, data: "Any", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            return memoryview(data).nbytes


def _open_standard_streams() -> _Output:
    """Open a stand-in for each closed stream, or the first file that is opened would take its number and get, or end,
    what is meant for the stream. Returns standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # takes the lowest free number, which is this one; processes that are started get it too
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:  # as Python has it then
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open
    output = _Output(1, "w", closefd=False)
    sys.stdout = _text(output, sys.__stdout__)
    sys.stderr = _text(_Output(2, "w", closefd=False), sys.__stderr__)
    return output


def _text(output: _Output, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A text stream that is buffered like another."""
    buffered = io.BufferedWriter(output)
    if like is None:
        return io.TextIOWrapper(buffered, errors="backslashreplace")
    return io.TextIOWrapper(
        buffered,
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )


def _end_on_ctrl_c() -> None:
    """A KeyboardInterrupt is lost where Python comes to it in a callback, as there are many of while modules are
    imported. A server sets handlers of its own, and until then nothing has to be put in order."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))


def main() -> None:
    """Run the command line. Exits with 1 and one line where the packages of the server extra are missing."""
    output = _open_standard_streams()
    application = _application_folder()
    sys.path.insert(0, application)
    if sys.argv[1:2] == ["serve"]:
        _end_on_ctrl_c()
    try:
        from server.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if os.path.isdir(os.path.join(application, missing)):  # one of ours: a mistake to be seen as it is
            raise
        sys.exit(f"embedline: the server needs the package {missing}: pip install 'embedline[server]'")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except SystemExit as ended:
        if ended.code:
            raise
    sys.stdout.flush()
    if output.error is not None:
        is_closed = isinstance(output.error, BrokenPipeError)  # as by head, which has what it wanted
        sys.exit(1 if is_closed else f"embedline: standard output can't be written: {output.error.strerror}")


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts first
    main()
