"""The cost of the import, and the logs of the core."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import sandpod
from sandpod import KubernetesProvider, KubernetesProviderConfig, SandboxError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SilentServer


def test_importing_loads_no_langchain_and_little_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import sandpod; from sandpod import SandboxError; "
        "print(*[name for name in set(sys.modules) - before if name.split('.')[0] not in sys.stdlib_module_names])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert sorted(loaded) == ["sandpod", "sandpod.errors"]


def test_a4_the_extras_of_other_packages_exist_and_require_nothing() -> None:
    modes = {"agent-sandbox", "all", "raw"}
    assert modes <= set(importlib.metadata.metadata("sandpod").get_all("Provides-Extra") or [])
    needed = importlib.metadata.requires("sandpod") or []
    assert needed, "the other extras need something"
    assert [need for need in needed for mode in modes if f"extra == '{mode}'" in need.replace('"', "'")] == []


def test_the_package_has_all_exported_names_and_no_others() -> None:
    assert dir(sandpod) == sandpod.__all__
    assert all(getattr(sandpod, name) for name in sandpod.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sandpod.Nothing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]


def test_logs_of_the_core_are_forwarded_to_python(kubeconfig: Path, server: SilentServer) -> None:
    records: list[logging.LogRecord] = []
    received = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)
            if "warm pool" in record.getMessage():
                received.set()

    listener = Listener()
    logger = logging.getLogger("sandpod")
    logger.addHandler(listener)
    try:
        server.refuse.set()
        config = KubernetesProviderConfig(mode="raw", kubeconfig=str(kubeconfig), warm_pool_size=1)
        provider = KubernetesProvider(config)
        with pytest.raises(SandboxError):
            provider.get_or_create()
        assert received.wait(60)
        provider.close()
    finally:
        logger.removeHandler(listener)
    assert all(record.name.startswith("sandpod.") for record in records)
    assert all(record.levelno == logging.WARNING for record in records)
