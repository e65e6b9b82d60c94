"""Which errors say that memory is short, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from batched._policy.out_of_memory import is_out_of_memory


def named(name: str, text: str = "", base: type[Exception] = Exception) -> Exception:
    """Return an error of a class of this name, as a library might have it."""
    return type(name, (base,), {"__module__": "library"})(text)


def raised_from(inner: BaseException) -> BaseException:
    """Return an error that a function raised from another."""
    outer = ValueError("the model failed")
    outer.__cause__ = inner
    return outer


def no_room() -> BaseException:
    """Return numpy's own error."""
    try:
        np.empty(2**62, np.uint8)
    except MemoryError as error:
        return error
    raise AssertionError


ORT = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. "
JAX = "XlaRuntimeError"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        no_room(),
        OSError(12, "Cannot allocate memory"),
        named("OutOfMemoryError"),
        named("MemoryError", "clEnqueueNDRangeKernel failed"),
        named("ResourceExhaustedError", "OOM when allocating tensor with shape[8,512]"),
        named("InternalError", "Failed copying input tensor: Dst tensor is not initialized."),
        named("error", "OpenCV(4.8.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate"),
        named("error", "OpenCV(4.5.5) error: (-217:Gpu API call) out of memory in function 'allocate'"),
        named("InferenceServerException", "[StatusCode.INTERNAL] CUDA out of memory. Tried to allocate"),
        RuntimeError("NVRTC_ERROR_OUT_OF_MEMORY"),
        RuntimeError(
            "[METAL] Command buffer execution failed: Insufficient Memory "
            "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
        ),
        named(JAX, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.", RuntimeError),
        named("CudaAPIError", "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        named("Fail", ORT + "Failed to allocate memory for requested buffer of size 1073741824"),
        named("RuntimeException", ORT + "CUDA failure 2: out of memory ; GPU=0"),
        named("Fail", ORT + "Available memory of 0 is smaller than requested bytes of 1024"),
        named("XGBoostError", "Memory allocation error: std::bad_alloc", ValueError),
        named("InternalError", "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"),
        named("InternalError", "failed to allocate 1.0G (1073741824 bytes) from device: out of memory"),
        named("InternalError", "GPU sync failed: out of memory"),
        named("UnknownError", "Failed to create cuDNN handle: CUDNN_STATUS_ALLOC_FAILED"),
        named(JAX, "INTERNAL: Failed to allocate 8589934592 bytes for new constant", RuntimeError),
        named("RuntimeException", ORT + "CUBLAS failure 3: the resource allocation failed ; GPU=0"),
        named("Fail", ORT + "8007000E Not enough memory resources are available to complete this operation."),
        named("CUDAError", "CUDA_ERROR_OUT_OF_MEMORY: The API call failed"),
        named("cudaError_t", "cudaErrorMemoryAllocation"),
        named("TVMError", "CUDA: out of memory"),
        named("AcceleratorError", "CUDA error: out of memory", RuntimeError),
        named("OutOfMemoryException", "failed to allocate data of size 16.0 GiB (0 bytes/3.1 GiB used)"),
        named("LightGBMError", "std::bad_alloc"),
        named("LightGBMError", "Out of Host Memory"),
        named("CatBoostError", "catboost/cuda/cuda_lib/cuda_base.h:281: CUDA error 2: out of memory"),
        named("CatBoostError", "stack_like_memory_pool.h:303: Error: Out of memory. Requested 500"),
        named("TritonModelException", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        named("InternalError", "SameWorkerRecvDone unable to allocate output tensor. Key: edge_0"),
        named("DGLError", "Check failed: e == cudaSuccess: CUDA: out of memory"),
        named("InternalError", "cudaGetDevice() failed. Status: out of memory"),
        ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes."),
        *map(
            RuntimeError,
            [
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
                "cuda runtime error (2) : out of memory at /pytorch/aten/src",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
                "CUDA out of memory. Tried to allocate 2.00 GiB",
                "HIP out of memory. Tried to allocate 2.00 GiB",
                "HIP error: hipErrorOutOfMemory",
                "MPS backend out of memory (MPS allocated: 5.05 GB)",
                "Invalid buffer size: 21.39 GB",
                "cudaErrorMemoryAllocation: out of memory",
                "CUDA failed with error out of memory",
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes",
                "std::bad_alloc",
                "cuMemAlloc failed: out of memory",
                "cudaMalloc failed: out of memory",
                "Failed to cudaMalloc 1073741824 bytes on device 0 (error 2 out of memory)",
                "cublas error: the resource allocation failed",
                "cudaError 2: out of memory",
                "CUDA: out of memory",
                "GPU out of memory",
                "Out of GPU memory",
                "RESOURCE_EXHAUSTED: Failed to allocate request for 4.0GiB",
                "[executionContext.cpp::execute::1] Error Code 2: OutOfMemory (no further information)",
                "Attempting to allocate 123 bytes which is greater than the maximum allowed buffer size",
                "out of memory",
                "failed to allocate memory",
                "Could not allocate tensor with 4096 bytes. There is not enough GPU video memory available!",
                "Triton Error [HIP]:  Code: 2, Message: out of memory",
                "ResourceExhaustedError: Fail to alloc memory of 4096000000 size, error code is 12.",
                "[malloc_or_wait] Unable to allocate 4294967296 bytes.",
                "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
                "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
                "Native API failed. Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY)",
                "Exception from src/inference/src/cpp/infer_request.cpp:245:\n[GPU] out of GPU resources",
                "Bad StatusOr access: RESOURCE_EXHAUSTED: Error allocating device buffer",
                "clFlush, error code: -5 CL_OUT_OF_RESOURCES",
                "[defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)",
                "Memory not enough: Device(id:0) memory isn't enough and alloc failed, kernel name: MatMul",
                "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB",
            ],
        ),
        raised_from(RuntimeError("CUDA error: out of memory")),
        ExceptionGroup("", [ValueError(), ExceptionGroup("", [MemoryError()])]),
    ],
    ids=repr,
)
def test_memory_that_is_short_is_known(error: BaseException) -> None:
    """By classes, names and texts."""
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error: out of memory"),
        ValueError("RESOURCE_EXHAUSTED: the quota of the project"),
        KeyError("MemoryError"),
        OSError(28, "no space left"),
        named("ResourceExhaustedError", "quota exceeded"),
        named("ResourceExhausted", "429 out of memory"),
        named(JAX, "INVALID_ARGUMENT: shapes differ", RuntimeError),
        named("OutOfMemoryError", "OOM command not allowed", type("RedisError", (Exception,), {})),
        named("Fail", ORT + "the shapes differ"),
        *map(
            RuntimeError,
            [
                "CUDA error: an illegal memory access was encountered",
                "CUDA error: device-side assert triggered",
                "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
                "the customer has run out of memory cards",
            ],
        ),
        ExceptionGroup("", [ValueError()]),
    ],
    ids=repr,
)
def test_other_errors_are_not(error: BaseException) -> None:
    """Though their texts are near."""
    assert not is_out_of_memory(error)


def test_a_memory_error_raised_from_another_is_known() -> None:
    """What a function is to do with an error that the table lacks."""
    error = MemoryError()
    error.__cause__ = KeyError("a library's own")
    assert is_out_of_memory(error)
