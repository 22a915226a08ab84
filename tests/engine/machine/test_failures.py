"""What exceptions of libraries mean, by what they are called and say."""

import pytest
import torch

from engine.machine.failures import engine_error
from engine.types import EngineErrorKind

FAILED, OUT_OF_MEMORY, FATAL = EngineErrorKind.FAILED, EngineErrorKind.OUT_OF_MEMORY, EngineErrorKind.FATAL


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such length"), FAILED),
        (MemoryError(), OUT_OF_MEMORY),
        (torch.OutOfMemoryError("tried to allocate 2 GiB"), OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`"), FAILED),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasLtMatmul`"), FAILED),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasLtMatmul`"), FATAL),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), FATAL),
        (
            RuntimeError("[TensorRT-LLM][ERROR] CUDA runtime error in f(): an illegal memory access was encountered"),
            FATAL,
        ),
        (
            RuntimeError("[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(...): out of memory"),
            OUT_OF_MEMORY,
        ),
        (RuntimeError("[TensorRT-LLM][ERROR] CUDA driver error in f(): CUDA_ERROR_ILLEGAL_ADDRESS: it says"), FATAL),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), FATAL),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), FATAL),
        (torch.AcceleratorError("device-side assert triggered"), FATAL),
        (torch.AcceleratorError("device-side assert triggered", 710), FATAL),
    ],
)
def test_what_it_means_for_a_batch(error: Exception, kind: EngineErrorKind) -> None:
    assert engine_error(error).kind is kind


def test_messages_of_libraries_are_cut() -> None:
    assert len(str(engine_error(RuntimeError("x" * 10_000)))) <= 300
