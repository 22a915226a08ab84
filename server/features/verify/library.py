"""The rows of a model's own library, sentence-transformers or transformers, for one text at a time.

They are loaded here alone, and only by `embedline verify`. Shapes: N texts or pairs, D numbers a row, float32.

The library must also make the token ids that are made here. transformers 5 passes over flags and code that models were
trained with (tokenizer_pool.special_tokens), and over what a tokenizer.json of transformers 4 says
(tokenizer_pool.loading). Other ids for these reasons are named and pass, and its rows are then of ours; other ids
for any other reason do not pass.
"""

import importlib.metadata
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from engine.model.known_code.qwen2 import REWARD
from engine.model.tasks import AnswerScore, PooledScores, Task
from engine.types import ModelError
from server.features.verify.inputs import VerifyTexts
from server.supervisor.model_plan import ModelPlan
from tokenizer_pool.loading import load, prepend_lowercase
from tokenizer_pool.special_tokens import ends
from wire.parts import Part
from wire.tokenizer_files import is_of_transformers_5, read_config

_PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor")  # of tokenizer.json
_MAX_IDS = 12  # that are shown of a text
_Array = NDArray[np.float32]
_NOT_IN_CHATS = "sentence-transformers puts each text into the folder's chat template, its rows are of the texts alone"
_EXTRA = "pip install 'embedline[verify]'"


@dataclass(frozen=True, slots=True)
class HeldIds:
    """The result of comparing the library's ids with ours."""

    in_words: str
    passed: bool = True


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows that a library makes of the texts."""

    rows: _Array  # one a text or pair [N, D], of token classifiers and late interaction one a token that counts [T, D]
    library: str  # its name
    ids: HeldIds
    not_verified: str = ""  # what no library says, and these rows can't show


def rows_of(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    """Raw.     Raises ModelError where the library is not installed, or has no rows of the model's."""
    try:
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        return _REFERENCES[plan.folder.task](plan, asked)
    except ModuleNotFoundError as error:
        raise ModelError(f"verifying needs {error.name}, which is not installed: {_EXTRA}") from error


def ids_of(plan: ModelPlan, asked: VerifyTexts) -> HeldIds:
    """Compare the ids of transformers' tokenizer for the folder with ours; "not compared" for those with a template
    or markers, and where transformers asks for the folder's own code.
    """
    if plan.folder.template or plan.folder.late:
        return NOT_HELD
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            plan.folder.path / plan.folder.tokenizer_folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError):
        return NOT_HELD
    return hold(tokenizer, plan, asked)


def _embeddings(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=_pooled_by_flag(plan), device="cpu") if plan.settings.pooling else None
    model = model or SentenceTransformer(str(plan.folder.path), device="cpu", local_files_only=True)
    is_chat = plan.folder.chat_of_texts is None and _takes_out_of_chats(model)
    _run_each_as_the_first(model)
    model.truncate_dim = None  # whole rows are compared
    if not plan.folder.is_static:
        model.max_seq_length = plan.folder.max_seqlen
    ids = hold(_tokenizer_of_texts(model), plan, asked)
    if is_chat:
        ids = replace(ids, in_words=f"{ids.in_words}; {_NOT_IN_CHATS}")
    rows = model.encode(list(asked.texts), prompt=plan.default_prompt, batch_size=1, show_progress_bar=False)
    return Reference(np.asarray(rows, np.float32), "sentence-transformers", ids)


def _takes_out_of_chats(model: Any) -> bool:
    """Have it take texts as they are if it puts each into a chat template, as where there is no modules.json."""
    modalities = getattr(model[0], "modality_config", {})
    if "message" not in modalities or "text" not in modalities:
        return False
    model[0].modality_config = {"text": modalities["text"]}
    return True


def _tokenizer_of_texts(model: Any) -> Any:
    """A Router gives that of its first route, which may be for images."""
    first = model[0]
    if not hasattr(first, "sub_modules"):
        return model.tokenizer
    return first.sub_modules[first._resolve_route(modality="text")][0].tokenizer


def _pooled_by_flag(plan: ModelPlan) -> list[Any]:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    bare = Transformer(str(plan.folder.weights_folder))
    mode = {"last": "lasttoken"}.get(plan.folder.pooling, plan.folder.pooling)
    return [bare, Pooling(bare.get_embedding_dimension(), mode)]


def _sparse(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(plan.folder.path), device="cpu", local_files_only=True)
    _run_each_as_the_first(model)
    model.max_active_dims = None  # whole rows are compared
    model.max_seq_length = plan.folder.max_seqlen
    ids = hold(model.tokenizer, plan, asked)
    rows = model.encode(list(asked.texts), batch_size=1, show_progress_bar=False, convert_to_sparse_tensor=False)
    return Reference(np.asarray([row.numpy() for row in rows], np.float32), "sentence-transformers", ids)


