"""The configuration of a provider."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from os import fspath
from typing import TYPE_CHECKING, Any, Self

from sandpod import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

MODES = ("agent-sandbox", "raw", "local")


class _Unset(int):
    """A default that is distinguishable from the same number given by a caller."""


class _UnsetText(str):
    """A default that is distinguishable from the same text given by a caller."""

    __slots__ = ()


@dataclass
class KubernetesProviderConfig:
    """The settings of a `KubernetesProvider`.

    Example:
        >>> from sandpod import KubernetesProviderConfig
        >>> config = KubernetesProviderConfig(mode="raw", namespace="agents", image="python:3.12-slim")
    """

    mode: str = "agent-sandbox"
    """Backend of sandboxes: `agent-sandbox`, `raw` (plain Pods) or `local` (this machine)."""
    namespace: str = "default"
    startup_timeout_seconds: int = 120
    unschedulable_grace_seconds: int = field(default=10, kw_only=True)
    """Seconds to wait while a Pod is unschedulable; increase it where nodes are added on demand."""
    default_exec_timeout: int = 1800
    """Timeout of commands without their own, in seconds. 0: no timeout."""
    naming: str = field(default="sandpod", kw_only=True)
    """Naming scheme of Pods, namespaces and annotations: `sandpod`, or `langchain-kubernetes` for compatibility."""
    label_prefix: str = "sandpod.dev/"
    """Prefix of user labels in the cluster: a domain and a slash, or empty."""
    default_labels: dict[str, str] | None = None
    ttl_seconds: int | None = None
    ttl_idle_seconds: int | None = None
    kubeconfig: str | None = field(default=None, kw_only=True)
    """Path of the kubeconfig. None: that of kubectl, else the ServiceAccount of this Pod."""
    context: str | None = field(default=None, kw_only=True)
    """Context of the kubeconfig. None: the current one."""
    allow_insecure_api_server: bool = field(default=False, kw_only=True)
    """Permit an API server with an unverified certificate, or plain HTTP to another machine or with credentials."""

    # agent-sandbox
    template_name: str | None = None
    """SandboxTemplate of new sandboxes. They are claimed from its fullest warm pool, or started cold."""
    connection_mode: str = _UnsetText("tunnel")
    """Connection to the guest: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`. Unset: the first that works."""
    gateway_name: str | None = None
    gateway_namespace: str = "default"
    api_url: str | None = None
    """URL of the sandbox router."""
    server_port: int = 8888
    """Port of sandboxes behind the router."""
    warm_pool_name: str | None = None
    """SandboxWarmPool that sandboxes are claimed from."""
    extra_headers: dict[str, str] = field(default_factory=dict[str, str])
    """Additional headers of requests to the router."""
    client_cert: str | None = None
    """PEM file with the client certificate for the router; its key is in `client_key`."""
    client_key: str | None = None
    ca_cert: str | None = None
    """PEM file with the CA certificates for the router. None: those of the system."""
    router_token: str | None = field(default=None, repr=False)
    """Bearer token for the router. `router_token_file` is read again for each connection."""
    router_token_file: str | None = None
    router_namespace: str | None = None
    """Namespace of the router. None: `agent-sandbox-system`, then `default`."""
    router_service: str = "sandbox-router-svc"
    guest_token_file: str | None = None
    """File with the token of the template's guests, required for connections over the network."""
    pod_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Additional labels of the Pod; agent-sandbox accepts only labels with the prefix `sandbox.users.io/`."""
    pod_annotations: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    volume_claim_templates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Volume claims of each sandbox; they replace those of the template with the same name."""
    kube_api_url: str | None = None
    """URL of the API server, where neither a kubeconfig nor a ServiceAccount provides one."""
    kube_token: str | None = field(default=None, repr=False)

    # raw
    image: str = "python:3.12-slim"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: list[str] = field(default_factory=list[str])
    workdir: str = "/workspace"
    command: list[str] = field(default_factory=lambda: ["sleep", "infinity"])
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Environment of every command; it is stored in no Kubernetes object."""
    env_refs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Environment variables from the cluster, as in a container's `env` with `valueFrom`."""
    env_from: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Secrets and ConfigMaps whose keys become environment variables, as in a container's `envFrom`."""
    cpu_request: str = "100m"
    cpu_limit: str = "1000m"
    memory_request: str = "256Mi"
    memory_limit: str = "1Gi"
    ephemeral_storage_request: str = field(default="50Mi", kw_only=True)
    """Request for ephemeral storage. Without one, Kubernetes uses the limit as the request."""
    ephemeral_storage_limit: str = "5Gi"
    block_network: bool = True
    mesh_opt_out: bool = field(default=True, kw_only=True)
    """Disable sidecar injection by Istio, Linkerd, Kuma and Consul."""
    run_as_user: int | None = 1000
    run_as_group: int | None = 1000
    seccomp_profile: str = "RuntimeDefault"
    seccomp_localhost_profile: str | None = field(default=None, kw_only=True)
    """Profile file on the node, for the profile `Localhost`."""
    namespace_per_sandbox: bool = False
    """Create a namespace with a quota for each sandbox; requires `deploy/rbac/raw-namespaces.yaml`."""
    namespace_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    pod_ttl_seconds: int = _Unset(3600)
    """Older name of `ttl_seconds`; ignored unless it is set."""
    warm_pool_size: int = 0
    service_account: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict[str, str])
    tolerations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    affinity: dict[str, Any] | None = field(default=None, kw_only=True)
    priority_class: str | None = field(default=None, kw_only=True)
    volumes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    volume_mounts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    init_containers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    restart_policy: str = field(default="OnFailure", kw_only=True)
    """`OnFailure`: a crashed guest restarts and keeps the files. `Never`: the Pod is lost."""
    pod_template_overrides: dict[str, Any] | None = None
    """Strategic merge patch of the Pod spec, or of a Pod template with `metadata` and `spec`."""
    allow_insecure_overrides: bool = field(default=False, kw_only=True)
    """Permit overrides, volumes and init containers that weaken isolation."""
    extra_annotations: dict[str, str] = field(default_factory=dict[str, str])
    setup_script: str | None = None
    """Shell script that runs in every new sandbox first; if it fails, the creation fails."""
    runtime_class: str | None = field(default=None, kw_only=True)
    read_only_root: bool = field(default=False, kw_only=True)
    writable_dirs: list[str] | None = field(default=None, kw_only=True)
    """Directories that commands can write to. None: those of Deep Agents, such as /workspace and /tmp."""
    guest_image: str | None = field(default=None, kw_only=True)
    """Image that contains the guest. None, or if the image is unavailable: ConfigMaps."""
    arch: str = field(default="amd64", kw_only=True)

    # policy and audit
    policy: dict[str, Any] | None = field(default=None, kw_only=True)
    """Policy of sandboxes, see docs/policy.md."""
    audit: Callable[[dict[str, Any]], None] | str | PathLike[str] | None = field(default=None, kw_only=True)
    """Receiver of audit events, before and after each operation: a function, called on a separate thread, or a file."""
    audit_file: str | None = field(default=None, kw_only=True)
    """File for audit events, one JSON object per line, in a hash chain."""
    otlp_endpoint: str | None = field(default=None, kw_only=True)
    """OpenTelemetry collector for audit events, such as `http://localhost:4318`."""
    audit_commands: str = field(default="full", kw_only=True)
    """Commands in audit events: `full`, or `hash` for their SHA-256."""
    strict_audit: bool = field(default=False, kw_only=True)
    """Fail operations whose audit event cannot be recorded; otherwise log the failure and continue."""

    def __post_init__(self) -> None:
        """Reject an unknown mode."""
        if self.mode not in MODES:
            msg = f"Unknown mode: {self.mode!r}. Must be 'agent-sandbox', 'raw' or 'local'."
            raise ValueError(msg)

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None, *, mode: str = "agent-sandbox", **options: Any) -> Self:
        """Resolve each option from: arguments, `SANDPOD_*` variables, a TOML file, the default.

        See docs/configuration.md.

        Example:
            >>> from sandpod import KubernetesProviderConfig
            >>> config = KubernetesProviderConfig.load(mode="raw", namespace="agents")
            >>> config.namespace
            'agents'
        """
        loaded = json.loads(_native.load_options(path, json.dumps(options)))
        return cls(mode=mode, **loaded)

    def explicit(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, without the mode and an audit function."""
        defaults = KubernetesProviderConfig(mode=self.mode)
        options = {
            name: value
            for name, value in ((known.name, getattr(self, known.name)) for known in fields(self))
            if (type(value), value) != (type(getattr(defaults, name)), getattr(defaults, name))
        }
        audit = options.pop("audit", None)
        if audit is not None and not callable(audit):
            if self.audit_file is not None:
                msg = "audit and audit_file both name a file. Set one of them."
                raise ValueError(msg)
            options["audit_file"] = fspath(audit)
        return options
