"""The environment of a start: what SageMaker, Vertex AI and Kubernetes set in it, and which names are not a flag's any
more.

The first two choose the port, whatever an image has in PORT. Knows no value but a port and a model's name.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from server.settings.flag import PREFIX, Flag, SettingsError

# https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
SAGEMAKER_WORD = "serve"  # SageMaker runs `docker run IMAGE serve`
_SAGEMAKER_PORT = "8080"
_SAGEMAKER_MODEL = Path("/opt/ml/model")  # where it unpacks the artifacts of a model that has some
_SAGEMAKER_NAMES = {"SAGEMAKER_BIND_TO_PORT": "PORT", "HF_MODEL_ID": "MODEL_ID", "HF_MODEL_REVISION": "REVISION"}
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
_VERTEX_PORT = "AIP_HTTP_PORT"
_VERTEX_ARTIFACTS = "AIP_STORAGE_URI"  # gs://…, which the start refuses, or a folder; empty for a model without any
# https://kubernetes.io/docs/tutorials/services/connect-applications-service/: a Service that is called prometheus gives
# every pod beside it this PROMETHEUS_PORT.
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_SECURITY = "Security"


def of_platform(
    environment: Mapping[str, str], *, is_sagemaker: bool, artifacts: Path = _SAGEMAKER_MODEL
) -> Mapping[str, str]:
    """The environment in the names that flags read. On SageMaker the model is that of MODEL_ID, of HF_MODEL_ID, or of
    the artifacts, in this order; on Vertex AI that of MODEL_ID, or of the artifacts. The ports of other services of a
    Kubernetes namespace are left out."""
    environment = {name: value for name, value in environment.items() if not _is_a_services(name, value)}
    if environment.get(_VERTEX_PORT):
        model = environment.get("MODEL_ID") or environment.get(_VERTEX_ARTIFACTS)
        own = {"MODEL_ID": model} if model else {}
        return {**environment, "PORT": environment[_VERTEX_PORT], **own}
    if not is_sagemaker:
        return environment
    own = {ours: environment[theirs] for theirs, ours in _SAGEMAKER_NAMES.items() if environment.get(theirs)}
    if not own.keys() & {"MODEL_ID"} and artifacts.is_dir() and any(artifacts.iterdir()):
        own["MODEL_ID"] = str(artifacts)
    if environment.get("MODEL_ID"):
        own = {name: value for name, value in own.items() if name == "PORT"}
    return {**environment, "PORT": _SAGEMAKER_PORT, **own}


def _is_a_services(name: str, value: str) -> bool:
    return name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None


def passed_over(flags: list[Flag], environment: Mapping[str, str]) -> list[str]:
    """Names without the prefix that flags of earlier versions read. Raises SettingsError where one of them is about
    who may use the server: without it, everybody could."""
    found = []
    for flag in flags:
        for name in flag.variables:
            plain = name.removeprefix(PREFIX)
            if plain != name and environment.get(plain):
                if flag.group == _SECURITY and not environment.get(name):
                    raise SettingsError(f"the variable {plain} is not read: call it {name}, or unset it")
                found.append(plain)
    return found
