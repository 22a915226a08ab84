"""Converts any model that transformers has a class for: it is loaded, its rows are computed as the library computes
them, and OpenVINO traces it in a form of padded ids in and rows out. Imports torch.

If transformers has a class for the head, that class computes the scores. It gets the attention mask, and the ids in
which it looks for padding.

Shapes: B sequences, S tokens of the longest (of a sequence, where it is alone; 1 where a sequence has one row), V
entries of the vocabulary, D numbers a row.
"""

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, sdpa_mask
from transformers.pytorch_utils import Conv1D

from engine.cpu import openvino
from engine.cpu.converted import Reference
from engine.cpu.lora import fit, numbers_of
from engine.cpu.minibatch import ADAPTERS, ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS
from engine.cpu.outputs import head_in_graph
from engine.cpu.selftest import num_hidden
from engine.cpu.unique_tokens import UniqueGraph, on_unique_tokens
from engine.machine.failures import one_line
from engine.model.lora import Adapter
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.selftest.comparison import not_finite
from engine.selftest.sample_ids import Sequences
from engine.transformers import configuration
from engine.transformers.loading import load_model, takes, takes_token_types
from engine.transformers.reference import State, entries_of, some_rows
from engine.transformers.visibility import visibility_of
from engine.types import ModelError

logger = logging.getLogger("embedline.engine")

# transformers looks for "flash", "sdpa", "flex_attention" and "paged|" in names, and then takes other paths.
TRACED = "embedline_traced"
TRACED_WITH_HIDDEN = "embedline_traced_with_hidden"  # for models with tokens that the others do not attend to


def register() -> None:
    """Register both with transformers. It may be called more than once."""
    AttentionInterface.register(TRACED, sdpa_attention_forward)
    AttentionMaskInterface.register(TRACED, traceable_mask)
    AttentionInterface.register(TRACED_WITH_HIDDEN, _attention_with_hidden)
    AttentionMaskInterface.register(TRACED_WITH_HIDDEN, _mask_with_hidden)


def traceable_mask(**arguments: Any) -> Tensor | None:
    """transformers' own mask, bool [B, 1, S, S], changed so that executors give the same as torch.

    Where padding alone is masked it is [B, 1, 1, S]: of the other form OpenVINO kept 784 MB after two texts of 8,192
    tokens (4 layers, 384 numbers a row), of this one 564 MB.

    With a sliding window some padding tokens attend to nothing. torch gives zeros for them, executors NaN, which
    spreads. So here they attend to everything, which is harmless, since nothing attends to them. vmap can't be traced
    and is replaced by broadcast indices; if a model needs more, the self-test finds out.
    """
    function, is_token = arguments["mask_function"], arguments["attention_mask"]  # [B, S]
    if function is bidirectional_mask_function and is_token is not None:
        return is_token[:, None, None, :].bool()  # type: ignore[no-any-return]
    mask = _mask_with_hidden(**arguments)
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


def _mask_with_hidden(**arguments: Any) -> Tensor | None:
    mask: Tensor | None = sdpa_mask(
        **{**arguments, "use_vmap": False, "mask_function": _without_left_padding(arguments)}
    )
    return mask


