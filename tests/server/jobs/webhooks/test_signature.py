"""Signatures of webhooks against the standard's own library, and Baseten's as its page computes it."""

import base64
import hmac
import time
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from server.features.jobs import webhooks
from server.features.jobs.webhooks import Secret, SecretFile, read_secrets, signed_headers
from server.settings import files
from server.settings.flag import SettingsError

NEW, OLD = (f"whsec_{base64.b64encode(bytes([byte]) * 32).decode()}" for byte in (1, 2))
BODY = b'{"request_id":"r1","data":[0.5]}'


def secrets(tmp_path: Path, *lines: str) -> list[Secret]:
    path = tmp_path / "secrets"
    path.write_text("\n".join(lines))
    return read_secrets(str(path))


def headers_of(found: list[Secret]) -> dict[str, str]:
    pairs = signed_headers(found, request_id="r1", timestamp=int(time.time()), body=BODY)
    return {name.decode(): value.decode() for name, value in pairs}


@pytest.mark.parametrize("secret", [NEW, OLD])
def test_the_standards_library_accepts_either_of_two_secrets(tmp_path: Path, secret: str) -> None:
    headers = headers_of(secrets(tmp_path, "# new first", NEW, "", OLD))
    assert Webhook(secret).verify(BODY, headers) == {"request_id": "r1", "data": [0.5]}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers)


def test_basetens_header_has_each_secrets_hmac_of_the_body(tmp_path: Path) -> None:
    headers = headers_of(secrets(tmp_path, NEW, OLD))
    expected = [hmac.new(secret.encode(), BODY, "sha256").hexdigest() for secret in (NEW, OLD)]
    assert headers["x-baseten-signature"] == f"v1={expected[0]},v1={expected[1]}"
    assert headers["x-baseten-request-id"] == headers["webhook-id"] == "r1"


def test_without_secrets_nothing_is_signed() -> None:
    assert headers_of([]).keys() == {"x-baseten-request-id", "webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "it has 0"),
        ([NEW, OLD, NEW], "it has 3"),
        ([NEW.removeprefix("whsec_")], "line 1: a secret is whsec_"),
        (["", "whsec_c2hvcnQ="], "line 2: a secret is whsec_ and 24 to 64 bytes"),
        (["whsec_ä"], "line 1"),
        (["#" * 5000], "more than 4096 bytes"),
    ],
    ids=["none", "three", "no prefix", "too short", "not base64", "too long"],
)
def test_a_file_that_is_wrong_is_refused_by_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        secrets(tmp_path, *lines)
    assert not any(line and line[0] != "#" and line in str(caught.value) for line in lines)


def test_a_changed_file_is_read_again_and_a_wrong_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)
    path = tmp_path / "secrets"
    path.write_text(OLD)
    file = SecretFile(str(path))
    path.write_text(f"{NEW}\n{OLD}")
    assert [secret.text.decode() for secret in file.secrets()] == [NEW, OLD]
    path.write_text("nothing of worth")
    assert [secret.text.decode() for secret in file.secrets()] == [NEW, OLD]
    assert "nothing of worth" not in caplog.text
    assert webhooks.logger.name in {record.name for record in caplog.records}


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    assert NEW not in repr(secrets(tmp_path, NEW))


def test_secrets_that_can_not_be_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("whsec_short")
    with pytest.raises(SettingsError, match="--jobs-webhook-secrets, line 1: a secret is"):
        SecretFile(str(tmp_path / "secrets"))
