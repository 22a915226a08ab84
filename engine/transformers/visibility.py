"""The tokens of its sequence that a token attends to in each layer, read from the masks that transformers makes for it.

transformers' own attention obeys the mask alone, while some layers say a window by an argument, some say none, and some
say one that differs by a token. So a freshly loaded model runs once on a few tokens. A function of ours takes the place
of the mask's maker, and gets from transformers the rule by which it would fill the mask. The rule is then asked about
pairs of positions as far away as sequences may be long, so windows of any size are told without a long sequence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

_ASKED = "embedline_asked"  # see attention.PACKED for what the name must not contain
_FAR = (257, 1031, 4099, 16_411, 65_537, 262_147)  # positions that are asked about, besides those near a window's ends
NUM_TOKENS = 13  # of the sequence that is run: no number of something else in a model

_LOOKS_UP = ("__getitem__", "index_", "gather", "scatter", "take")  # what the names of torch's functions begin with

RuleOfMask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key: whether it sees it


class UnsupportedAttention(Exception):
    """A layer needs something that packed attention can't do."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The tokens of a sequence that each of its tokens attends to."""

    is_causal: bool
    window: int | None = None  # a token attends to tokens fewer than this many away
    chunk: int | None = None  # and to those of its own chunk alone; a sequence is cut into chunks of this many tokens

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether tokens at these positions see those; the arguments are broadcast."""
        distance = query - key
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.is_causal:
            seen &= distance >= 0
        if self.window is not None:
            seen &= distance.abs() < self.window
        if self.chunk is not None:
            seen &= query // self.chunk == key // self.chunk
        return seen


def visibilities(model: PreTrainedModel, run: Callable[[], object]) -> dict[nn.Module, Visibility]:
    """The visibility in each layer that attends. run: runs the model on a sequence of NUM_TOKENS, as packed ones are
    run.

    Raises UnsupportedAttention for a layer whose mask packed attention can't do without, and where a layer numbers
    tokens of the row itself, which differ from the positions in a sequence. The model's attention is restored.
    """
    own = model.config._attn_implementation
    asked = _MaskRecorder()
    AttentionInterface.register(_ASKED, asked.attention)
    AttentionMaskInterface.register(_ASKED, asked.mask)
    model.set_attn_implementation(_ASKED)
    try:
        with _NumbersNoRow():
            run()
    finally:
        model.set_attn_implementation(own)
    return asked.found


class _MaskRecorder:
    """Takes the place of transformers' makers of masks and of its attention."""

    def __init__(self) -> None:
        self.found: dict[nn.Module, Visibility] = {}
        self._masks: list[tuple[Tensor, Visibility | str]] = []  # what was made, and by which rule, or why by none

    def mask(self, *, mask_function: RuleOfMask, q_length: int, kv_length: int, **others: Any) -> Tensor:
        """A mask that stands for its rule."""
        made = torch.ones((1, 1, q_length, kv_length), dtype=torch.bool, device=others["device"])
        self._masks.append((made, visibility_of(mask_function, others.get("local_size"), others["device"])))
        return made

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Notes what the layer sees. The rows are zeros."""
        is_causal = others.get("is_causal")
        is_causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        seen = Visibility(is_causal) if attention_mask is None else self._of_mask(attention_mask)
        # without padding and within a window, transformers may leave the mask out and ask the layer alone
        if seen.is_causal != is_causal:
            raise UnsupportedAttention("a mask and a layer that differ on whether attention is causal")
        if attention_mask is None and others.get("sliding_window"):
            raise UnsupportedAttention("a window that is in no mask")
        if self.found.setdefault(module, seen) != seen:
            raise UnsupportedAttention("a layer that has several masks")
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    def _of_mask(self, mask: Tensor) -> Visibility:
        for made, seen in self._masks:
            if mask.data_ptr() == made.data_ptr() and mask.shape == made.shape and mask.dtype == made.dtype:
                if isinstance(seen, str):
                    raise UnsupportedAttention(seen)
                return seen
        raise UnsupportedAttention("attention with a mask")


def visibility_of(rule: RuleOfMask, local_size: int | None, device: torch.device) -> Visibility | str:
    """The form that a mask's rule has, without padding; or why it is none that packed attention can do.

    local_size: what transformers says beside the rule of its window or chunk; None = it says nothing.
    """
    edges = () if local_size is None else (local_size, 2 * local_size, 7 * local_size)
    near = {edge + step for edge in edges for step in (-2, -1, 0, 1, 2)}
    positions = torch.tensor(sorted({0, 1, 2, 3, 5, 17, *filter(lambda n: n > 0, near), *_FAR}), device=device)
    query, key, zero = positions[:, None], positions[None, :], torch.zeros_like(positions[:1, None])
    try:
        seen = rule(zero, zero, query, key).expand(len(positions), len(positions))
    except Exception as error:  # a rule may look into a tensor that has no such position
        return f"a mask that depends on more than positions ({type(error).__name__})"
    for form in _forms(local_size):
        if torch.equal(form.visible(query, key), seen):
            return form
    return "a mask of a form that it does not have"


def _forms(local_size: int | None) -> Iterator[Visibility]:
    """The forms that packed attention can do."""
    for is_causal in (True, False):
        yield Visibility(is_causal)
    if local_size is not None:
        for window, is_causal in product((local_size, local_size + 1), (True, False)):
            yield Visibility(is_causal, window=window)
        yield Visibility(is_causal=True, chunk=local_size)


class _NumbersNoRow(TorchFunctionMode):
    """Raises UnsupportedAttention where a model computes with numbers of the tokens of the row, although it was given
    positions. To look up rows by them, as experts do, is harmless.

    Llama 4 scales queries by such a number from the 8,192nd token on, which no short text shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: list[Tensor] = []  # held, so that no other tensor gets the place of one

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchFunctionMode."""
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, Tensor) or func.__name__.startswith(_LOOKS_UP):
            return made
        if (func is torch.arange and made.shape == (NUM_TOKENS,)) or any(self._is_number(value) for value in args):
            if made.is_floating_point():
                raise UnsupportedAttention("layers that number the tokens of the row instead of the sequence")
            self._numbers.append(made)
        return made

    def _is_number(self, value: object) -> bool:
        return any(value is number for number in self._numbers)
