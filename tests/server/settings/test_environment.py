"""The environment of a start: platforms that set it, variables that flags take, and those that they pass over."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from server.features.jobs.feature import JobsFlags
from server.settings.flag import SettingsError
from server.settings.precedence import of_platform, settings_from
from tests.server.settings.cli_runs import Run


@pytest.mark.parametrize(
    ("environment", "port", "model"),
    [
        ({}, 8080, "sentence-transformers/all-MiniLM-L6-v2"),
        ({"PORT": "80"}, 8080, "sentence-transformers/all-MiniLM-L6-v2"),  # the image's own
        ({"SAGEMAKER_BIND_TO_PORT": "8081", "HF_MODEL_ID": "org/model"}, 8081, "org/model"),
        ({"MODEL_ID": "org/ours", "HF_MODEL_ID": "org/theirs", "HF_MODEL_REVISION": "main"}, 8080, "org/ours"),
    ],
)
def test_sagemaker_runs_an_image_with_the_word_serve(
    run: Run, environment: Mapping[str, str], port: int, model: str
) -> None:
    run.environment(**environment)

    settings = run.settings("--hostname", "0.0.0.0", "serve")

    assert (settings.port, settings.models[0].model_id, settings.models[0].revision) == (port, model, None)
    assert settings.hostname == "0.0.0.0"


def test_sagemaker_s_artifacts_are_the_model_where_no_name_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def read(**environment: str) -> Mapping[str, str]:
        return of_platform(environment, is_sagemaker=True, artifacts=folder)[0]

    assert "MODEL_ID" not in read()
    folder.mkdir()
    assert "MODEL_ID" not in read()  # SageMaker makes it all the same
    (folder / "model.safetensors").touch()

    assert read()["MODEL_ID"] == str(folder)
    assert "MODEL_ID" not in read(EMBEDLINE_MODEL_ID="a/b")
    named = read(HF_MODEL_ID="a/b", HF_MODEL_REVISION="1")
    assert (named["MODEL_ID"], named["REVISION"]) == ("a/b", "1")
    assert of_platform({"PORT": "80"}, is_sagemaker=False, artifacts=folder) == ({"PORT": "80"}, {})


@pytest.mark.parametrize(
    ("environment", "words", "name"),
    [
        ({"AIP_HTTP_PORT": "x", "PORT": "80"}, (), "AIP_HTTP_PORT"),
        ({"SAGEMAKER_BIND_TO_PORT": "x", "PORT": "80"}, ("serve",), "SAGEMAKER_BIND_TO_PORT"),
    ],
)
def test_a_wrong_value_of_a_platform_is_blamed_on_the_platform_s_name(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    environment: Mapping[str, str],
    words: Sequence[str],
    name: str,
) -> None:
    run.environment(**environment)

    assert run.exit_code("serve", *words) == 2
    assert f"(the variable {name}) must be a whole number" in capsys.readouterr().err


def test_the_log_has_a_platform_s_names(run: Run) -> None:
    run.environment(AIP_HTTP_PORT="8085", AIP_STORAGE_URI="folder")

    assert set(run.settings().variables) == {"AIP_HTTP_PORT", "AIP_STORAGE_URI"}


def test_every_other_word_is_a_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.environment(HF_MODEL_ID="org/of-sagemaker")
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "9")

    for words in (["server"], ["--served-model-name", "serve", "server"]):
        settings = run.settings(*words)
        assert (settings.port, settings.models[0].model_id) == (8080, "server")
    assert run.settings("--served-model-name", "serve").port == 8080  # the value of a flag


def test_vertex_chooses_the_port(run: Run) -> None:
    run.environment(PORT="80", AIP_HTTP_PORT="8085")

    assert run.settings().port == 8085
    assert run.settings("--port", "8086").port == 8086


@pytest.mark.parametrize(
    ("environment", "words", "model"),
    [
        ({"AIP_STORAGE_URI": "gs://bucket/mine"}, (), "gs://bucket/mine"),  # refused, where the default was served
        ({"AIP_STORAGE_URI": "gs://bucket/mine", "MODEL_ID": ""}, (), "gs://bucket/mine"),
        ({"AIP_STORAGE_URI": "gs://bucket/mine", "MODEL_ID": "org/model"}, (), "org/model"),
        ({"AIP_STORAGE_URI": "gs://bucket/mine"}, ("--model-id", "org/model"), "org/model"),
        ({"AIP_STORAGE_URI": ""}, (), "sentence-transformers/all-MiniLM-L6-v2"),  # a model without artifacts
    ],
)
def test_vertex_s_artifacts_are_never_passed_over_for_the_default_model(
    run: Run, environment: Mapping[str, str], words: Sequence[str], model: str
) -> None:
    run.environment(AIP_HTTP_PORT="8085", **environment)

    assert run.settings(*words).models[0].model_id == model


def test_the_address_of_a_service_is_no_port(run: Run) -> None:
    """As Kubernetes sets it where a Service is called prometheus."""
    run.environment(PROMETHEUS_PORT="tcp://10.96.1.1:9090")
    assert run.settings().prometheus_port is None
    run.environment(PROMETHEUS_PORT="9100")
    assert run.settings().prometheus_port == 9100


def test_services_that_are_called_as_we_are_set_nothing() -> None:
    """As Kubernetes names them for a Service called embedline, and one called embedline-jobs."""
    services = {
        "EMBEDLINE_PORT": "tcp://10.96.1.1:80",
        "EMBEDLINE_SERVICE_HOST": "10.96.1.1",
        "EMBEDLINE_SERVICE_PORT": "80",
        "EMBEDLINE_SERVICE_PORT_HTTP": "80",
        "EMBEDLINE_PORT_80_TCP": "tcp://10.96.1.1:80",
        "EMBEDLINE_PORT_80_TCP_PROTO": "tcp",
        "EMBEDLINE_PORT_80_TCP_PORT": "80",
        "EMBEDLINE_PORT_80_TCP_ADDR": "10.96.1.1",
        "EMBEDLINE_JOBS_PORT": "tcp://10.96.1.2:6379",
        "EMBEDLINE_JOBS_SERVICE_HOST": "10.96.1.2",
    }
    assert settings_from({}, services) == settings_from({}, {})
    assert settings_from({}, services).variables_unknown == ()


def test_the_prefix_may_stand_before_every_name() -> None:
    """An open server would be wrong in silence; an image's own PORT stays what it is without the prefix."""
    environment = {"EMBEDLINE_API_KEY": "sesame", "EMBEDLINE_PORT": "9001", "PORT": "80", "EMBEDLINE_MODEL_ID": "a/b"}
    settings = settings_from({}, environment)

    assert (settings.api_key, settings.port, settings.models[0].model_id) == (("sesame",), 9001, "a/b")
    assert set(settings.variables) == {"EMBEDLINE_API_KEY", "EMBEDLINE_PORT", "EMBEDLINE_MODEL_ID"}


