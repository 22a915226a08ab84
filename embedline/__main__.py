"""The launcher behind the command `embedline`: finds the application's folder and hands over to server.cli.

Only `os` and `sys` are imported here: until `python -m` has had its folder taken off the path,
any other import could run a file of the user's that happens to lie where they stand.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _application_folder() -> str:
    """Where the packages server, engine and so on lie: inside this one in a wheel, beside it in a checkout."""
    bundled = os.path.join(_HERE, "_app")
    return bundled if os.path.isdir(bundled) else os.path.dirname(_HERE)


def _open_standard_streams() -> None:
    """What stands for a stream that is closed, or the first file that is opened would take its number and get, or end,
    what is meant for the stream."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # takes the lowest free number, which is this one; processes that are started get it too
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # as Python has it then
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - stays open


def main() -> None:
    """Run the command line. Exits with 1 and one line where the packages of the server extra are missing."""
    _open_standard_streams()
    application = _application_folder()
    sys.path.insert(0, application)
    try:
        from server.cli import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if os.path.isdir(os.path.join(application, missing)):  # one of ours: a mistake to be seen as it is
            raise
        sys.exit(f"embedline: the server needs the package {missing}: pip install 'embedline[server]'")
    run()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts first
    main()
