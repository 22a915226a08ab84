"""What each command runs, imported when it is called: a command costs its own imports alone."""

from server.settings.settings import Settings


def run_server(settings: Settings) -> int:
    """Serve; the exit code."""
    from server.commands.serve import serve as run  # the other commands have no use for it, nor time

    return run(settings)


def run_inspection(settings: Settings, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.commands.inspect.command import inspect as run

    return run(settings, as_json=as_json)


def run_verification(settings: Settings, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.commands.verify.command import verify as run

    return run(settings, as_json=as_json)


def run_doctor(settings: Settings, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.commands.doctor.command import doctor as run

    return run(settings, as_json=as_json)


def run_library_check(source: str, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.commands.doctor.command import check_library

    return check_library(source, as_json=as_json)


def run_conversion(settings: Settings, out: str, *, as_classifier: bool) -> int:
    """Convert and print; the exit code."""
    from server.commands.convert import convert, convert_to_classifier

    return convert_to_classifier(settings, out) if as_classifier else convert(settings, out)


def run_quantization(settings: Settings, out: str) -> int:
    """Quantize and print; the exit code."""
    from server.commands.quantize import quantize as run

    return run(settings, out)
