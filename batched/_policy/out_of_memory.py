"""Errors that say that memory is short."""

from __future__ import annotations

import re
from contextlib import suppress
from errno import ENOMEM

from batched._policy.chains import chain_of, names_of, texts_of

_ANY = re.compile("")
_FLAGS = re.VERBOSE | re.IGNORECASE
_DEVICE = re.compile(
    r"""
    \b(CUDA|HIP|MPS\ backend|XPU|NPU|MLU|MUSA)\ out\ of\ memory\b |
    \b(CUDA|HIP|XPU|SYCL)\b[^\n]{0,20}\b(error|failure|failed)\b[^\n]{0,80}\bout\ of\ memory\b |
    \b(CUDA\w*|HIP|GPU)\b[^\n]{0,80}\b(failed|status)\b[^\n]{0,20}\bout\ of\ memory\b |
    \b(CUDA|HIP|cudaError\ \d+|hipError\ \d+):?\ out\ of\ memory\b |
    \b(cu|cuda|hip)M(em)?Alloc\w*\b[^\n]{0,60}\bout\ of\ memory\b |
    \b(GPU|device|CUDA|HIP|Metal)\b\W{0,3}(out\ of\ memory|OOM)\b |
    \bout\ of\ (GPU|device|host|video)\ memory\b |
    \bTriton\ Error\ \[\w+\][^\n]*\bout\ of\ memory\b | \bnot\ enough\ GPU\ video\ memory\b |
    \bout\ of\ GPU\ resources\b | \b(PI|UR|ZE)_\w*OUT_OF_(RESOURCES|HOST_MEMORY)\b |
    \bout\ of\ memory\ error\ on\ GPU\b | \bError\ Code\ 2:\ OutOfMemory\b |
    \bgreater\ than\ the\ maximum\ allowed\ buffer\ size\b |
    \b(cublas|cudnn|cusolver|cusparse|cufft)\b[^\n]{0,40}\bresource\ allocation\ failed\b |
    (^\s*|\bBad\ StatusOr\ access:\ )RESOURCE_EXHAUSTED:[^\n]*\b(allocat|memory) |
    \bFailed\ to\ allocate\ \d+\ bytes\b |
    \bfailed\ to\ allocate\ [\d.]+[KMGT]?\b[^\n]*\bfrom\ device\b |
    \bCuda\ Runtime\ \(out\ of\ memory\) | \bmemory\ isn't\ enough\ and\ alloc\ failed\b |
    \bOut\ of\ memory\.\ Requested\ [\d.]+ | \bunable\ to\ allocate\ output\ tensor\b |
    \bNot\ enough\ memory\ resources\ are\ available\b | ^\s*out\ of\ memory\W*$ |
    \b(cuda|hip)Error(MemoryAllocation|OutOfMemory)\b | \bCUDA_ERROR_OUT_OF_MEMORY\b |
    \b(CU|HIP|MIOPEN)\w*_ALLOC(ATION)?_FAILED\b | \brocblas_status_memory_error\b |
    \bCL_(OUT_OF_(HOST_MEMORY|RESOURCES)|MEM_OBJECT_ALLOCATION_FAILURE)\b | Error_?Out_?Of_?Device_?Memory\b |
    \bExceeded\ max\ size\ of\ memory\ (object\ )?allocation\b |
    \bInvalid\ buffer\ size:\ [\d.]+\ ?[KMGT]i?B\b |
    \bFailed\ to\ allocate\ memory\ for\ requested\ buffer\b |
    \bBFCArena::Allocate\w*[^\n]*Failed\ to\ allocate\b |
    \bAvailable\ memory\ of\ \d+\ is\ smaller\ than\ requested\ bytes\b |
    \bOOM\ when\ allocating\b | \bOut\ of\ memory\ (while\ trying\ to\ allocate|allocating)\b |
    \bDefaultCPUAllocator:\ (can't\ allocate|not\ enough)\ memory\b | \bCannot\ allocate\ memory\ \(12\) |
    \bFail\ to\ alloc\ memory\ of\ \d+ | ^\s*failed\ to\ allocate\ memory\W*$ |
    \[malloc\w*\]\ Unable\ to\ allocate\ \d+\ bytes\b | \bPT_DEVMEM\ Allocation\ failed\b |
    \bstd::bad_alloc\b | \bbad\ allocation\b | \bNVRTC_ERROR_OUT_OF_MEMORY\b |
    \bkIOGPUCommandBufferCallbackErrorOutOfMemory\b
    """,
    _FLAGS,
)
_TABLE: list[tuple[str, re.Pattern[str]]] = [
    # torch, CuPy, Ray; DuckDB; PyCUDA and PyOpenCL have a MemoryError of their own
    ("OutOfMemoryError|OutOfMemoryException|MemoryError", _ANY),
    # TensorFlow; other clients say the same of quotas
    ("ResourceExhaustedError", re.compile(r"\bOOM\b|memory|\ballocat", re.IGNORECASE)),
    (
        "InternalError|UnknownError",
        re.compile(rf"\bDst\ tensor\ is\ not\ initialized\b|{_DEVICE.pattern}", _FLAGS),
    ),
    # JAX
    (
        "XlaRuntimeError|JaxRuntimeError",
        re.compile(rf"^\s*RESOURCE_EXHAUSTED|out\ of\ memory|{_DEVICE.pattern}", _FLAGS),
    ),
    ("ValueError", re.compile(r"^\s*RESOURCE_EXHAUSTED:[^\n]*\bmemory\b", re.IGNORECASE)),
    # numba
    ("CudaAPIError|CudaDriverError", _DEVICE),
    # cuda-python, cudarc, llama.cpp, Triton, TVM, MXNet, DGL
    ("CUDAError|cudaError(_t)?|DriverError|LlamaError|TritonError|TVMError|MXNetError|DGLError", _DEVICE),
    # ONNX Runtime; boosted trees
    ("Fail|EPFail|RuntimeException|XGBoostError|LightGBMError|CatBoostError", _DEVICE),
    # OpenCV
    ("error", re.compile(r"\(-4:Insufficient memory\)|\(-217:Gpu API call\) out of memory")),
    # Triton's client, and its models in Python
    ("InferenceServerException|TritonModelException", _DEVICE),
    # torch (older ones, other devices, libraries of CUDA), CuPy, CTranslate2, OpenVINO, whatever is in C++
    ("RuntimeError|SystemError", _DEVICE),
]
"""How libraries say that memory is short: the name of a class, and what a text of the error has."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory is short, or leads to one that does, or a group has one that does."""
    return any(map(_says_so, chain_of(error, into_groups=True)))


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    with suppress(Exception):  # of a class with attributes that are not what they are in Python's
        if isinstance(error, OSError):
            return error.errno == ENOMEM
        names = names_of(error)
        if "RedisError" in names:  # the memory of a server, whatever the size of the batch
            return False
        for classes, text in _TABLE:
            if any(re.fullmatch(classes, name) for name in names) and (
                text is _ANY or any(map(text.search, texts_of(error)))
            ):
                return True
    return False
