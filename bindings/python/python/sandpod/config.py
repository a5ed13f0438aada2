"""How a provider makes its sandboxes."""

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
    """A number that says what a default is without setting it: the same number given by a caller does count."""


class _UnsetText(str):
    """The same for a text."""

    __slots__ = ()


@dataclass
class KubernetesProviderConfig:
    """The settings of a `KubernetesProvider`.

    Example:
        >>> from sandpod import KubernetesProviderConfig
        >>> config = KubernetesProviderConfig(mode="raw", namespace="agents", image="python:3.12-slim")
    """

    mode: str = "agent-sandbox"
    """Where sandboxes live: `agent-sandbox`, `raw` (plain Pods) or `local` (this machine)."""
    namespace: str = "default"
    startup_timeout_seconds: int = 120
    unschedulable_grace_seconds: int = field(default=10, kw_only=True)
    """Seconds that no node may fit before a start is given up; raise it where nodes are added on demand."""
    default_exec_timeout: int = 1800
    """Seconds that a command may take when its call doesn't say; 0 is for ever."""
    naming: str = field(default="sandpod", kw_only=True)
    """Who knows the names of Pods, namespaces and what is noted on them: `sandpod`, or also `langchain-kubernetes`."""
    label_prefix: str = "sandpod.dev/"
    """What the name of every label of yours begins with in the cluster: a domain and a slash, or nothing."""
    default_labels: dict[str, str] | None = None
    ttl_seconds: int | None = None
    ttl_idle_seconds: int | None = None
    kubeconfig: str | None = field(default=None, kw_only=True)
    """The file that says which cluster and as whom; None: as kubectl finds it, else the Pod we run in."""
    context: str | None = field(default=None, kw_only=True)
    """The kubeconfig's context; None: its current one."""
    allow_insecure_api_server: bool = field(default=False, kw_only=True)
    """Accepts an API server with an unverified certificate, and plain HTTP beyond this machine or with credentials."""

    # agent-sandbox
    template_name: str | None = None
    """The SandboxTemplate that sandboxes are made from: by the pool of it that has most ready, or else cold."""
    connection_mode: str = _UnsetText("tunnel")
    """The only way to the guest: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`; unset: the first that works."""
    gateway_name: str | None = None
    gateway_namespace: str = "default"
    api_url: str | None = None
    """The sandbox router's URL."""
    server_port: int = 8888
    """The port on which sandboxes answer behind the router."""
    warm_pool_name: str | None = None
    """The SandboxWarmPool that sandboxes are taken from."""
    extra_headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of every request to the router."""
    client_cert: str | None = None
    """A PEM file with the certificate that the router is shown, and `client_key` one with its key."""
    client_key: str | None = None
    ca_cert: str | None = None
    """A PEM file with the certificates that the router's is checked by; None: the system's."""
    router_token: str | None = field(default=None, repr=False)
    """Opens the router, as a bearer token; or `router_token_file`, which is read anew for each connection."""
    router_token_file: str | None = None
    router_namespace: str | None = None
    """The router's namespace; None: `agent-sandbox-system`, then `default`."""
    router_service: str = "sandbox-router-svc"
    guest_token_file: str | None = None
    """A file with the secret whose hash the template's guests start with: it opens them over the network."""
    pod_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Labels of the Pod, beside the template's; agent-sandbox takes those below `sandbox.users.io/` alone."""
    pod_annotations: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    volume_claim_templates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Volumes of each sandbox's own, over the template's of the same name."""
    kube_api_url: str | None = None
    """The API server's URL, when neither a kubeconfig nor the Pod that we run in says it."""
    kube_token: str | None = field(default=None, repr=False)

    # raw
    image: str = "python:3.12-slim"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: list[str] = field(default_factory=list[str])
    workdir: str = "/workspace"
    command: list[str] = field(default_factory=lambda: ["sleep", "infinity"])
    env: dict[str, str] = field(default_factory=dict[str, str])
    """For every command; it is in no object of the cluster."""
    env_refs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Variables whose values lie in the cluster, as a container's `env` with `valueFrom`."""
    env_from: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Secrets and ConfigMaps whose every key is a variable, as a container's `envFrom`."""
    cpu_request: str = "100m"
    cpu_limit: str = "1000m"
    memory_request: str = "256Mi"
    memory_limit: str = "1Gi"
    ephemeral_storage_request: str = field(default="50Mi", kw_only=True)
    """Disk space that the node must have. Without a request Kubernetes takes the limit for it."""
    ephemeral_storage_limit: str = "5Gi"
    block_network: bool = True
    mesh_opt_out: bool = field(default=True, kw_only=True)
    """Tells Istio, Linkerd, Kuma and Consul to put no sidecar into the Pod."""
    run_as_user: int | None = 1000
    run_as_group: int | None = 1000
    seccomp_profile: str = "RuntimeDefault"
    seccomp_localhost_profile: str | None = field(default=None, kw_only=True)
    """The node's file for `Localhost`."""
    namespace_per_sandbox: bool = False
    """A namespace with a quota for each sandbox; it needs `deploy/rbac/raw-namespaces.yaml`."""
    namespace_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    pod_ttl_seconds: int = _Unset(3600)
    """The older name of `ttl_seconds`; only counts when it is set."""
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
    """`OnFailure`: a guest that crashes starts again and keeps the files. `Never`: the Pod is lost then."""
    pod_template_overrides: dict[str, Any] | None = None
    """Merged into the Pod's spec as kubectl's strategic patches are; or a template with `metadata` and `spec`."""
    allow_insecure_overrides: bool = field(default=False, kw_only=True)
    """Takes what weakens the sandbox, in overrides, volumes and init containers."""
    extra_annotations: dict[str, str] = field(default_factory=dict[str, str])
    setup_script: str | None = None
    """A shell script that runs in every new place before it is handed out; if it fails there is no sandbox."""
    runtime_class: str | None = field(default=None, kw_only=True)
    read_only_root: bool = field(default=False, kw_only=True)
    writable_dirs: list[str] | None = field(default=None, kw_only=True)
    """Directories that commands can write to; None: those that Deep Agents uses, such as /workspace and /tmp."""
    guest_image: str | None = field(default=None, kw_only=True)
    """An image that brings the guest; where it can't be had, or with None, the guest comes from ConfigMaps."""
    arch: str = field(default="amd64", kw_only=True)

    # policy and audit
    policy: dict[str, Any] | None = field(default=None, kw_only=True)
    """What callers may do in sandboxes: docs/policy.md."""
    audit: Callable[[dict[str, Any]], None] | str | PathLike[str] | None = field(default=None, kw_only=True)
    """Who hears of every operation, before and after: a function, called by a thread of its own, or a file."""
    audit_file: str | None = field(default=None, kw_only=True)
    """A file that every operation is told to, line by line, in a chain of hashes."""
    otlp_endpoint: str | None = field(default=None, kw_only=True)
    """An OpenTelemetry collector that every operation is told to, such as `http://localhost:4318`."""
    audit_commands: str = field(default="full", kw_only=True)
    """What is told of commands: `full`, or `hash` for their SHA-256."""
    strict_audit: bool = field(default=False, kw_only=True)
    """What can't be told to the audit is not done; otherwise it is logged and done."""

    def __post_init__(self) -> None:
        """Refuse a mode that does not exist."""
        if self.mode not in MODES:
            msg = f"Unknown mode: {self.mode!r}. Must be 'agent-sandbox', 'raw' or 'local'."
            raise ValueError(msg)

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None, *, mode: str = "agent-sandbox", **options: Any) -> Self:
        """Read what isn't given from `SANDPOD_*` variables and a TOML file; docs/configuration.md says which.

        Example:
            >>> from sandpod import KubernetesProviderConfig
            >>> config = KubernetesProviderConfig.load(mode="raw", namespace="agents")
            >>> config.namespace
            'agents'
        """
        loaded = json.loads(_native.load_options(path, json.dumps(options)))
        return cls(mode=mode, **loaded)

    def explicit(self) -> dict[str, Any]:
        """What differs from the defaults, apart from the mode and a function that hears of all."""
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
