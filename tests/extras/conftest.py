"""Fixtures of what is optional: a page of metrics, the web service, a local Ray."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from batched.prometheus import Collector
from tests.kit.gate import PATIENCE_S
from tests.kit.ports import free_port
from tests.kit.script import ROOT
from tests.kit.service import UVICORN, WEB_PROCESSES, Service


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What Ray's processes are to know, a folder for their files among it."""
    folder = tempfile.mkdtemp(prefix="ray")  # not pytest's: a socket's path must be short
    yield {
        "PYTHONPATH": str(ROOT),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "disabled",  # else it writes a token into the home folder
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    """A local Ray with Serve, and where its HTTP is; its end leaves no process behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        import ray
        from ray import serve

        address = free_port()
        try:
            ray.init(
                "local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=100 * 2**20,
            )
            serve.start(http_options={"port": address}, logging_config={"log_level": "ERROR"})
            yield f"http://127.0.0.1:{address}"
        finally:
            started = psutil.Process().children(recursive=True)
            serve.shutdown()
            ray.shutdown()
        assert started
        assert not psutil.wait_procs(started, timeout=PATIENCE_S)[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Service]]:
    """Start a service that ends with the test."""
    pytest.importorskip("httpx")
    started: list[Service] = []

    def start_service(app: str, server: list[str], model: str | None = None) -> Service:
        service = Service(tmp_path, app, server, model)
        started.append(service)
        return service

    yield start_service
    for service in started:
        service.end()


@pytest.fixture
def one_process(start: Callable[[str, list[str]], Service]) -> Service:
    """A service with a function that can be held and watched, in a process of its own."""
    return start("gated_service:app", UVICORN)


@pytest.fixture(params=["one process", "the model in a process of its own"])
def service(request: pytest.FixtureRequest, start: Callable[..., Service]) -> Service:
    """A service with a function that can be held and watched."""
    if request.param == "one process":
        return start("gated_service:app", UVICORN)
    return start("gated_service:app", WEB_PROCESSES, "gated_service:embed")


@pytest.fixture
def name() -> str:
    """A name that no batcher of another test has, which may not have been collected yet."""
    return f"name {next(numbers)}"


numbers = count()


@pytest.fixture
def registry() -> CollectorRegistry:
    """A page of its own for each test."""
    registry = CollectorRegistry()
    Collector(registry)
    return registry