def _scores(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    """The scores of the class that config.json names; of a generative reranker the whole next token's."""
    if plan.folder.architectures[:1] == (REWARD,):
        raise ModelError(f"transformers has no {REWARD} to compare with")
    template, heads = plan.folder.template, plan.folder.heads
    if (template and template.chat) or any(isinstance(head, PooledScores) for head in heads):
        return _of_cross_encoder(plan, asked, template.instruction if template else plan.default_prompt)
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    answer = next((head for head in heads if isinstance(head, AnswerScore)), None)
    kind = AutoModelForCausalLM if answer else AutoModelForSequenceClassification
    model, encode, ids = _library_model(plan, asked, kind)
    second: Sequence[str | None] = asked.pair_texts or [None] * len(asked.texts)
    rows = []
    with torch.inference_mode():
        for text, pair in zip(asked.texts, second, strict=True):
            logits = model(**encode(text, pair)).logits.float()
            rows.append(_answer(logits[0, -1], answer) if answer else logits[0])
    return Reference(torch.stack(rows).numpy(), "transformers", ids)


def _of_cross_encoder(plan: ModelPlan, asked: VerifyTexts, instruction: str) -> Reference:
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(plan.folder.path), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    _run_each_as_the_first(model)
    model.max_seq_length = plan.folder.max_seqlen
    pairs = list(zip(asked.texts, asked.pair_texts, strict=True))
    how = {"batch_size": 1, "show_progress_bar": False, "activation_fn": torch.nn.Identity()}
    rows = model.predict(pairs, prompt=instruction or None, **how)
    return Reference(np.asarray(rows, np.float32).reshape(-1, 1), "sentence-transformers", NOT_HELD)


def _answer(logits: Any, answer: AnswerScore) -> Any:
    score = logits[answer.yes_id]
    return (score if answer.no_id is None else score - logits[answer.no_id])[None]


def _token_scores(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    import torch
    from transformers import AutoModelForTokenClassification

    model, encode, ids = _library_model(plan, asked, AutoModelForTokenClassification)
    with torch.inference_mode():
        rows = [model(**encode(text, None)).logits[0].float() for text in asked.texts]
    return Reference(torch.cat(rows).numpy(), "transformers", ids)


def _token_vectors(plan: ModelPlan, asked: VerifyTexts) -> Reference:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(plan.folder.path), device="cpu", local_files_only=True)
    _run_each_as_the_first(model)
    queries, documents = list(asked.texts[: asked.num_queries]), list(asked.texts[asked.num_queries :])
    rows = [
        *model.encode_query(queries, batch_size=1, show_progress_bar=False, convert_to_numpy=True),
        *model.encode_document(documents, batch_size=1, show_progress_bar=False, convert_to_numpy=True),
    ]
    return Reference(np.concatenate(rows).astype(np.float32), "sentence-transformers", NOT_HELD)


def _run_each_as_the_first(model: Any) -> None:
    """Have its transformer forget between texts: some classes keep what changes the next, see engine.transformers."""
    from transformers import PreTrainedModel

    from engine.transformers.reference import State

    state = State(model)
    for module in model.modules():  # those around it first, since sentence-transformers calls its forward by name
        module.register_forward_pre_hook(state)
        if isinstance(module, PreTrainedModel):
            return


def _library_model(
    plan: ModelPlan, asked: VerifyTexts, kind: Any
) -> tuple[Any, Callable[[str, str | None], Any], HeldIds]:
    """The library's own model in float32, what makes its inputs of a text or pair, and how its ids compare."""
    import torch
    from transformers import AutoTokenizer

    folder = plan.folder
    tokenizer = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
    model = kind.from_pretrained(folder.path, dtype=torch.float32, local_files_only=True, use_safetensors=True).eval()
    _run_each_as_the_first(model)
    template = folder.template
    ids = NOT_HELD if template else hold(tokenizer, plan, asked)

    def encode(text: str, pair: str | None) -> Any:
        if template is None:
            prompted = plan.default_prompt + text
            return tokenizer(prompted, pair, truncation=True, max_length=folder.max_seqlen, return_tensors="pt")
        parts = [_filled(part, template.instruction, text, pair or "") for part in template.parts]
        ids = [token_id for part in parts for token_id in tokenizer(part, add_special_tokens=False)["input_ids"]]
        return {"input_ids": torch.tensor([ids])}

    return model, encode, ids


def _filled(part: str, instruction: str, query: str, document: str) -> str:
    """A part of a template; "" if it is for an instruction alone, and there is none."""
    is_for_both = any(place in part for place in ("{query}", "{document}"))
    if "{instruction}" in part and not is_for_both and not instruction:
        return ""
    pieces = re.split(r"(\{instruction\}|\{query\}|\{document\})", part)
    places = {"{instruction}": instruction, "{query}": query, "{document}": document}
    return "".join(places.get(piece, piece) for piece in pieces)


NOT_HELD = HeldIds("not compared by themselves")


def hold(tokenizer: Any, plan: ModelPlan, asked: VerifyTexts) -> HeldIds:
    """Compare what the library's `tokenizer` makes of the texts with `asked`. If it differs, it is changed to ours."""
    if not hasattr(tokenizer, "backend_tokenizer"):  # a table's, or a Router's
        return NOT_HELD
    ours = _lists(asked)
    theirs = _ids(tokenizer, plan, asked)
    version = f"transformers {importlib.metadata.version('transformers')}"
    known = []
    if _gives_types(tokenizer, plan, asked):
        known.append(f"{version} leaves out the types of tokens, which the class of transformers 4 made")
    if theirs == ours:
        return _named(["the same ids", *known]) if known else HeldIds("the same")
    folder = plan.folder.path / plan.folder.tokenizer_folder
    around = ends(folder)
    backend = load(folder, do_lower_case=plan.folder.do_lower_case)
    if around is not None:
        tokenizer.backend_tokenizer.post_processor = backend.post_processor
        known.append(f"{version} passes over this: {around} ({around.source})")
        if _ids(tokenizer, plan, asked) == ours:
            return _named(known)
    if not is_of_transformers_5(read_config(folder / "tokenizer_config.json")):
        plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        if plan.folder.do_lower_case:
            prepend_lowercase(plain)
        if around is not None:
            plain.post_processor = backend.post_processor
        parts = _made_equal(tokenizer.backend_tokenizer, plain)
        saved_by = read_config(plan.folder.weights_folder / "config.json").get("transformers_version", "none")
        known.append(
            f"{version} has another {' and another '.join(parts)} than tokenizer.json, which is taken as it stands: "
            f"transformers 5 did not save it (transformers_version in config.json: {saved_by})"
        )
        if _ids(tokenizer, plan, asked) == ours:
            return _named(known)
    tokenizer._tokenizer = backend
    return HeldIds(f"other ids: {_first_difference(ours, theirs)}; its rows are of the ids here", passed=False)


def _gives_types(tokenizer: Any, plan: ModelPlan, asked: VerifyTexts) -> bool:
    """Whether the library now makes types of tokens for its model, and would not have."""
    has_table = read_config(plan.folder.weights_folder / "config.json").get("type_vocab_size", 0) > 1
    has_types = bool(asked.pair_texts) and Part.TOKEN_TYPE_IDS in asked.tokens.parts
    if not has_types or not has_table or "token_type_ids" in tokenizer.model_input_names:
        return False
    tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]
    return True


