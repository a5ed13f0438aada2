"""LangChain's own suite for sandboxes: on this machine, in Pods, and on agent-sandbox with our guest and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from objects import router_url
from sandpod import KubernetesProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deepagents.backends.protocol import SandboxBackendProtocol

    from sandpod import KubernetesProviderConfig, KubernetesSandbox

RELATIVE = "the suite wants relative paths; Deep Agents 0.7 wants absolute ones, or deny rules are bypassed"
DIRECTORIES = "the suite wants directories; Deep Agents 0.7 wants regular files only"
OVERWRITE = "the suite wants an existing file to be refused; Deep Agents 0.7 wants it overwritten"
NO_PYTHON = "it starts python, which the image does not have"


def _expect_failure(name: str, reason: str) -> Callable[..., None]:
    """Return an override of a standard test that is expected to fail."""
    standard = getattr(SandboxIntegrationTests, name)

    def test(self: SandboxIntegrationTests, sandbox_backend: SandboxBackendProtocol, sandbox_test_root: str) -> None:
        standard(self, sandbox_backend, sandbox_test_root)

    test.__name__ = name
    return pytest.mark.xfail(reason=reason, strict=True)(test)


def _of(config: KubernetesProviderConfig) -> Iterator[KubernetesSandbox]:
    """A sandbox for one class of tests."""
    provider = KubernetesProvider(config)
    sandbox = provider.get_or_create()
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


class _Standard(SandboxIntegrationTests):
    test_glob = _expect_failure("test_glob", RELATIVE)
    test_glob_basic_pattern = _expect_failure("test_glob_basic_pattern", RELATIVE)
    test_glob_hidden_files_explicitly = _expect_failure("test_glob_hidden_files_explicitly", RELATIVE)
    test_glob_with_character_class = _expect_failure("test_glob_with_character_class", RELATIVE)
    test_glob_with_question_mark = _expect_failure("test_glob_with_question_mark", RELATIVE)
    test_glob_with_directories = _expect_failure("test_glob_with_directories", DIRECTORIES)
    test_write_existing_file_fails = _expect_failure("test_write_existing_file_fails", OVERWRITE)


class TestOnThisMachine(_Standard):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
        for sandbox in _of(local_config()):
            # The suite requires `python`, and Debian has only `python3`.
            assert sandbox.execute("mkdir -p ~/.local/bin; ln -s $(which python3) ~/.local/bin/python").exit_code == 0
            yield sandbox


class _InAnImage(_Standard):
    image: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, raw_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
        yield from _of(raw_config(image=cls.image))


@pytest.mark.cluster
class TestOfAgentSandbox(_Standard):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, agent_sandbox_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
        yield from _of(agent_sandbox_config())


@pytest.mark.cluster
class TestOfTheStockRuntimeByExec(_Standard):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, stock_runtime_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
        yield from _of(stock_runtime_config(connection_mode="exec"))


@pytest.mark.cluster
class TestOfTheStockRuntimeByRouter(_Standard):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, stock_runtime_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
        yield from _of(stock_runtime_config(connection_mode="direct", api_url=router_url()))


@pytest.mark.cluster
class TestInAnImageWithPython(_InAnImage):
    image = "sandpod.test/python:1"


@pytest.mark.cluster
class TestInAnImageWithoutPython(_InAnImage):
    image = "sandpod.test/busybox:1"

    @pytest.mark.xfail(reason=NO_PYTHON, strict=True)
    def test_execute_large_stdout_payload(self, sandbox_backend: SandboxBackendProtocol) -> None:
        super().test_execute_large_stdout_payload(sandbox_backend)

    @pytest.mark.xfail(reason=NO_PYTHON, strict=True)
    async def test_aexecute_large_stdout_payload(self, sandbox_backend: SandboxBackendProtocol) -> None:
        await super().test_aexecute_large_stdout_payload(sandbox_backend)