def _without_left_padding(arguments: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The mask's rule. That of chunks counts the padding on the left, which is never there, by adding up booleans;
    OpenVINO keeps such sums in bytes, so texts of 256 tokens and more would get other chunks.
    """
    function: Callable[..., Tensor] = arguments["mask_function"]
    seen = visibility_of(function, arguments.get("local_size"), arguments["device"])
    if isinstance(seen, str) or seen.chunk is None:
        return function
    return lambda _batch, _head, query, key: seen.visible(query, key)


def _attention_with_hidden(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' own, with torch's zeros for a token that attends to nothing: hidden tokens have rows, too."""
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, None, **others)
    sees = attention_mask.any(dim=-1, keepdim=True)  # [B, 1, S, 1]
    rows, scores = sdpa_attention_forward(module, query, key, value, attention_mask | ~sees, **others)
    return rows * sees.transpose(1, 2), scores  # [B, S, heads, D of a head]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and prints of tracing out of the log, since the self-test decides; torch uses one thread.

    torch computes little here, and several threads are slow beside another busy process: 8 s against 0.2 s.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with configuration.quiet(), warnings.catch_warnings(), torch.inference_mode(), _nothing_printed():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Discard standard output: an export that fails prints its whole graph, from C++."""
    with contextlib.redirect_stdout(io.StringIO()), open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


_EXAMPLE_SHAPE = (2, 7)  # with padding, because without it some models leave out their mask
_NO_TOKEN = -1  # never in a text

_Finish = Callable[[Tensor, Tensor | None], Tensor]  # of rows [B, S, D] and the mask [B, S]; None = no padding


class Graph(nn.Module):
    """Gives rows [B, S, D], or [B, D] if a sequence has one."""

    def __init__(self, model: PreTrainedModel, head: TransformersHead | None, *, hides_tokens: bool = False) -> None:
        """`model`: the class with the head, or the bare transformer if there is none. `hides_tokens`: tokens other than
        padding can be masked. Raises ModelError.
        """
        super().__init__()
        self.model = model
        self.is_per_token = head is None or isinstance(head, TokenScores)
        self.pad_id = _pad_of_scores(model) if isinstance(head, SequenceScores) else _known_pad(model) or 0
        if model.config._attn_implementation == "sdpa":
            register()
            model.set_attn_implementation(TRACED_WITH_HIDDEN if hides_tokens else TRACED)
        has_types = takes_token_types(model)
        self._part = TOKEN_TYPE_IDS if has_types else ADAPTERS if takes(model, ADAPTERS) else None
        self._fixed = {"use_cache": False} if takes(model, "use_cache") else {}
        self._finish = _finish(model, head)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """The rows of a padded mini-batch; all arguments are int64 [B, S]."""
        given = {TOKEN_TYPE_IDS: token_type_ids, ADAPTERS: adapters}
        parts = {self._part: given[self._part]} if self._part else {}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **parts, **self._fixed)
        rows: Tensor = output.logits if "logits" in output else output.last_hidden_state
        return self._finish(rows, attention_mask) if self._finish else rows

    def example(self) -> dict[str, Tensor]:
        """Inputs for tracing, by name."""
        mask = torch.ones(_EXAMPLE_SHAPE, dtype=torch.int64)
        mask[1, 5:] = 0
        vocab_size = self.model.config.get_text_config().vocab_size
        ids = torch.arange(mask.numel()).reshape(_EXAMPLE_SHAPE) % vocab_size
        parts = {self._part: torch.zeros_like(mask)} if self._part else {}
        return {INPUT_IDS: ids, ATTENTION_MASK: mask, **parts}


def _finish(model: PreTrainedModel, head: TransformersHead | None) -> _Finish | None:
    match head:
        case VocabularyWeights():
            return _vocabulary_weights(head)
        case AnswerScore():
            _keep_two_rows(model, head)
            return _answer_score
        case SequenceScores() | TokenScores() | None:
            return None
        case _:
            assert_never(head)


def _pad_of_scores(model: PreTrainedModel) -> int:
    """The id that the class takes for padding: a decoder's scores are those of the last token with another id.

    If the model has no such id, or its table lacks it, a number that is no token is used. Then each token counts, as in
    a sequence alone.
    """
    found = _known_pad(model)
    if found is not None:
        return found
    model.config.get_text_config().pad_token_id = _NO_TOKEN
    model.base_model.register_forward_pre_hook(_with_tokens_alone, with_kwargs=True)
    return _NO_TOKEN


def _known_pad(model: PreTrainedModel) -> int | None:
    """The id of config.json, if the model's table has it."""
    config = model.config.get_text_config()
    found = config.pad_token_id
    return found if isinstance(found, int) and 0 <= found < config.vocab_size else None


