"""The openvino engine before it is loaded: its options, those that a model is compiled with, and whether it takes them.

Imports neither torch nor OpenVINO.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import offer
from engine.cpu import openvino
from engine.cpu.outputs import TOKEN_ROWS, head_in_graph
from engine.machine import host
from engine.messages import LoadOptions
from engine.model.known_code import kalm
from engine.model.lora import check_apart
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, TokenScores
from engine.offer import Note, ServingTarget
from engine.registry import ENGINES, EngineRow
from engine.types import ModelError, OutputKind


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    """Options that only this engine reads."""

    compiled_model: str | None = None  # a folder that `embedline compile` wrote
    compiles_in_child: bool = True  # whether a child process converts models; see engine.cpu.child

    @property
    def compiled_folder(self) -> Path | None:
        """The absolute path of `compiled_model`."""
        return None if self.compiled_model is None else Path(self.compiled_model).expanduser().absolute()


class Offer(offer.Offer):
    """Embeddings and scores on the CPU."""

    def missing(self, row: EngineRow, target: ServingTarget) -> Iterator[str]:
        """BERT and RoBERTa are converted without torch and transformers; most models need them."""
        from engine.cpu import bert

        if lacks := target.lacks(row.packages, row.extra):
            yield lacks
        elif lacks := target.lacks(row.converters, "server"):
            if (
                Options.of(target.flags).compiled_model is None
                and target.folder is not None
                and not bert.described(target.folder)
            ):
                yield f"{lacks}, or give it --compiled-model, since this model is not converted without"
            else:
                yield Note(f"it serves BERT's and RoBERTa's kinds of models and compiled ones, no others ({lacks})")

    def covers(self, folder: ModelFolder) -> Iterator[str]:
        """It refuses some architectures that the table has."""
        from engine.model.coverage import rows_of, use_of

        use, rows = use_of(folder), rows_of(folder)
        if any(use in row.uses for row in rows) and all(openvino.NAME not in row.engines(use) for row in rows):
            yield f"it does not compute {folder.architecture!r} for {use}"
        else:
            yield from super().covers(folder)


OFFER = Offer(options=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options that a compiled model depends on."""

    engine: str
    dtype: str  # "float32", "bfloat16", "float16"; "auto" = bfloat16 if its rows are near enough, else float32
    quantization: str  # "none", "int8"
    pooling: str  # and the steps after it; fidelity is measured on these rows
    computes: str  # what the compiled model gives: "token rows", or its head's scores


def check(options: LoadOptions) -> None:
    """Raises ModelError where this machine or the engine does not do what is asked for."""
    if options.device != "cpu":
        raise ModelError(f"the openvino engine runs on the CPU, not on {options.device!r}")
    missing = [package for package in openvino.PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(
            f"the openvino engine needs {missing[0]}, which is not installed: pip install 'embedline[cpu]'"
        )
    openvino.check(options.dtype, _quantization(options))


def check_outputs(folder: ModelFolder, options: LoadOptions) -> None:
    """Raises ModelError if one compiled model can't give all the outputs."""
    if folder.is_static:
        raise ModelError("the openvino engine computes no static embeddings; --engine static does")
    if folder.query_table:
        raise ModelError("the openvino engine looks no queries up in a table; --engine transformers does")
    if folder.tokenizer_folder:
        raise ModelError(
            f"the openvino engine wants the Transformer in the model's own folder, and this one is in "
            f"{folder.tokenizer_folder!r}; --engine transformers does not mind"
        )
    if folder.architecture == kalm.ARCHITECTURE:
        raise ModelError("the openvino engine has no form for an encoder and a decoder; --engine transformers has")
    for adapter in folder.loras:
        check_apart(adapter, ENGINES[openvino.NAME].not_of_loras)
    head_in_graph(folder)
    embeds = OutputKind.POOLED | OutputKind.TOKENS
    if _quantization(options) != "none" and folder.outputs & ~embeds:
        kinds = ", ".join(kind.name or "" for kind in folder.outputs & ~embeds)
        raise ModelError(
            f"--quantization {options.quantization} of the openvino engine is for models that give embeddings "
            f"alone, and this one gives {kinds}; serve it with --quantization none"
        )


def compile_options_of(folder: ModelFolder, options: LoadOptions, *, for_any_cpu: bool = False) -> CompileOptions:
    """The options for this machine's CPU, or for any, which may multiply bfloat16 where this one does not."""
    return CompileOptions(
        engine=openvino.NAME,
        dtype=_dtype(folder, options, has_bfloat16=for_any_cpu or host.multiplies_bfloat16()),
        quantization=_quantization(options),
        pooling=", ".join((folder.pooling, *map(str, folder.steps))),
        computes=_computes(folder),
    )


def _dtype(folder: ModelFolder, options: LoadOptions, *, has_bfloat16: bool) -> str:
    """See CompileOptions.dtype. "auto" is for embeddings alone, since the loss of no other output is measured."""
    if options.dtype != "auto":
        return options.dtype
    embeds = OutputKind.POOLED in folder.outputs and not folder.outputs & ~(OutputKind.POOLED | OutputKind.TOKENS)
    can_be_lower = embeds and _quantization(options) == "none"
    return "auto" if can_be_lower and has_bfloat16 else "float32"


def _computes(folder: ModelFolder) -> str:
    head = head_in_graph(folder)
    if isinstance(head, SequenceScores | TokenScores):
        return f"{type(head).__name__} of {len(head.labels)} labels"
    token_rows = f"{TOKEN_ROWS}, some of them hidden" if folder.hides_tokens else TOKEN_ROWS
    return token_rows if head is None else repr(head)


def _quantization(options: LoadOptions) -> str:
    """On a CPU "auto" means none: int8 loses fidelity, so users choose it themselves."""
    return "none" if options.quantization == "auto" else options.quantization
