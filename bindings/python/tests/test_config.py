from __future__ import annotations

from typing import Any

import pytest

from sandpod import KubernetesProvider, KubernetesProviderConfig, SandboxError, SandboxNotFoundError


def test_the_default_mode_is_that_of_the_packages_it_replaces() -> None:
    assert KubernetesProviderConfig().mode == "agent-sandbox"


def test_an_unknown_mode_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ValueError, match=r"^Unknown mode: 'x'. Must be 'agent-sandbox', 'raw' or 'local'.$"):
        KubernetesProviderConfig(mode="x")


@pytest.mark.parametrize("mode", ["agent-sandbox", "local"])
def test_a_mode_that_is_not_there_yet_says_so(mode: str) -> None:
    with pytest.raises(NotImplementedError, match=f"no mode '{mode}' yet. Use mode='raw'"):
        KubernetesProvider(KubernetesProviderConfig(mode=mode))


@pytest.mark.parametrize(
    "fields",
    [
        {"warm_pool_size": 1},
        {"namespace_per_sandbox": True},
        {"setup_script": "true"},
        {"pod_template_overrides": {"hostNetwork": True}},
        {"template_name": "python"},
        {"image_pull_policy": "Sometimes"},
        {"run_as_user": 0},
    ],
)
def test_what_this_version_can_not_do_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        KubernetesProvider(KubernetesProviderConfig(mode="raw", **fields))


def test_only_what_was_set_is_sent_on_and_a_default_that_was_set_counts() -> None:
    assert KubernetesProviderConfig(mode="raw").explicit() == {}
    config = KubernetesProviderConfig(mode="raw", image="busybox", pod_ttl_seconds=3600)
    assert config.explicit() == {"image": "busybox", "pod_ttl_seconds": 3600}
    assert KubernetesProviderConfig().pod_ttl_seconds == 3600


def test_making_a_provider_reaches_no_cluster() -> None:
    KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig="/nowhere"))


def test_a_call_without_a_cluster_says_what_is_wrong() -> None:
    provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig="/nowhere"))
    with pytest.raises(SandboxError, match="/nowhere"):
        provider.get_or_create()


def test_arguments_that_nobody_knows_are_refused_by_name(provider: KubernetesProvider) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        provider.get_or_create(snapshot="x")


def test_an_id_that_can_not_be_one_is_refused(provider: KubernetesProvider) -> None:
    with pytest.raises(ValueError, match="Not An Id"):
        provider.reconnect("Not An Id")


def test_an_error_keeps_what_led_to_it() -> None:
    cause = OSError("no route")
    error = SandboxNotFoundError("There is no sandbox 'x'.")
    error.__cause__ = cause
    assert isinstance(error, SandboxError)
    assert error.original_exc is cause
    assert error.code == "not_found"
