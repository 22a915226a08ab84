"""Certificates for localhost, made by the openssl program. Without it the tests that need them are skipped."""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate that signs itself, and its key; both are PEM files."""

    certfile: Path
    keyfile: Path

    @property
    def der(self) -> bytes:
        """What a client sees of the certificate."""
        return ssl.PEM_cert_to_DER_cert(self.certfile.read_text())

    def trusting(self) -> ssl.SSLContext:
        """A client that trusts this certificate alone."""
        return ssl.create_default_context(cafile=str(self.certfile))

    def copy_to(self, other: "Pair") -> None:
        """In place of the other's files, the certificate first."""
        other.certfile.write_bytes(self.certfile.read_bytes())
        other.keyfile.write_bytes(self.keyfile.read_bytes())


def make_pair(folder: Path) -> Pair:
    """A new certificate for localhost and 127.0.0.1, in a new folder."""
    folder.mkdir()
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    algorithm = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    files = ("-keyout", str(pair.keyfile), "-out", str(pair.certfile))
    openssl("req", "-x509", *algorithm, *files, "-subj", "/CN=localhost", "-addext", names)
    return pair


def openssl(*arguments: str) -> None:
    """Run the program."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the program openssl is not installed")
    subprocess.run([program, *arguments], check=True, capture_output=True)
