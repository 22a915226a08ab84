"""Reads modules.json: its entries, which chain of modules they are, and the options of modules after the transformer.

Follows sentence-transformers 6 and PyLate. A chain is found by the kinds and the order of modules alone. A Router sends
queries and documents, or texts and images, through different modules; two kinds of it are served: those in which all
texts take one route, and sparse models whose queries are looked up in a table, which engine.model.detection.sparse
reads. Reads no weights.
"""

import ast
import enum
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.json_files import (
    MAX_DEPTH,
    Json,
    check_known,
    flag_in,
    needed_number,
    object_in,
    read,
    read_object,
    read_optional,
)
from engine.model.known_code import kalm, table
from engine.model.tasks import ACTIVATIONS, POOLINGS, Dense, LayerNorm, Normalize, Step
from engine.types import ModelError

# the names of sentence-transformers and TEI -> our name
_POOLINGS = {**{name: name for name in POOLINGS}, "lasttoken": "last", "last-token": "last"}
# in the order in which several poolings are joined
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_SIZES = ("embedding_dimension", "word_embedding_dimension")  # of the rows; the model's own size counts
_POOLING_KEYS = (*_POOLING_FLAGS, *_SIZES, "pooling_mode", "include_prompt")
SPLADE_KEYS = (*_SIZES, "pooling_strategy", "activation_function", "chunk_size")  # of a SpladePooling module
_DENSE_KEYS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
_ROW = "sentence_embedding"  # sentence-transformers' name of the pooled row
_SCORES = "scores"  # its name of what a cross-encoder gives
TOKEN_ROWS = "token_embeddings"  # its name of the rows of tokens
_OWN = ("sentence_transformers.", "pylate.models.")  # for classes of these packages the class name is enough
_TRANSFORMER = f"{_OWN[0]}Transformer"
_ROUTERS = ("Router", "Asym")
_ROUTER_FILE = "router_config.json"
_TEXT, _MAX_KEY = "text", 100  # a modality; characters of a key of route_mappings
_TABLE = "SparseStaticEmbedding"
_AFTER_POOLING = frozenset(("Dense", "LayerNorm", "Normalize", "Dropout"))
# The last module of a chain that makes whole numbers of rows, for cosines: 127 times the hyperbolic tangent, rounded to
# the nearest, and to the even one of two that are as near. Only code has such a module, and no class this name.
ROUNDING = "rounding to int8"
_AFTER_TOKENS = frozenset(("Dense", "MultiVectorMask", "Normalize", "Dropout"))
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_CONFIG, _MODEL_TYPE, _USUAL = "config_sentence_transformers.json", "model_type", "SentenceTransformer"
_LATE_MODELS = ("ColBERT", "MultiVectorEncoder")
_SUPPORTED = (
    "supported are a Transformer with a Pooling and then any of Dense, LayerNorm, Normalize, Dropout; with a "
    "SpladePooling, with a LogitScore, or alone in a CrossEncoder; a StaticEmbedding; and ColBERT's"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """An entry of modules.json."""

    kind: str  # the class's name, with its module if it is not sentence-transformers' or PyLate's
    path: PurePosixPath  # its folder, in the model's folder


def read_entries(folder: Path) -> tuple[Module, ...]:
    """All entries in order. Raises ModelError."""
    entries = read(folder / "modules.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelError("modules.json is not a list of objects")
    config = read_optional(folder / "config.json")
    code = table.find(config)
    named = {code.sentence_module: _TRANSFORMER, code.rounding_module: _OWN[0] + ROUNDING} if code else {}
    known = named | {name: _TRANSFORMER for entry in entries if kalm.is_module(config, name := str(entry.get("type")))}
    renamed = [{**entry, "type": known.get(str(entry.get("type")), entry.get("type"))} for entry in entries]
    names = [str(entry["name"]) for entry in entries if "name" in entry]
    if len(set(names)) < len(names):  # the library keeps the last of them, in the place of the first
        raise ModelError("modules.json has two modules of one name; give each another")
    return tuple(_as_module(entry, "modules.json") for entry in renamed)


def read_pooling(folder: Path, module: Module, *, include_prompt: bool = True) -> tuple[tuple[str, ...], bool]:
    """The poolings of a Pooling module, in the order of joining, and whether a prompt's tokens count.

    include_prompt: if the module does not say so.
    """
    file = f"{module.path}/config.json"
    config = read_object(folder / file)
    check_known(config, _POOLING_KEYS, file)
    return _poolings(config, file), flag_in(config, "include_prompt", file, default=include_prompt)


def read_steps(folder: Path, modules: Iterable[Module], *, row: str = _ROW) -> tuple[Step, ...]:
    """The steps for Dense, LayerNorm and Normalize; other modules do not change a row, or do so at the very end
    (ROUNDING). row: the only allowed input."""
    return tuple(step for module in modules if (step := _step(folder, module, row)) is not None)


def read_scoring_steps(folder: Path, modules: Sequence[Module]) -> tuple[Step, ...]:
    """Those of a cross-encoder. Its last module is a Dense that makes the score of the row before it. Raises
    ModelError."""
    last = modules[-1]
    file = f"{last.path}/config.json"
    config = read_object(folder / file) if last.kind == "Dense" else {}
    if config.get("module_output_name") != _SCORES:
        kinds = ", ".join(module.kind for module in modules)
        raise ModelError(
            f"modules.json lists {kinds} of a CrossEncoder ({_MODEL_TYPE} in {_CONFIG}), and no Dense in the end whose "
            f"'module_output_name' is {_SCORES!r}"
        )
    dense = _dense(last.path, {**config, "module_output_name": config.get("module_input_name")}, _ROW)
    if dense.out_features != 1:
        raise ModelError(f"'out_features' in {file} is {dense.out_features}: one score of a pair is supported")
    return *read_steps(folder, modules[:-1]), dense


def known_pooling(mode: object, where: str) -> str:
    """Our name of a pooling. Raises ModelError for an unknown one."""
    if not isinstance(mode, str) or mode not in _POOLINGS:
        known = "cls, max, mean, mean_sqrt_len_tokens, weightedmean and last-token"
        raise ModelError(f"{where} asks for pooling {str(mode)!r}; supported are {known}")
    return _POOLINGS[mode]


def _as_module(entry: Json, file: str) -> Module:
    """The module of an entry in `file`. Raises ModelError for a path that is no text, or leads out of the folder."""
    name, given = str(entry.get("type")), entry.get("path")
    if not isinstance(given, str):
        raise ModelError(f"'path' of a module in {file} is not a text")
    path = PurePosixPath(given)
    if path.is_absolute() or ".." in path.parts:
        raise ModelError(f"{file} has a path that leads out of the folder")
    if len(path.parts) > MAX_DEPTH:
        raise ModelError(f"{file} has a path that is more than {MAX_DEPTH} folders deep")
    return Module(kind=name.rpartition(".")[2] if name.startswith(_OWN) else repr(name), path=path)


def _poolings(config: Json, file: str) -> tuple[str, ...]:
    """`pooling_mode` outranks the flags of older versions; without either, it is the mean."""
    flagged = [mode for flag, mode in _POOLING_FLAGS.items() if flag_in(config, flag, file, default=False)]
    modes = config.get("pooling_mode", flagged or "mean")
    if modes == []:
        raise ModelError(f"'pooling_mode' in {file} names no pooling")
    return tuple(known_pooling(mode, file) for mode in (modes if isinstance(modes, list) else [modes]))


def _step(folder: Path, module: Module, row: str) -> Step | None:
    """A module as a step; None for modules that only matter in training."""
    path = module.path
    match module.kind:
        case "Dense":
            return _dense(path, read_object(folder / path / "config.json"), row)
        case "LayerNorm":
            config = read_object(folder / path / "config.json")
            check_known(config, ("dimension",), f"{path}/config.json")
            return LayerNorm(folder=str(path), size=needed_number(config, "dimension", file=f"{path}/config.json"))
        case "Normalize":
            _check_names(path, read_optional(folder / path / "config.json"), row)
            return Normalize()
    return None


def _dense(path: PurePosixPath, config: Json, row: str) -> Dense:
    file = f"{path}/config.json"
    check_known(config, _DENSE_KEYS, file)
    _check_names(path, config, row)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.") or activation not in ACTIVATIONS:
        raise ModelError(
            f"{file} asks for the activation {str(name)!r}; supported are torch's {', '.join(ACTIVATIONS)}"
        )
    return Dense(
        folder=str(path),
        in_features=needed_number(config, "in_features", file=file),
        out_features=needed_number(config, "out_features", file=file),
        has_bias=flag_in(config, "bias", file, default=True),
        activation=activation,
        has_residual=flag_in(config, "use_residual", file, default=False),
    )


def _check_names(path: PurePosixPath, config: Json, row: str) -> None:
    """Raises ModelError if a module's input or output is not `row`."""
    given = config.get("module_input_name", row)
    names = (given, config.get("module_output_name") or given)
    if names != (row, row):
        raise ModelError(f"{path}/config.json makes {names[1]!r} of {names[0]!r}; only {row} is supported")


class Chain(enum.StrEnum):
    """A chain of modules, by its purpose."""

    EMBED = "embed"  # Transformer, Pooling, …
    STATIC = "static"  # StaticEmbedding, …
    SPARSE = "sparse"  # Transformer or MLMTransformer, SpladePooling
    LATE = "late"  # Transformer, Dense of each token, …
    SCORES = "scores"  # Transformer alone: …ForSequenceClassification
    POOLED_SCORES = "pooled scores"  # Transformer, Pooling, …, Dense with one number: a cross-encoder
    ANSWER = "answer"  # Transformer, LogitScore: a generative reranker


@dataclass(frozen=True, slots=True)
class Chained:
    """The chain in modules.json."""

    chain: Chain | None = None  # None = there is no modules.json
    modules: tuple[Module, ...] = ()  # of a Router, those for documents
    query_table: PurePosixPath | None = None  # folder of the query table's weights; None = there is no table

    @property
    def transformer_folder(self) -> PurePosixPath:
        """Relative to the model's folder; mostly that folder. Routers have others, old versions `0_Transformer`."""
        is_transformer = bool(self.modules) and self.modules[0].kind in _TRANSFORMERS
        return self.modules[0].path if is_transformer else PurePosixPath()


def read_chain(folder: Path) -> Chained:
    """The chain of modules.json; none where its one module is code that pools by itself. Raises ModelError if it is not
    a supported one."""
    if not (folder / "modules.json").is_file():
        return Chained()
    entries = read_entries(folder)
    code = table.find(read_optional(folder / "config.json"))
    if code and code.pools_last and [module.kind for module in entries] == ["Transformer"]:
        return Chained()
    modules, query_table = _routed(folder, entries)
    kinds, kind = [module.kind for module in modules], model_kind(folder)
    chain = _chain(kinds, kind)
    if modules is not entries:
        served = (Chain.SPARSE,) if query_table else (Chain.EMBED, Chain.SPARSE, Chain.STATIC)
        if chain not in served:
            raise _refusal(folder, entries)
    elif chain is None and (own := next((each for each in kinds if "." in each), None)):
        raise ModelError(
            f"modules.json names {own[:100]}, which is code of the repository's own or of another package, and such "
            "code is never run: without it the rows would be different"
        )
    elif chain is None:
        of_kind = "" if kind == _USUAL else f" of a {kind} ({_MODEL_TYPE} in {_CONFIG})"
        raise ModelError(f"modules.json lists {', '.join(kinds) or 'nothing'}{of_kind}; {_SUPPORTED}")
    return Chained(chain, modules, query_table)


def model_kind(folder: Path) -> str:
    """The class of sentence-transformers that the folder is for. Raises ModelError for an unknown one."""
    kind = read_optional(folder / _CONFIG).get(_MODEL_TYPE, _USUAL)
    if kind not in (_USUAL, "SparseEncoder", "CrossEncoder", *_LATE_MODELS):
        raise ModelError(f"{_MODEL_TYPE} in {_CONFIG} is {str(kind)[:60]!r}, which is not supported")
    return str(kind)


def _chain(kinds: list[str], model: str) -> Chain | None:
    first, rest = kinds[:1], kinds[1:]
    if first == ["StaticEmbedding"] and _AFTER_POOLING.issuperset(rest):
        return Chain.STATIC
    if not first or first[0] not in _TRANSFORMERS:
        return None
    after = rest[1:-1] if rest[-1:] == [ROUNDING] else rest[1:]
    if rest[:1] == ["Pooling"] and _AFTER_POOLING.issuperset(after) and first == ["Transformer"]:
        return {_USUAL: Chain.EMBED, "CrossEncoder": Chain.POOLED_SCORES}.get(model)
    if rest == ["SpladePooling"]:
        return Chain.SPARSE
    if model in _LATE_MODELS and _AFTER_TOKENS.issuperset(rest):
        return Chain.LATE
    if model == "CrossEncoder":
        return {(): Chain.SCORES, ("LogitScore",): Chain.ANSWER}.get(tuple(rest))
    return None


def transformer_refusal(chain: Chain | None, config: Json, *, is_masked_lm: bool) -> str:
    """Why the Transformer module does not fit the chain; "" if it does. config: the module's options."""
    task, output = {
        Chain.SPARSE: ("fill-mask", "logits"),
        Chain.SCORES: ("sequence-classification", "logits"),
        Chain.ANSWER: ("text-generation", "logits"),
    }.get(chain or Chain.EMBED, ("feature-extraction", "last_hidden_state"))
    default = "fill-mask" if is_masked_lm else task if chain is Chain.SCORES else "feature-extraction"
    if config.get("transformer_task", default) != task:
        return f"'transformer_task': the Transformer module is not for {task}, which the modules after it need"
    modalities = object_in(config, "modality_config")
    if chain is Chain.POOLED_SCORES and "message" in modalities:
        return "'modality_config': pairs are put into a chat template, which is not supported with these modules"
    of_texts = [modalities[name] for name in ("text", "message") if name in modalities]
    if modalities and not (of_texts and all(_gives(params, output) for params in of_texts)):
        return "'modality_config': the Transformer module does not turn plain text into what the modules after it need"
    return ""


def _gives(params: object, output: str) -> bool:
    """Whether the model's forward gives this output for texts."""
    names = ("method", "method_output_name")
    return isinstance(params, dict) and [params.get(name) for name in names] == ["forward", output]


def _routed(folder: Path, modules: tuple[Module, ...]) -> tuple[tuple[Module, ...], PurePosixPath | None]:
    """The modules with a route's in place of the Router: those for every text, or those for documents if queries have a
    table, and its folder. Raises ModelError for routes that one model can't serve."""
    places = [place for place, module in enumerate(modules) if module.kind in _ROUTERS]
    if not places:
        return modules, None
    first = places[0]
    routes = _routes(folder, modules[first])
    parameters = object_in(_router_config(folder, modules[first]), "parameters")
    if len(places) == 1 and (route := _of_texts(routes, parameters)):
        return (*modules[:first], *route, *modules[first + 1 :]), None
    # the Router's own rules say which text takes which route
    is_alone = len(modules) == 1 and not object_in(parameters, "route_mappings")
    if is_alone and routes.keys() == {"query", "document"} and [each.kind for each in routes["query"]] == [_TABLE]:
        return routes["document"], routes["query"][0].path
    raise _refusal(folder, modules)


def _of_texts(routes: dict[str, tuple[Module, ...]], parameters: Json) -> tuple[Module, ...]:
    """The modules of the route that all texts take, be they queries, documents or neither; empty if there is none.

    Other routes may be for images.
    """
    if len(set(routes.values())) == 1:
        return next(iter(routes.values()))
    found = {routes.get(_route_of(task, routes, parameters), ()) for task in (None, "query", "document")}
    return found.pop() if len(found) == 1 else ()


def _route_of(task: str | None, names: Collection[str], parameters: Json) -> str:
    """The route of a text for this task, found as Router._resolve_route does it; "" if there is none."""
    mappings = {_parsed(key): str(name) for key, name in object_in(parameters, "route_mappings").items()}
    for key in ((task, _TEXT), (task, None), (None, _TEXT), (None, None)):
        if key in mappings:
            return mappings[key]
    if named := next((name for name in (task, _TEXT) if name in names), None):
        return named
    return "" if task else str(parameters.get("default_route") or next(iter(names), ""))


def _parsed(key: str) -> object:
    """A task and a modality, as the library writes the pair of them."""
    try:
        parsed = ast.literal_eval(key[:_MAX_KEY])
        hash(parsed)  # TypeError of a list, or of one in a tuple
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # the library passes over it
    return parsed if isinstance(parsed, tuple) else None


def _refusal(folder: Path, modules: tuple[Module, ...]) -> ModelError:
    """The error for routes with separate models. It names the folder of one that can be served by itself."""
    router = next(module for module in modules if module.kind in _ROUTERS)
    types = object_in(_router_config(folder, router), "types")
    where = folder / router.path
    servable = [str(where / name) for name, kind in types.items() if str(kind).endswith("Transformer")]
    way_out = f"; serve the model of one route: --model-id {json.dumps(servable[0])}" if servable else ""
    pooling = " with --pooling" if servable else ""
    return ModelError(f"modules.json has a Router, whose routes are models of their own{way_out}{pooling}")


def _router_config(folder: Path, router: Module) -> Json:
    where = folder / router.path
    return read_optional(where / _ROUTER_FILE) or read_optional(where / "config.json")


def _routes(folder: Path, router: Module) -> dict[str, tuple[Module, ...]]:
    """The modules of each route by its name; empty if the file is wrong."""
    config = _router_config(folder, router)
    types, routes = object_in(config, "types"), {}
    for route, names in object_in(config, "structure").items():
        if not isinstance(names, list) or not names or not all(str(name) in types for name in names):
            return {}
        paths = {name: str(router.path / str(name)) for name in names}
        routes[route] = tuple(_as_module({"type": types[name], "path": paths[name]}, _ROUTER_FILE) for name in names)
    return routes