def _with_tokens_alone(_: nn.Module, positional: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace _NO_TOKEN, for which the transformer has no row. The rows of padding are masked."""
    if positional:
        ids, *others = positional
        return (ids.clamp(min=0), *others), named
    return (), {**named, INPUT_IDS: named[INPUT_IDS].clamp(min=0)}


def _vocabulary_weights(head: VocabularyWeights) -> _Finish:
    """[B, V] of the scores [B, S, V]. The activation is monotonic, so the maximum may be taken first."""

    def activated(scores: Tensor) -> Tensor:
        weights = scores.relu().log1p()
        return weights.log1p() if head.activation == "log1p_relu" else weights

    def finish(scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(mask[:, :, None] == 0, 0.0)
        return activated(scores.amax(dim=1)) if head.pooling == "max" else activated(scores).sum(dim=1)

    return finish


def _keep_two_rows(model: PreTrainedModel, head: AnswerScore) -> None:
    """Drop all other rows of the output embedding. What follows it in the class, such as Gemma 2's softcap, stays."""
    whole = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(whole, nn.Linear):
        raise ModelError(f"the class of {model.config.model_type!r} has no output embedding to take rows from")
    ids = entries_of(head)
    if not all(0 <= token_id < len(whole.weight) for token_id in ids):
        raise ModelError(f"the answers' token ids are not among the {len(whole.weight)} that the model gives scores of")
    model.set_output_embeddings(some_rows(whole, ids))  # type: ignore[no-untyped-call]


def _answer_score(scores: Tensor, mask: Tensor | None) -> Tensor:
    """[B, 1] of the scores [B, S, 2] of yes and no, or of yes alone."""
    if mask is None:
        of_last = scores[:, -1]
    else:
        of_last = scores[torch.arange(scores.shape[0], device=scores.device), mask.sum(dim=1) - 1]
    return of_last if of_last.shape[1] == 1 else of_last[:, :1] - of_last[:, 1:]


@torch.inference_mode()
def _run_original(model: Graph, sequence: NDArray[np.int32], hidden: int) -> NDArray[np.float32]:
    ids = torch.tensor(sequence, dtype=torch.int64)[None]
    mask = torch.ones_like(ids)  # without one, some classes (XLM) take each padding id for padding
    mask[:, len(sequence) - hidden :] = 0
    rows: NDArray[np.float32] = model(ids, mask)[0].numpy()
    return rows if model.is_per_token else rows[None]


class Traced:
    """See engine.cpu.converting.Original."""

    computed_by = "transformers'"

    def __init__(self, folder: ModelFolder) -> None:
        """Raises ModelError if transformers can't load the model."""
        model = load_model(folder, dtype=torch.float32)
        self._model = Graph(model, head_in_graph(folder), hides_tokens=folder.hides_tokens)
        self._state = State(self._model)
        self._architecture = folder.architecture
        # hidden tokens are masked, and the form of unique tokens has no mask
        self._may_share = not folder.hides_tokens and folder.padding_idx is None
        # RoBERTa and similar models number positions by the padding id
        self.pad_id = self._model.pad_id if folder.padding_idx is None else folder.padding_idx

    def reference(self, sequences: Sequences, *, hides_tokens: bool) -> Reference:
        rows = []
        try:
            with quiet():
                for sequence in sequences:  # each as if it were the first
                    rows.append(_run_original(self._model, sequence, num_hidden(sequence) if hides_tokens else 0))
                    self._state.restore()
        except Exception as error:
            raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
        if not all(np.isfinite(of_one).all() for of_one in rows):
            raise not_finite("transformers", "float32")
        return Reference(sequences, rows, hides_tokens)

    def merge(self, adapter: Adapter) -> None:
        """See engine.cpu.converting.Original."""
        layers = dict(self._model.model.named_modules())
        sizes = {name: _size(each) for name, each in layers.items() if isinstance(each, nn.Linear | Conv1D)}
        numbers = numbers_of(adapter)
        for name, layer in fit(adapter, sizes).items():
            weight: Tensor = layers[name].weight
            weight = weight.T if isinstance(layers[name], Conv1D) else weight
            weight.copy_(torch.from_numpy(layer.merged_into(weight.numpy(), lambda each: numbers[each.name])))
            if layer.bias is not None:
                more = torch.from_numpy(np.float32(layer.scale) * numbers[layer.bias.name])
                layers[name].register_forward_hook(partial(_with_more, more))

    def write(self, target: Path, *, quantization: str) -> int:
        """See engine.cpu.converting.Original. Raises ModelError if OpenVINO can't convert the model."""
        try:
            with quiet():
                self._model(**self._model.example())  # tracing runs it more than once, and BigBird changes at the first
                return openvino.save(self._traced(), target, quantization=quantization)
        except ModelError:
            raise
        except Exception as error:  # tracers and converters raise anything on code that they do not support
            raise ModelError(f"openvino can't convert {self._architecture!r}: {one_line(error)}") from error

    def _traced(self) -> Any:
        """In the form that computes shared prefixes once, if the model has it."""
        if self._may_share:
            with on_unique_tokens(self._model) as unique:
                try:
                    if unique is not None:
                        return _traced(unique)
                except Exception as error:
                    logger.info("openvino can't convert the form of unique tokens: %s", one_line(error))
        return _traced(self._model)


def _size(layer: nn.Linear | Conv1D) -> tuple[int, int]:
    rows, columns = layer.weight.shape
    return (columns, rows) if isinstance(layer, Conv1D) else (rows, columns)


def _with_more(more: Tensor, _: nn.Module, __: Any, output: Tensor) -> Tensor:
    """What a layer gives with an adapter's bias, even if it has none of its own."""
    return output + more


def _traced(model: Graph | UniqueGraph) -> Any:
    """The openvino.Model of a torch model. Calls the PyTorch frontend, because openvino.convert_model reports usage."""
    ov = openvino.import_openvino()
    tracing = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    decoder = tracing.TorchScriptPythonDecoder(model, example_input=model.example())
    frontend = ov.frontend.FrontEndManager().load_by_framework("pytorch")
    graph = frontend.convert(frontend.load(decoder))
    for port, name in zip(graph.inputs, model.example(), strict=True):
        port.get_node().set_friendly_name(name)
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
        port.get_node().set_element_type(ov.Type.i64)
    graph.validate_nodes_and_infer_types()
    return graph
