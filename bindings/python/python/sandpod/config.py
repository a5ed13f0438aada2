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
    """Namespace of the sandboxes."""
    startup_timeout_seconds: int = 120
    """Seconds in which a sandbox must be ready."""
    unschedulable_grace_seconds: int = field(default=10, kw_only=True)
    """Seconds after which the start of an unschedulable Pod fails. Raise it on clusters that add nodes on demand."""
    default_exec_timeout: int = 1800
    """Seconds after which a command is killed, for calls without a timeout of their own. 0: no timeout."""
    naming: str = field(default="sandpod", kw_only=True)
    """Naming scheme for Pods, namespaces and labels: `sandpod`, `langchain-kubernetes` or `langchain-kubernetes-js`."""
    label_prefix: str = "sandpod.dev/"
    """Prefix of users' labels in the cluster: a domain with a slash, or an empty text."""
    default_labels: dict[str, str] | None = None
    """Labels of every sandbox, each with `label_prefix` before its key."""
    ttl_seconds: int | None = None
    """Seconds after creation at which the sandbox is deleted. Default: never."""
    ttl_idle_seconds: int | None = None
    """Seconds without a call after which the sandbox is deleted. Default: never."""
    kubeconfig: str | None = field(default=None, kw_only=True)
    """Path of the kubeconfig. Default: `$KUBECONFIG`, then `~/.kube/config`, then the `ServiceAccount` of the Pod."""
    context: str | None = field(default=None, kw_only=True)
    """Context of the kubeconfig. Default: its current context."""
    allow_insecure_api_server: bool = field(default=False, kw_only=True)
    """Permit an API server without a verified certificate, and plain HTTP to other machines or with credentials. Each
    client logs a warning.
    """

    # agent-sandbox
    template_name: str | None = None
    """`SandboxTemplate` of the sandboxes. Its warm pool with the most ready Pods is used, if it has one."""
    connection_mode: str = _UnsetText("tunnel")
    """How the guest is reached: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`. Default: the first of these that
    works.
    """
    gateway_name: str | None = None
    """Gateway of the sandbox router."""
    gateway_namespace: str = "default"
    """Namespace of the Gateway."""
    api_url: str | None = None
    """URL of the sandbox router."""
    server_port: int = 8888
    """Port of the sandboxes behind the router."""
    warm_pool_name: str | None = None
    """`SandboxWarmPool` of the sandboxes."""
    extra_headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of every request to the router."""
    client_cert: str | None = None
    """PEM file with the client certificate for the router."""
    client_key: str | None = None
    """PEM file with the key of `client_cert`."""
    ca_cert: str | None = None
    """PEM file with the certificate authorities of the router. Default: those of the system."""
    router_token: str | None = field(default=None, repr=False)
    """Bearer token for the router."""
    router_token_file: str | None = None
    """File with the bearer token for the router, which is read for each connection."""
    router_namespace: str | None = None
    """Namespace of the router. Default: `agent-sandbox-system`, then `default`."""
    router_service: str = "sandbox-router-svc"
    """Service of the router."""
    guest_token_file: str | None = None
    """File with the token that opens guests over the network; their templates hold its hash. Default: the file in
    `SANDPOD_GUEST_TOKEN_FILE`, then the Secret `sandpod-guest-token`, then a token set through exec.
    """
    pod_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Labels of the Pod, beside the template's. agent-sandbox accepts only those below `sandbox.users.io/`."""
    pod_annotations: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Annotations of the Pod, beside the template's."""
    volume_claim_templates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Volumes of each sandbox, as a claim's `volumeClaimTemplates`. They replace the template's volumes of the same
    name.
    """
    kube_api_url: str | None = None
    """URL of the API server, if neither a kubeconfig nor the Pod's `ServiceAccount` names it."""
    kube_token: str | None = field(default=None, repr=False)
    """Token for `kube_api_url`. Default: the token of the Pod's `ServiceAccount`, if there is one."""

    # raw
    image: str = "python:3.12-slim"
    """Image of the sandbox."""
    image_pull_policy: str = "IfNotPresent"
    """When the image is pulled: `Always`, `IfNotPresent` or `Never`."""
    image_pull_secrets: list[str] = field(default_factory=list[str])
    """Names of the Secrets to pull the image with."""
    workdir: str = "/workspace"
    """Working directory of commands."""
    command: list[str] = field(default_factory=lambda: ["sleep", "infinity"])
    """Command that runs beside the guest. Default: none; `sleep infinity` stands for it."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables of every command. They are sent to the guest and are in no object of the cluster."""
    env_refs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Environment variables with values from the cluster, as a container's `env` with `valueFrom`."""
    env_from: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], kw_only=True)
    """Secrets and `ConfigMaps` whose keys are environment variables, as a container's `envFrom`."""
    cpu_request: str = "100m"
    """CPU request."""
    cpu_limit: str = "1000m"
    """CPU limit."""
    memory_request: str = "256Mi"
    """Memory request."""
    memory_limit: str = "1Gi"
    """Memory limit."""
    ephemeral_storage_request: str = field(default="50Mi", kw_only=True)
    """Ephemeral storage request. Without one, Kubernetes requests the limit."""
    ephemeral_storage_limit: str = "5Gi"
    """Ephemeral storage limit."""
    block_network: bool = True
    """Deny all network traffic. The deny-all `NetworkPolicy` is created before the Pod; if that fails, no Pod is
    created.
    """
    mesh_opt_out: bool = field(default=True, kw_only=True)
    """Keep the sidecars of Istio, Linkerd, Kuma and Consul out of the Pod."""
    run_as_user: int | None = 1000
    """User id of the container. None: chosen by the cluster or the image, as OpenShift requires."""
    run_as_group: int | None = 1000
    """Group id of the container. None: chosen by the cluster or the image."""
    seccomp_profile: str = "RuntimeDefault"
    """Seccomp profile: `RuntimeDefault` or `Localhost`."""
    seccomp_localhost_profile: str | None = field(default=None, kw_only=True)
    """Path of the profile on the node, for `Localhost`."""
    namespace_per_sandbox: bool = False
    """Create a namespace with a `ResourceQuota`, `sandpod-<id>`, for each sandbox. Requires
    deploy/rbac/raw-namespaces.yaml.
    """
    namespace_labels: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)
    """Labels of the namespaces of `namespace_per_sandbox`, which enforce Pod Security `restricted` unless a label here
    differs.
    """
    pod_ttl_seconds: int = _Unset(3600)
    """Older name of `ttl_seconds`, used only without it."""
    warm_pool_size: int = 0
    """Number of pre-started Pods to keep ready. Processes with the same configuration share them."""
    service_account: str | None = None
    """`ServiceAccount` of the Pod. Its token is never mounted."""
    node_selector: dict[str, str] = field(default_factory=dict[str, str])
    """Labels that a node must have."""
    tolerations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Tolerations, as in a Pod."""
    affinity: dict[str, Any] | None = field(default=None, kw_only=True)
    """Affinity, as in a Pod."""
    priority_class: str | None = field(default=None, kw_only=True)
    """Priority class of the Pod."""
    volumes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Additional volumes, as in a Pod."""
    volume_mounts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Mounts of the additional volumes, as in a container."""
    init_containers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Init containers, as in a Pod. Security settings that they leave out are as strict as the sandbox's."""
    restart_policy: str = field(default="OnFailure", kw_only=True)
    """`OnFailure`: a crashed guest restarts and keeps the files. `Never`: a crash loses the Pod."""
    pod_template_overrides: dict[str, Any] | None = None
    """Strategic merge patch of the Pod's spec, or a template with `metadata` and `spec`."""
    allow_insecure_overrides: bool = field(default=False, kw_only=True)
    """Permit overrides, volumes and init containers that weaken isolation."""
    extra_annotations: dict[str, str] = field(default_factory=dict[str, str])
    """Annotations of the Pod."""
    setup_script: str | None = None
    """Shell script that runs in every new sandbox before it is handed out. If it fails, creation fails."""
    runtime_class: str | None = field(default=None, kw_only=True)
    """Runtime class of the Pod, for example one of gVisor."""
    read_only_root: bool = field(default=False, kw_only=True)
    """Mount the root file system read-only; only `writable_dirs` are writable."""
    writable_dirs: list[str] | None = field(default=None, kw_only=True)
    """Directories in which every user of the sandbox can write. Default: those that Deep Agents and common images use.
    """
    guest_image: str | None = field(default=None, kw_only=True)
    """Image that contains the guest, as `cargo xtask guest-image` builds it. Without one, or if it cannot be pulled,
    the guest is mounted from `ConfigMaps`.
    """
    arch: str = field(default="amd64", kw_only=True)
    """CPU architecture of the nodes: `amd64` or `arm64`."""

    # policy and audit
    policy: dict[str, Any] | None = field(default=None, kw_only=True)
    """Limits of paths, commands and network; see docs/policy.md."""
    audit: Callable[[dict[str, Any]], None] | str | PathLike[str] | None = field(default=None, kw_only=True)
    """Receiver of audit events, before and after each operation: a function, called on a separate thread, or a file."""
    audit_file: str | None = field(default=None, kw_only=True)
    """File of the audit log, with one event per line in a hash chain."""
    otlp_endpoint: str | None = field(default=None, kw_only=True)
    """URL of an OpenTelemetry collector that receives the audit events, such as `http://localhost:4318`."""
    audit_commands: str = field(default="full", kw_only=True)
    """Command text in audit events: `full`, or `hash` for its SHA-256."""
    strict_audit: bool = field(default=False, kw_only=True)
    """Reject operations whose audit event cannot be written. Otherwise the failure is logged."""

    def __post_init__(self) -> None:
        """Reject an unknown mode."""
        _native.check_mode(self.mode)

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
