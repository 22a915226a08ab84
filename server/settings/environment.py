"""The environment of a start: what SageMaker, Vertex AI and Kubernetes set in it, and which names are no flag's.

The first two choose the port, whatever an image has in PORT. Knows no value but a port and a model's name.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from server.settings.flag import PREFIX, Flag, SettingsError

CONFIG = f"{PREFIX}CONFIG"  # the file, where --config is not given; CONFIG alone is anybody's

# https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
SAGEMAKER_WORD = "serve"  # SageMaker runs `docker run IMAGE serve`
_SAGEMAKER_PORT = "SAGEMAKER_BIND_TO_PORT"
_SAGEMAKER_USUAL_PORT = "8080"
_SAGEMAKER_MODEL = Path("/opt/ml/model")  # where it unpacks the artifacts of a model that has some
_SAGEMAKER_NAMES = {"PORT": _SAGEMAKER_PORT, "MODEL_ID": "HF_MODEL_ID", "REVISION": "HF_MODEL_REVISION"}
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
_VERTEX_PORT = "AIP_HTTP_PORT"
_VERTEX_ARTIFACTS = "AIP_STORAGE_URI"  # gs://…, which the start refuses, or a folder; empty for a model without any
# https://kubernetes.io/docs/tutorials/services/connect-applications-service/: a Service that is called prometheus gives
# every pod beside it this PROMETHEUS_PORT, and one that is called embedline gives it several names with our prefix.
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_SERVICE_NAME = re.compile(r".*_(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SECURITY = "Security"


def of_platform(
    environment: Mapping[str, str], *, is_sagemaker: bool, artifacts: Path = _SAGEMAKER_MODEL
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The environment in the names that flags read, and for each that a platform chose what it is called there. On
    SageMaker the model is that of MODEL_ID, of HF_MODEL_ID, or of the artifacts, in this order; on Vertex AI that of
    MODEL_ID, or of the artifacts."""
    has_model = any(environment.get(name) for name in ("MODEL_ID", f"{PREFIX}MODEL_ID"))
    if environment.get(_VERTEX_PORT):
        names = {"PORT": _VERTEX_PORT, **({} if has_model else {"MODEL_ID": _VERTEX_ARTIFACTS})}
        return _renamed(environment, names)
    if not is_sagemaker:
        return environment, {}
    environment = {**environment, _SAGEMAKER_PORT: environment.get(_SAGEMAKER_PORT) or _SAGEMAKER_USUAL_PORT}
    if has_model:
        return _renamed(environment, {"PORT": _SAGEMAKER_PORT})
    environment, spelled = _renamed(environment, _SAGEMAKER_NAMES)
    if "MODEL_ID" not in spelled and artifacts.is_dir() and any(artifacts.iterdir()):
        return {**environment, "MODEL_ID": str(artifacts)}, {**spelled, "MODEL_ID": str(artifacts)}
    return environment, spelled


def _renamed(environment: Mapping[str, str], names: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Those that are set and not empty, under our names."""
    spelled = {ours: theirs for ours, theirs in names.items() if environment.get(theirs)}
    return {**environment, **{ours: environment[theirs] for ours, theirs in spelled.items()}}, spelled


def without_services(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Less the addresses of other services of a Kubernetes namespace."""
    return {name: value for name, value in environment.items() if not _is_a_services(name, value)}


def _is_a_services(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None
    return is_address or _SERVICE_NAME.fullmatch(name) is not None


def passed_over(flags: list[Flag], environment: Mapping[str, str]) -> list[str]:
    """Names without the prefix that flags of earlier versions read. Raises SettingsError where one of them is about
    who may use the server: without it, everybody could."""
    found = []
    for flag in flags:
        for name in flag.variables:
            plain = name.removeprefix(PREFIX)
            if plain not in flag.variables and environment.get(plain):
                if flag.group == _SECURITY and not environment.get(name):
                    raise SettingsError(f"the variable {plain} is not read: call it {name}, or unset it")
                found.append(plain)
    return found


def unknown(flags: list[Flag], environment: Mapping[str, str]) -> list[str]:
    """Names with the prefix that are no flag's, as one that is misspelt."""
    known = {CONFIG, *(name for flag in flags for name in flag.variables)}
    return [name for name, value in environment.items() if name.startswith(PREFIX) and value and name not in known]