def test_a_misspelt_name_with_the_prefix_is_named() -> None:
    environment = {"EMBEDLINE_API_KEYFILE": "x", "EMBEDLINE_NOTHING": "", "EMBEDLINE_CONFIG": "x", "OTHER": "x"}
    assert settings_from({}, environment).variables_unknown == ("EMBEDLINE_API_KEYFILE",)


def test_names_that_other_programs_use_are_not_read(run: Run) -> None:
    run.environment(**{"JOBS": "8", "ENGINE": "docker", "MODEL_ID": "a/b", "EMBEDLINE_DEVICES": "cpu"})

    settings = run.settings()

    assert (settings.of(JobsFlags).jobs, settings.models[0].engine, settings.models[0].devices) == (None, "auto", "cpu")
    assert settings.variables == ("MODEL_ID", "EMBEDLINE_DEVICES")
    assert set(settings.variables_passed_over) == {"JOBS", "ENGINE"}
    assert "MODEL_ID" not in run.settings("--model-id", "c/d").variables  # the command line outranks it


@pytest.mark.parametrize("name", ["API_KEY_FILE", "SSL_CERTFILE", "METRICS_AUTH", "ALLOWED_HOSTS"])
def test_an_old_name_about_who_may_use_the_server_ends_the_start(name: str) -> None:
    """Passed over, it would leave the server open."""
    with pytest.raises(SettingsError, match=f"the variable {name} is not read: call it EMBEDLINE_{name}"):
        settings_from({}, {name: "1"})
    assert settings_from({}, {name: ""}).variables_passed_over == ()