def _named(known: Sequence[str]) -> HeldIds:
    return HeldIds("; ".join([*known, "its rows are of the ids here"]))


def _made_equal(backend: tokenizers.Tokenizer, plain: tokenizers.Tokenizer) -> list[str]:
    """Take those parts that differ from `plain`, whose names are returned."""
    has, says = json.loads(backend.to_str()), json.loads(plain.to_str())
    parts = [part for part in _PARTS if has[part] != says[part]]
    for part in parts:
        setattr(backend, part, getattr(plain, part))
    return parts


def _ids(tokenizer: Any, plan: ModelPlan, asked: VerifyTexts) -> list[list[int]]:
    second: Sequence[str | None] = asked.pair_texts or [None] * len(asked.texts)
    return [
        list(
            tokenizer(plan.default_prompt + text, pair, truncation=True, max_length=plan.folder.max_seqlen)["input_ids"]
        )
        for text, pair in zip(asked.texts, second, strict=True)
    ]


def _lists(asked: VerifyTexts) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(asked.tokens.token_ids, asked.tokens.offsets[1:-1])]


def _first_difference(ours: list[list[int]], theirs: list[list[int]]) -> str:
    others = [number for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)) if mine != its]
    mine, its = ours[others[0]], theirs[others[0]]
    shared = next((at for at, (one, other) in enumerate(zip(mine, its, strict=False)) if one != other), len(mine))
    start = max(0, min(shared, len(mine) - 1, len(its) - 1) - 2)
    here, there = mine[start : start + _MAX_IDS], its[start : start + _MAX_IDS]
    found = f"from token {start} on it has {there}, not {here}"
    return f"{len(others)} of {len(ours)} texts differ; of the first of them, text {others[0]}, {found}"


_REFERENCES: dict[Task, Callable[[ModelPlan, VerifyTexts], Reference]] = {
    Task.EMBED: _embeddings,
    Task.SPARSE: _sparse,
    Task.RERANK: _scores,
    Task.CLASSIFY: _scores,
    Task.TOKEN_CLASSIFY: _token_scores,
    Task.LATE_INTERACTION: _token_vectors,
}
