"""Which servers can be started here, and which can't and why."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.report import Report
from benchmarks.measuring.servers import (
    Recipe,
    embedline,
    infinity,
    infinity_onnx,
    llama,
    plain,
    plain_onnx,
    plain_openvino,
    tei,
    vllm,
)
from benchmarks.peers.models import ExportFailed, PeerModel, export_onnx
from engine.machine import host

OURS = "Embedline"
_LLAMA_WEIGHTS = ("f32", "f16", "bf16", "q8_0")


@dataclass(frozen=True, slots=True)
class Places:
    """Folders, of which some may be missing."""

    model: Path
    onnx: Path  # empty, for the exported model
    environment: Path  # of benchmarks/peers/make_env.sh
    llama: Path  # of benchmarks/peers/make_llama.sh
    vllm: Path  # the environment of benchmarks/peers/make_vllm.sh
    openvino: Path  # the environment of benchmarks/peers/make_openvino.sh
    tei: tuple[Path, ...]  # programs of text-embeddings-inference
    other: Path | None  # another checkout of this repository


def recipes(model: PeerModel, places: Places, report: Report) -> list[Recipe]:
    """Embedline comes first."""
    found = [*_ours(model, places), plain(places.model, is_reranker=model.is_reranker)]
    found += [*_vllms(model, places, report), *(tei(program, places.model) for program in places.tei)]
    if model.is_reranker:
        report.note(
            "infinity-emb, ONNX Runtime, OpenVINO behind FastAPI and llama.cpp are left out: no scores of this model."
        )
        return found
    return [*found, *_pythons(model, places, report), *_llamas(model, places.llama, report)]


def _ours(model: PeerModel, places: Places) -> list[Recipe]:
    """With its defaults and in the types that those may differ from. int8 is left out for random weights.

    The rows of these say nothing of its fidelity.
    """
    flags = ["--model-id", str(places.model), "--served-model-name", "m"]
    if model.is_reranker:  # pairs as they come, as the others take them
        flags += ["--task", "rerank", "--template", "none"]
    found = [embedline(*flags, name=OURS)]
    if places.other is not None:
        other = places.other.absolute()
        found.append(embedline(*flags, name=f"{OURS}, {other.name}", root=other))
    if host.multiplies_bfloat16():
        found.append(embedline(*flags, "--dtype", model.other_dtype, name=f"{OURS} {model.other_dtype}"))
    if host.multiplies_int8() and model.has_real_weights:
        found.append(embedline(*flags, "--quantization", "int8", name=f"{OURS} int8"))
    return found


def _pythons(model: PeerModel, places: Places, report: Report) -> list[Recipe]:
    environment, found = places.environment, list[Recipe]()
    if (places.openvino / "bin/python").is_file():
        found.append(plain_openvino(places.openvino, places.model))
    else:
        report.note(f"sentence-transformers on OpenVINO is missing: make_openvino.sh {places.openvino.name} makes it.")
    if not (environment / "bin/infinity_emb").is_file():
        report.note(
            f"infinity-emb and ONNX Runtime are missing: make_env.sh {environment.name} makes their environment."
        )
        return found
    found.append(infinity(environment, places.model))
    try:
        exported = export_onnx(environment, places.model, places.onnx)
    except ExportFailed as error:
        report.note(f"infinity-emb (ONNX) and FastAPI + ONNX Runtime are missing: {error}")
        return found
    found.append(infinity_onnx(environment, exported, pooling=model.pooling))
    return [*found, plain_onnx(environment, exported)] if model.pooling == "mean" else found


def _vllms(model: PeerModel, places: Places, report: Report) -> list[Recipe]:
    """In bfloat16 where the CPU multiplies in it, as its own choice for weights in float32 is float16, which takes far
    longer; and in float32 where rows can be compared."""
    if (places.vllm / "bin/vllm").is_file():
        dtypes = ["bfloat16" if host.multiplies_bfloat16() else "auto", *["float32"] * model.has_real_weights]
        return [vllm(places.vllm, places.model, dtype=dtype) for dtype in dtypes]
    report.note(f"vLLM is missing: make_vllm.sh {places.vllm.name} makes its environment.")
    return []


def _llamas(model: PeerModel, folder: Path, report: Report) -> list[Recipe]:
    found = [weights for weights in _LLAMA_WEIGHTS if (folder / f"{weights}.gguf").is_file()]
    if not model.has_real_weights:
        return []
    if not found or not (folder / "bin/llama-server").is_file():
        report.note(f"llama.cpp is missing: benchmarks/peers/make_llama.sh {folder.name} makes it.")
        return []
    if "amx_int8" not in host.cpu().get("flags", "").split():
        return [llama(folder, weights) for weights in found]
    report.note("llama.cpp q8_0 has --no-repack: with weights packed for AMX this version of its server crashes.")
    return [llama(folder, weights, *(("--no-repack",) if weights == "q8_0" else ())) for weights in found]
