"""From the cells of a histogram, as wire.metrics keeps them, to the buckets that Prometheus reads."""

from collections.abc import Iterable, Sequence

from wire.metrics import Edges


def cumulative(cells: Sequence[float], edges: Edges, *, shown: Edges) -> list[tuple[str, float]]:
    """(upper edge, how many values are at or below it) for each edge that is shown, and +Inf.

    cells  a count for each edge, one for what is above all of them, and the sum of all values
    """
    wanted = set(shown)
    buckets, total = [], 0.0
    for edge, count in zip(edges, cells, strict=False):
        total += count
        if edge in wanted:
            buckets.append((f"{edge:g}" if edge < 1e6 else str(edge), total))
    return [*buckets, ("+Inf", total + cells[len(edges)])]


def summed(histograms: Iterable[Sequence[float]], num_edges: int) -> list[float]:
    """Several histograms of the same edges as one."""
    total = [0.0] * (num_edges + 2)
    for cells in histograms:
        for index, value in enumerate(cells):
            total[index] += value
    return total
