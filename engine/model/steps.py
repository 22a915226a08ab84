"""The modules after the Pooling, as plain data. Does not read files, does not compute."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.types import ModelError

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last")  # what comes before the modules
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")  # torch's names, with their default arguments
LAYER_NORM_EPSILON = 1e-5  # torch's default, which sentence-transformers uses
NORMALIZE_FLOOR = 1e-12  # torch's default; a row of zeros stays zero

Shapes = dict[str, tuple[int, ...]]  # of a module's tensors, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """activation(row @ weight.T + bias). has_residual: plus the row, which is projected if the sizes differ."""

    folder: str  # the module's, in the model's folder; or the file with its tensors
    in_features: int
    out_features: int
    has_bias: bool = True
    activation: str = "Tanh"  # of ACTIVATIONS
    has_residual: bool = False

    @property
    def shapes(self) -> Shapes:
        """The shapes of its tensors in torch's layout."""
        projection = (self.out_features, self.in_features)
        found: Shapes = {"linear.weight": projection}
        if self.has_bias:
            found["linear.bias"] = (self.out_features,)
        if self.has_residual and self.in_features != self.out_features:
            found["residual.weight"] = projection
        return found

    @property
    def is_file(self) -> bool:
        """Whether `folder` is a file. Tensors in it may also be called weight and bias."""
        return self.folder.endswith(".safetensors")

    @property
    def source(self) -> str:
        """The file that describes the step."""
        return self.folder if self.is_file else f"{self.folder}/config.json"

    def __str__(self) -> str:
        extras = ", residual" if self.has_residual else ""
        return f"Dense {self.in_features} to {self.out_features}, {self.activation}{extras} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """torch's nn.LayerNorm over the row."""

    folder: str
    size: int

    @property
    def shapes(self) -> Shapes:
        """The shapes of its tensors."""
        return {"norm.weight": (self.size,), "norm.bias": (self.size,)}

    @property
    def source(self) -> str:
        """The file that describes the step."""
        return f"{self.folder}/config.json"

    def __str__(self) -> str:
        return f"LayerNorm ({self.source})"


@dataclass(frozen=True, slots=True)
class Normalize:
    """Scales the row to length 1, before further steps."""

    def __str__(self) -> str:
        return "Normalize (modules.json)"


Step = Dense | LayerNorm | Normalize


def output_size(steps: Iterable[Step], size: int) -> int:
    """The size of a row after all steps. Raises ModelError if a step does not fit the size before it."""
    for step in steps:
        match step:
            case Dense(in_features=taken, out_features=given) | LayerNorm(size=taken as given):
                if taken != size:
                    raise ModelError(f"{step.source} needs rows of {taken} numbers, but gets {size}")
                size = given
    return size
