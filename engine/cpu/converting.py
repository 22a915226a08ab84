"""Converts a model for OpenVINO, and says which rows the compiled one has to give. Imports torch only if it must."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from engine.cpu import bert
from engine.cpu.converted import Converted, Reference
from engine.cpu.lora import most_telling
from engine.cpu.offer import CompileOptions
from engine.model.lora import Adapter
from engine.model.model_folder import ModelFolder
from engine.selftest import sample_ids
from engine.selftest.fidelity import SENTENCES
from engine.selftest.sample_ids import LONGEST, Sequences, Trial, trial
from engine.types import ModelError

# More than others try, because a conversion takes long anyway. 144: see engine.cpu.selftest.num_hidden; it is also one
# that others try, and no length is tried twice.
_SEQLENS = (8, 144, LONGEST)
_MAX_OF_ADAPTER = 144  # tokens of what an adapter is tried with: it depends on no length


class Original(Protocol):
    """A model as its library or its papers compute it."""

    computed_by: str  # whose rows the references are, for people
    pad_id: int  # token id of padding; -1 = no token

    def reference(self, sequences: Sequences, *, hides_tokens: bool) -> Reference:
        """Its rows of each sequence alone. Raises ModelError if it does not run, or gives rows that are not finite."""
        ...

    def merge(self, adapter: Adapter) -> None:
        """Compute with an adapter from now on. Raises ModelError if it does not fit."""
        ...

    def write(self, target: Path, *, quantization: str) -> int:
        """Write the converted model into the empty folder `target`, for engine.cpu.executors. Returns the number of
        quantized matrix products. Raises ModelError."""
        ...


def convert(folder: ModelFolder, compile_options: CompileOptions, *, target: Path, num_threads: int) -> Converted:
    """Write the converted model into the empty folder `target`. Raises ModelError. The original is freed before the
    converted model is compiled, because both may not fit into memory."""
    original = _original(folder, num_threads)
    is_quantized = compile_options.quantization != "none"
    tried = None if is_quantized else trial(folder, kind="cpu", seqlens=_SEQLENS)
    ways = (False, True) if folder.hides_tokens else (False,)
    of_ids = tuple(original.reference(tried.sequences, hides_tokens=way) for way in ways) if tried else ()
    special, left_out = _special(original, tried) if tried else ((), ())
    measures_loss = is_quantized or compile_options.dtype == "auto"
    texts: Sequences = []
    if measures_loss:  # all of them as one text, too: what rounding does to rows depends on the text
        texts = sample_ids.of_texts(folder, (*SENTENCES, " ".join(SENTENCES)), max_seqlen=LONGEST)
    of_texts = tuple(original.reference(each, hides_tokens=False) for each in (texts,) if each)
    num_products = original.write(target, quantization=compile_options.quantization)
    if folder.loras:  # of however many one, which is merged into the original: it is needed no more without
        number = most_telling(folder.loras)
        original.merge(folder.loras[number - 1])
        more_ids, more_texts = (
            tuple(replace(original.reference(each, hides_tokens=False), adapter=number) for each in (some,) if each)
            for some in (_short(tried), texts)
        )
        of_ids, of_texts = (*of_ids, *more_ids), (*of_texts, *more_texts)
    return Converted(
        references=(*of_ids, *special),
        of_texts=of_texts,
        computed_by=original.computed_by,
        notes=(*(tried.notes if tried else ()), *left_out),
        num_products=num_products,
        dimensions=(*of_texts, *of_ids)[0].dimensions,
        pad_id=original.pad_id,
    )


def _short(tried: Trial | None) -> Sequences:
    """What an adapter is tried with."""
    return [each for each in tried.sequences if len(each) <= _MAX_OF_ADAPTER] if tried else []


def _special(original: Original, tried: Trial) -> tuple[tuple[Reference, ...], tuple[str, ...]]:
    """The rows of special ids inside of sequences, beside neighbours full of them; or a note where it gives none."""
    if not tried.special:
        return (), ()
    try:
        inside = original.reference(tried.special, hides_tokens=False)
    except ModelError as error:
        return (), (f"the self-test at load left out token ids that have a role: {error}",)
    neighbours = [each for batch in tried.neighbours for each in batch]
    return (Reference([*inside.sequences, *neighbours], inside.rows),), ()


def _original(folder: ModelFolder, num_threads: int) -> Original:
    weights = bert.read(folder)
    if weights is not None:
        return bert.Built(weights, num_threads)
    try:
        from engine.cpu.tracing import Traced  # imports torch
    except ModuleNotFoundError as error:
        raise ModelError(
            "this model needs torch and transformers to be converted: pip install 'embedline[server]'"
        ) from error
    return Traced(folder)
