"""How many machines a day of traffic needs, how long requests take, what it costs.

python -m benchmarks.fleet [--trace mixed | FILE.csv] [--machine cpu] [--scale tokens] [--target 100000]
"""

import argparse
import math
from pathlib import Path

from benchmarks.fleet import machines, traces
from benchmarks.fleet.autoscalers import Rules, Scaler, Wish, by_rate, by_requests, by_tokens
from benchmarks.fleet.figures import cells, figures, write_minutes
from benchmarks.fleet.fleet import BALANCERS, Fleet
from benchmarks.fleet.machines import Machine

# replicas are kept as they are; requests in flight and tokens for each replica; its utilization
_TARGETS = {"fixed": math.nan, "requests": 4.0, "tokens": 100_000.0, "rate": 0.6}


def wish_of(scale: str, target: float, machine: Machine, max_wait: float = math.inf) -> Wish | None:
    """The autoscaler's, by its flags."""
    match scale:
        case "requests":
            return by_requests(target)
        case "tokens":
            return by_tokens(target, max_wait)
        case "rate":
            return by_rate(machine.tokens_per_second, target)
        case _:
            return None


def _arguments() -> argparse.Namespace:
    rules = Rules()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--trace", default="mixed", help=f"{', '.join(traces.DAYS)} (drawn), or a CSV file: seconds, texts, tokens")
    add("--hours", type=float, default=24.0, help="of a drawn trace")
    add("--load", type=float, default=1.0, help="times the requests of a drawn trace")
    add("--seed", type=int, default=1)
    add("--machine", default="cpu", help="type of the replicas' machines")
    add("--machines", type=Path, help="a TOML file with types of machines")
    add("--scale", choices=tuple(_TARGETS), default="tokens", help="what the autoscaler looks at")
    add("--target", type=float, help="requests in flight or tokens, for each replica; utilization")
    add("--max-wait", type=float, default=math.inf, help="seconds; by tokens: more if the oldest waits longer")
    add("--balance", choices=tuple(BALANCERS), default="least-requests")
    add("--replicas", type=int, nargs=2, default=(rules.min_replicas, rules.max_replicas), metavar=("MIN", "MAX"))
    add("--period", type=float, default=rules.period, help="seconds between two looks")
    add("--window", type=float, default=rules.window, help="seconds over which a wish is averaged")
    add("--delay", type=float, default=rules.delay, help="seconds that it must be low before fewer are kept")
    add("--rate", type=float, default=rules.rate, help="part of the excess that goes at a time")
    add("--minutes", type=Path, help="write a CSV file with a line for each minute")
    add("--plot", type=Path, help="write a PNG file")
    arguments = parser.parse_args()
    least, most = arguments.replicas
    if not 0 <= least <= most or not most:
        parser.error("--replicas must be from 0 up, the most at least the least and 1")
    for name in ("hours", "load", "period", "max_wait"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if arguments.target is not None and not arguments.target > 0:
        parser.error("--target must be above 0")
    if not 0 < arguments.rate <= 1 or min(arguments.window, arguments.delay) < 0:
        parser.error("--rate must be above 0 and at most 1, --window and --delay 0 or more")
    return arguments


def main() -> None:
    arguments = _arguments()
    try:
        types = machines.known(arguments.machines)
        day = traces.DAYS.get(arguments.trace)
        trace = (
            traces.draw(day, seed=arguments.seed, hours=arguments.hours, load=arguments.load)
            if day
            else traces.read(Path(arguments.trace))
        )
    except (machines.MachineError, traces.TraceError, OSError) as error:
        raise SystemExit(f"benchmarks.fleet: {error}") from None
    if arguments.machine not in types:
        raise SystemExit(f"benchmarks.fleet: no machine {arguments.machine!r}; there are {', '.join(types)}")
    machine = types[arguments.machine]
    least, most = arguments.replicas
    rules = Rules(
        min_replicas=least,
        max_replicas=most,
        period=arguments.period,
        window=arguments.window,
        delay=arguments.delay,
        rate=arguments.rate,
    )
    target = arguments.target or _TARGETS[arguments.scale]
    scaler = Scaler(rules, wish_of(arguments.scale, target, machine, arguments.max_wait))
    course = Fleet(trace, machine, scaler, balancer=BALANCERS[arguments.balance], num_first=least).run()
    print(f"machine {machine.name}: {machine.source}")
    for name, cell in cells(figures(trace, machine, course)).items():
        print(f"{name:16}{cell:>12}")
    if arguments.minutes:
        write_minutes(course, arguments.minutes)
    if arguments.plot:
        from benchmarks.fleet import plots  # needs matplotlib

        plots.course(arguments.plot, trace, course)


if __name__ == "__main__":
    main()
