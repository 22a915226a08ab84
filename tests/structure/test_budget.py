"""The budget: how large the house may be. Growth is a decision, so a limit is raised in the commit that needs it."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.structure.budget import (
    CHOOSERS,
    GUESTS,
    REGISTRIES,
    Measure,
    code_size,
    feature_imports,
    measures,
    measures_of_running,
    over,
    single_importers,
)
from tests.structure.on_the_way import FRONTEND, Ran, imported, on_the_way
from tests.structure.sources import Source, is_within, sources

# The most lines and tokens of code: without docstrings, comments and empty lines. A change that needs more than is left
# raises the number in the same commit, to about half a percent more than there is, and says why.
SIZES = {
    "server": (27_690, 251_300),
    "engine": (21_720, 210_460),
    "batch_manager": (2_340, 22_960),
    "tokenizer_pool": (2_470, 24_050),
    "wire": (1_480, 13_750),
    "embedline": (3_890, 35_040),
    "core": (39_210, 373_720),  # all of them without features, fused, TensorRT-LLM and the tools
}
LIMITS = {
    **{f"{wing}: lines of code": lines for wing, (lines, _) in SIZES.items()},
    **{f"{wing}: tokens": tokens for wing, (_, tokens) in SIZES.items()},
    "lines of the tests": 108_890,
    "files of the product": 417,
    "folders of the product": 52,
    "files with one importer that no registry names": 59,
    "imports of features by the core": 0,
    "lines of the longest file": 600,
    "entries of the fullest folder": 20,
    "entries of the fullest folder of tests": 22,
}
LIMITS_OF_RUNNING = {
    "files on the way of one text": 46,
    "files that a frontend imports": 98,
    "files of features that are off, in any process": 0,
}
# Of the files with one importer, those that are a subject of their own, and why.
SUBJECTS = {
    "batch_manager.scheduling.queue": "how the two classes share a model, and what comes back from engines",
    "batch_manager.in_flight": "which requests are one because they ask for the same, and their rows so far",
    "batch_manager.scheduling.scheduler": "the state machine, which a simulator drives as well",
    "embedline.bench.report": "what a run of bench found, as text with a histogram and as JSON",
    "embedline.client.embed": "the forms of embeddings, and the array into which their rows are written",
    "engine.cpu.all_cores": "one measurement, and when it says nothing",
    "engine.cpu.engine": "threads and mini-batches, whatever compiled the model",
    "engine.cpu.portable": "what `embedline compile` writes for other machines",
    "engine.cpu.tracing": "with unique_tokens all of this engine that imports torch, and only to convert",
    "engine.cpu.unique_tokens": "the form of a traced model that computes shared prefixes once",
    "engine.fused.adapters.heads": "the heads of transformers' classes, which change with its releases",
    "engine.fused.checkpoint": "tensors by name out of one file, several or a module",
    "engine.fused.quantization.cache": "quantized models on the disk, with a format of their own",
    "engine.fused.quantization.verify": "what quantization costs, for `embedline verify`",
    "engine.machine.varlen": "torch's own kernel for packed sequences, which changes with torch; also measured",
    "engine.model.detection.late_interaction": "ColBERT's models, in the forms of three libraries",
    "engine.model.known_prompts": "a table of facts about published models",
    "engine.selftest.warmup": "the first batches of any engine, and the batch that shows later whether it is sound",
    "engine.store.hub": "the one file that imports huggingface_hub, and only to fetch",
    "engine.tensorrt_llm.loading": "the one LLM of the library and its arguments",
    "engine.tensorrt_llm.models": "our model classes inside of the library",
    "engine.tensorrt_llm.quantize.cached": "block-FP8 copies on the disk, with a format of their own",
    "engine.convert.adapted": "which files a merged adapter has of its own folder and of its base's",
    "engine.convert.checkpoint_names": "what checkpoints call the tensors of the library's classes",
    "engine.convert.merging": "PEFT's arithmetic, and the new weights' files",
    "engine.convert.pickle_to_safetensors": "the one file that calls torch.load",
    "engine.transformers.heads": "which head makes which output",
    "engine.transformers.selftest": "how a model may be run, tried at load and kept",
    "server.supervisor.adapter_bases": "whether an adapter is of the model, by what it says of its base",
    "server.supervisor.adapters": "the folders of --lora, checked before a start: few starts import it",
    "server.commands.running": "all that `serve` imports while the first engine's process imports its own libraries",
    "server.dialects.lines": "what a line of texts may be, and its answer, as OpenAI's route has them",
    "server.features.grpc.calls": "how an RPC is admitted, read, reported and refused, whatever its method",
    "server.features.grpc.methods": "text-embeddings-inference's methods: a list",
    "server.features.jobs.batches.run": "one batch, line by line, from its file of inputs to its files of results",
    "server.features.jobs.calls": "what frontends and operators may ask of the jobs process",
    "server.features.jobs.batch_routes": "OpenAI's routes of files and batches, and uploads",
    "server.features.jobs.runner": "how a request that was kept is sent, tried again and ended",
    "server.features.jobs.store.redis_scripts": "what Redis runs in one step, in Lua",
    "server.features.jobs.store.sqlite_requests": "the tables of async requests",
    "server.features.jobs.webhooks": "how an end is told to its webhook, signed and tried again",
    "server.features.pipelines.bodies": "JSON and msgpack of a pipeline's values, arrays among them",
    "server.features.verify.library": "the rows and the ids of a model's own library",
    "server.frontend.inside": "what a frontend has inside, and what is only imported there",
    "server.frontend.request_log": "the report of a finished request: metrics, and a line of the log",
    "server.http.app": "the way of every request over HTTP",
    "server.http.h1.framing": "where heads and bodies end in the bytes, and which heads are refused",
    "server.http.h1.protocol": "the requests of one connection, and the connections of a server",
    "server.metrics.gauges": "gauges that are read from the shared page when /metrics is asked",
    "server.metrics.registry": "what all processes counted, added up in the supervisor",
    "server.metrics.tei": "text-embeddings-inference's names for our metrics",
    "server.requests.repeated": "what texts of one request have in common, so that it is computed once",
    "server.supervisor.ports": "the ports of one server, wherever they come from",
    "server.supervisor.readiness": "when the server is ready, and what it tells its frontends of that",
    "server.supervisor.takeover": "what two servers say to each other when one takes over the other's sockets",
    "tokenizer_pool.pairs": "how two texts become one sequence",
    "tokenizer_pool.scanner": "where a long text may be cut so that its tokens stay those of the whole",
    "wire.blocking": "the end of a connection in a process without an event loop, which imports no asyncio",
    "wire.local": "connections without a socket, as other files have those with one",
}


def test_the_house_is_within_its_budget() -> None:
    found = measures()
    assert {measure.name for measure in found} == LIMITS.keys()
    assert over(found, LIMITS) == []


@pytest.mark.full
def test_the_way_of_a_text_is_within_its_budget(tmp_path: Path) -> None:
    found = measures_of_running(tmp_path)
    assert {measure.name for measure in found} == LIMITS_OF_RUNNING.keys()
    passed, *_ = (measure.counted for measure in found)
    assert {"server/http/app.py", "tokenizer_pool/worker.py", "batch_manager/worker.py", "engine/fake.py"} <= {*passed}
    assert over(found, LIMITS_OF_RUNNING) == []


def test_what_grew_is_named_with_its_number() -> None:
    found = [Measure("files", 12, ("a.py", "b.py")), Measure("folders", 3)]
    assert over(found, {"files": 12, "folders": 3}) == []
    (message,) = over(found, {"files": 10, "folders": 3})
    assert message.startswith("files: 12, 2 above the limit of 10. ")
    assert message.endswith("Counted: a.py, b.py")
    with pytest.raises(KeyError):
        over(found, {"files": 12})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('"""A docstring\n\nof three lines."""\n\n# a comment\n', (0, 0)),
        ("a = 1  # why\n\n\nb = 2\n", (2, 6)),
        ("a = 1; b = 2\n", (1, 7)),
        ("a = (\n    1,\n\n    2,\n)\n", (4, 8)),
        ('class A:\n    """Of A."""\n\n    def f(self) -> None:\n        """Of f."""\n', (2, 11)),
        ('async def f() -> None:\n    """Of f."""\n    "no docstring"\n', (2, 9)),
        ('a = """\n\n"""\n', (3, 3)),
        ('a = f"{b + c!r:>{d}} e"\n', (1, 3)),
    ],
)
def test_code_is_counted_and_nothing_else(text: str, size: tuple[int, int]) -> None:
    assert code_size(text) == size


def planted(**files: str) -> list[Source]:
    """Files by their modules, with __ for a dot."""
    return [Source(Path(f"{name.replace('__', '/')}.py"), text) for name, text in files.items()]


def test_a_file_with_one_importer_is_found() -> None:
    text = "from server import a, b, c, program\nfrom engine.d import D\nimport server.e"
    house = {name: "" for name in ("server__a", "server__b", "server__c", "engine__d", "server__e", "server__f")}
    house |= {
        "server__main": text,
        "server__program": 'def main(): ...\n\nif __name__ == "__main__":\n    main()',
        "server__e": "def f():\n    from server.b import B",  # a second importer of b
        "server__plan": 'Plan("engine.d")\nimport_module("server.f")\nPATH = "server.c:name"',
        "server__dialects__table": "from server.dialects import one",
        "server__dialects__one": "",
        "server__features__jobs__main": "import server.features.jobs.runner, server.features.jobs.store.a",
        **dict.fromkeys(("server__features__jobs__runner", "server__features__jobs__store__a"), ""),
    }
    found = single_importers(planted(**house))
    assert found == (
        "server.a <- server.main",
        "server.e <- server.main",
        "server.f <- server.plan",
        "server.features.jobs.runner <- server.features.jobs.main",
    )


def test_a_file_with_one_importer_is_a_subject_of_its_own_and_nothing_else_is_listed() -> None:
    found = {pair.partition(" <- ")[0] for pair in single_importers(tuple(sources()))}
    assert found == SUBJECTS.keys()


def test_an_import_of_a_feature_by_the_core_is_found() -> None:
    house = planted(
        server__jobs__client="from server.app import App\nimport server.jobs.store",
        server__jobs__store="",
        server__app="if TYPE_CHECKING:\n    from server.jobs.client import Jobs",
        server__main="def f():\n    from server.jobs import client, store\nfrom server.jobs.client import Jobs",
    )
    assert feature_imports(house, ("server.jobs",)) == (
        "server.app -> server.jobs.client",
        "server.main -> server.jobs.client",
        "server.main -> server.jobs.store",
    )


def test_every_guest_and_registry_is_there() -> None:
    modules = {source.module for source in sources()}
    assert [guest for guest in GUESTS if not any(is_within(module, (guest,)) for module in modules)] == []
    assert REGISTRIES.keys() - modules == set()
    assert {*CHOOSERS.keys(), *CHOOSERS.values()} - modules == set()


def test_a_file_is_on_the_way_if_it_runs_during_most_requests() -> None:
    ran: Ran = defaultdict(lambda: defaultdict(set))
    for number in range(12):
        ran[FRONTEND][number] |= {"server/always.py", *(["server/beat.py"] if number < 6 else [])}
    ran[FRONTEND][0] |= {"server/start.py", "server/__init__.py"}
    ran["tokenizer_pool.worker"][5].add("wire/once.py")
    ran["embedline"] = {number: {"server/supervisor.py"} for number in range(12)}
    assert on_the_way(ran) == ["server/always.py"]
    assert imported(ran, FRONTEND) == ["server/always.py", "server/beat.py", "server/start.py"]
