"""Lays out the weights of linear layers as oneDNN reads them, where a measurement shows that this is faster.

What torch takes for a product of float32 matrices (MKL) uses no AVX-512 on some CPUs that have it; oneDNN with weights
laid out beforehand is then more than twice as fast, while on others it is slower. MKL can lay weights out too, but
needs the plain ones beside them and the number of rows beforehand, and gained nothing where it was tried.

oneDNN generates code for each number of rows it meets, in about a millisecond a layer, and keeps what it used last:
whoever calls these layers with numbers of rows of all kinds should take those of `rows_with_code`.
"""

import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

_NUM_ROWS = 128
_NUM_OPERATIONS = 4e8  # of one trial at most, where the layer is not too large even with _MIN_ROWS
_MIN_ROWS = 16
_NUM_TRIALS = 3
_MIN_GAIN = 1.1  # below this it is not worth an exchange
_TOLERANCE = 1e-5  # largest difference over largest value: the order of the additions alone
_CODES_PER_OCTAVE = 32  # numbers of rows between one power of two and the next: at most 3 % more rows


class PrepackedLinear(nn.Module):
    """A linear layer in place of an nn.Linear of float32, whose own weights it does not keep."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)  # opaque
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Compute as nn.Linear does: [..., in_features] to [..., out_features]."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


def prepack(model: nn.Module) -> str:
    """Exchange the linear layers that gain by it; return a line for the log.

    Measures the time of the calling thread, in which torch should compute with that thread alone.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "linear layers: as torch computes them, as it is built without oneDNN"
    places = _places(model)
    num_linears, num_prepacked = len(places), 0
    gains: dict[tuple[int, int], float] = {}  # by the shape of weights
    while places:  # taken out one by one, so that only one layer's weights are there twice
        linear, where = places.popitem()
        shape = (linear.in_features, linear.out_features)
        if shape not in gains:
            gains[shape] = _gain(linear)
        if gains[shape] >= _MIN_GAIN:
            packed = PrepackedLinear(linear)
            for parent, name in where:
                setattr(parent, name, packed)
            num_prepacked += 1
    worth = [gain for gain in gains.values() if gain >= _MIN_GAIN]
    if not worth:
        return "linear layers: as torch computes them; prepacked for oneDNN none gains"
    return (
        f"linear layers: {num_prepacked} of {num_linears} prepacked for oneDNN, "
        f"{min(worth):.1f} to {max(worth):.1f} times as fast as torch's own by measurement"
    )


def is_prepacked(model: nn.Module) -> bool:
    """Whether any layer was exchanged."""
    return any(isinstance(module, PrepackedLinear) for module in model.modules())


def rows_with_code(num_rows: int) -> int:
    """The next larger number of rows among the few for which code is generated."""
    octave = 1 << (num_rows - 1).bit_length()  # ends here and begins at its half
    step = max(1, octave // 2 // _CODES_PER_OCTAVE)
    return -(-num_rows // step) * step


def _places(model: nn.Module) -> dict[nn.Linear, list[tuple[nn.Module, str]]]:
    """The modules in which each linear layer of float32 hangs; they can share one."""
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent in model.modules():
        for name, child in parent._modules.items():
            # a subclass may compute something else
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                places[child].append((parent, name))
    return places


@torch.inference_mode()
def _gain(linear: nn.Linear) -> float:
    """Seconds plain over seconds prepacked; below 0 where the rows differ."""
    packed = PrepackedLinear(linear)
    num_rows = int(_NUM_OPERATIONS / (2 * linear.in_features * linear.out_features))
    num_rows = max(_MIN_ROWS, min(num_rows, _NUM_ROWS))
    rows = torch.randn(1, num_rows, linear.in_features, generator=torch.Generator().manual_seed(0))
    expected, got = functional.linear(rows, linear.weight, linear.bias), packed(rows)
    if not (got - expected).abs().max() <= _TOLERANCE * expected.abs().max():
        return -1.0
    return _seconds(lambda: linear(rows)) / _seconds(lambda: packed(rows))


def _seconds(compute: Callable[[], Tensor]) -> float:
    """This thread's time in the quickest of a few trials, so that other work on the machine matters less."""
    seconds = []
    for _ in range(_NUM_TRIALS):
        began = time.thread_time()
        compute()
        seconds.append(time.thread_time() - began)
    return max(min(seconds), 1e-9)
