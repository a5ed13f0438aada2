from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sandpod import KubernetesProvider, KubernetesProviderConfig, SandboxError, SandboxNotFoundError, _native


def test_the_default_mode_is_that_of_the_packages_it_replaces() -> None:
    assert KubernetesProviderConfig().mode == "agent-sandbox"


def test_an_unknown_mode_is_rejected_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"^Unknown mode: 'x'. Must be 'agent-sandbox', 'raw' or 'local'.$"):
        KubernetesProviderConfig(mode="x")


def test_the_native_provider_rejects_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match=r"^Unknown mode: 'docker'. Must be 'agent-sandbox', 'raw' or 'local'.$"):
        _native.Provider("docker", "{}", ".", None)


def test_agent_sandbox_mode_requires_a_template() -> None:
    expected = (
        "template_name is required when mode='agent-sandbox'. Set KubernetesProviderConfig(template_name='my-template')"
        " or use mode='raw' for direct Pod management."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        KubernetesProvider(KubernetesProviderConfig())
    KubernetesProvider(KubernetesProviderConfig(template_name="python"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"connection_mode": "gateway"}, "connection_mode='gateway' requires gateway_name to be set in Kubernetes"),
        ({"connection_mode": "direct"}, "connection_mode='direct' requires api_url to be set in Kubernetes"),
        ({"connection_mode": "pigeon"}, "connection_mode"),
        ({"image": "busybox"}, "image is not an option of mode 'agent-sandbox'"),
        ({"client_cert": "/cert"}, "client_key"),
    ],
)
def test_agent_sandbox_mode_names_missing_and_unsupported_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        KubernetesProvider(KubernetesProviderConfig(template_name="python", **options))


def test_the_default_connection_mode_differs_from_an_explicit_one() -> None:
    assert KubernetesProviderConfig().connection_mode == "tunnel"
    assert "connection_mode" not in KubernetesProviderConfig().explicit()
    assert KubernetesProviderConfig(connection_mode="tunnel").explicit() == {"connection_mode": "tunnel"}


@pytest.mark.parametrize(
    "options",
    [
        {"warm_pool_size": 1, "namespace_per_sandbox": True},
        {"pod_template_overrides": []},
        {"namespace_labels": {"team": "blue"}},
        {"template_name": "python"},
        {"image_pull_policy": "Sometimes"},
        {"run_as_user": 0},
    ],
)
def test_unsupported_options_are_rejected_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        KubernetesProvider(KubernetesProviderConfig(mode="raw", **options))


@pytest.mark.parametrize(
    "options",
    [
        {"namespace_per_sandbox": True, "namespace_labels": {"team": "blue"}},
        {"setup_script": "pip install --user requests"},
        {"pod_template_overrides": {"dnsPolicy": "Default"}},
        {"pod_template_overrides": {"hostNetwork": True}, "allow_insecure_overrides": True},
        {"env_from": [{"secretRef": {"name": "token"}}], "affinity": {"nodeAffinity": {}}},
        {"restart_policy": "Never", "priority_class": "low", "mesh_opt_out": False},
        {"run_as_user": None, "run_as_group": None},
    ],
)
def test_every_option_of_raw_mode_is_accepted(options: dict[str, Any]) -> None:
    KubernetesProvider(KubernetesProviderConfig(mode="raw", **options))


def test_overrides_that_weaken_isolation_are_rejected_with_their_path() -> None:
    config = KubernetesProviderConfig(mode="raw", pod_template_overrides={"hostNetwork": True})
    with pytest.raises(ValueError, match=r"spec\.hostNetwork is true.*allow_insecure_overrides"):
        KubernetesProvider(config)


def test_the_options_and_defaults_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (?:`(.*?)`|none) \| ", page, flags=re.MULTILINE)
    documented = {name: json.loads(default) if default else None for name, default in rows}
    config = KubernetesProviderConfig(mode="raw")
    ours = {known.name: getattr(config, known.name) for known in fields(config) if known.name not in ("mode", "audit")}
    assert ours.keys() == documented.keys()
    # The list has no defaults for these: two apply only when they are set, the third is None there.
    for name in ("connection_mode", "pod_ttl_seconds", "writable_dirs"):
        del ours[name], documented[name]
    assert {name: value or None for name, value in ours.items()} == {
        name: value or None for name, value in documented.items()
    }


def test_load_prefers_arguments_to_variables_and_variables_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('image = "file"\nworkdir = "/file"\nmemory_limit = "2Gi"\n[node_selector]\ndisk = "ssd"\n')
    monkeypatch.setenv("SANDPOD_IMAGE", "variable")
    monkeypatch.setenv("SANDPOD_WORKDIR", "/variable")

    config = KubernetesProviderConfig.load(file, mode="raw", image="argument")

    found = (config.image, config.workdir, config.memory_limit, config.node_selector, config.cpu_limit)
    assert found == ("argument", "/variable", "2Gi", {"disk": "ssd"}, "1000m")
    assert KubernetesProviderConfig(mode="raw").image == "python:3.12-slim", "the constructor reads nothing"


def test_load_rejects_an_unknown_option_with_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'imgae'.*Did you mean 'image'"):
        KubernetesProviderConfig.load(mode="raw", imgae="x")
    file = tmp_path / "config.toml"
    file.write_text("name_space = 'agents'\n")
    with pytest.raises(ValueError, match=r"config\.toml has 'name_space'.*Did you mean 'namespace'"):
        KubernetesProviderConfig.load(file, mode="raw")
    monkeypatch.setenv("SANDPOD_IMGAE", "x")
    with pytest.raises(ValueError, match=r"'SANDPOD_IMGAE'.*Did you mean 'SANDPOD_IMAGE'"):
        KubernetesProviderConfig.load(mode="raw")


def test_only_explicit_options_are_sent_including_explicit_defaults() -> None:
    assert KubernetesProviderConfig(mode="raw").explicit() == {}
    config = KubernetesProviderConfig(mode="raw", image="busybox", pod_ttl_seconds=3600)
    assert config.explicit() == {"image": "busybox", "pod_ttl_seconds": 3600}
    assert KubernetesProviderConfig().pod_ttl_seconds == 3600


def test_the_constructor_of_a_provider_does_not_connect() -> None:
    KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig="/nowhere"))


def test_a_call_without_a_cluster_raises_with_the_reason() -> None:
    provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig="/nowhere"))
    with pytest.raises(SandboxError, match="/nowhere"):
        provider.get_or_create()


def test_unknown_arguments_are_rejected_by_name(provider: KubernetesProvider) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        provider.get_or_create(snapshot="x")


def test_an_invalid_id_is_rejected(provider: KubernetesProvider) -> None:
    with pytest.raises(ValueError, match="Not An Id"):
        provider.reconnect("Not An Id")


def test_an_error_keeps_its_cause() -> None:
    cause = OSError("no route")
    error = SandboxNotFoundError("There is no sandbox 'x'.")
    error.__cause__ = cause
    assert isinstance(error, SandboxError)
    assert error.original_exc is cause
    assert error.code == "not_found"
