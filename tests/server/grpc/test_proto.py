"""The messages: made of tei.proto, and with TEI's names and numbers."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from server.features.grpc import tei_pb2
from server.features.grpc.method import Reads
from server.features.grpc.methods import METHODS

FOLDER = Path(tei_pb2.__file__).parent
# Of what names and numbers TEI's own proto/tei.proto has, as `outline` lists them; read from its commit 0d124dc.
TEIS = "58c8e40a67006ad2cf7a5f1f5d2891359ef13ce17d04380e515e30d271aa703b"


def outline(file: FileDescriptorProto) -> str:
    """All that clients depend on, one line each, in no file's order."""
    lines = [
        f"{file.package}.{message.name}.{field.name} {field.number} {field.type} {field.label} {field.type_name} "
        f"{field.proto3_optional}"
        for message in file.message_type
        for field in message.field
    ]
    lines += [f"{enum.name}.{value.name} {value.number}" for enum in file.enum_type for value in enum.value]
    lines += [
        f"{service.name}.{rpc.name} {rpc.input_type} {rpc.client_streaming} {rpc.output_type} {rpc.server_streaming}"
        for service in file.service
        for rpc in service.method
    ]
    return "\n".join(sorted(lines))


def committed() -> FileDescriptorProto:
    return FileDescriptorProto.FromString(tei_pb2.DESCRIPTOR.serialized_pb)


@pytest.mark.holds("gRPC")
def test_names_and_numbers_are_teis() -> None:
    assert hashlib.sha256(outline(committed()).encode()).hexdigest() == TEIS


def test_the_modules_are_made_of_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", "tei.proto"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--descriptor_set_out={tmp_path}/set"]
    subprocess.run(command, check=True)

    (made,) = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    assert outline(made) == outline(committed()), "make proto"
    for name in ("tei_pb2.py", "tei_pb2.pyi"):
        here, anew = ((folder / name).read_text() for folder in (FOLDER, tmp_path))
        if version_of(here) == version_of(anew):  # another protoc writes another file
            assert here == anew, "make proto"


def version_of(module: str) -> list[str]:
    return [line for line in module.splitlines() if "Protobuf Python Version" in line]


def test_every_method_of_the_file_is_served() -> None:
    served = {(method.path, method.message.DESCRIPTOR.full_name, method.reads is not Reads.ONE) for method in METHODS}
    declared = {
        (f"/tei.v1.{service.name}/{rpc.name}", rpc.input_type.removeprefix("."), rpc.client_streaming)
        for service in committed().service
        for rpc in service.method
        if service.name != "Info"
    }
    assert served == declared
