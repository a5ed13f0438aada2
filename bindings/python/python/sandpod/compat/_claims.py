"""Finds and creates claims through a caller's `SandboxClient`."""

from __future__ import annotations

import logging
from typing import Any

from sandpod.errors import SandboxError

logger = logging.getLogger("langchain_k8s.sandbox")

CONFLICT = 409
GROUP, VERSION = "extensions.agents.x-k8s.io", "v1beta1"


def find(client: Any, claim_name: str, namespace: str) -> Any:
    """Return the handle of an existing claim, or None if it does not exist. Other errors are raised."""
    helper = getattr(client, "k8s_helper", None)
    # For a missing claim, the client would wait half a minute, and it reports every error as a missing claim.
    if helper is not None and helper.get_sandbox_claim(claim_name, namespace) is None:
        return None
    try:
        return client.get_sandbox(claim_name, namespace=namespace)
    except Exception as error:
        if helper is None and "NotFound" in type(error).__name__:
            return None
        raise


def make(client: Any, claim_name: str, pool: str, *, namespace: str, **options: Any) -> Any:
    """Create the claim, or adopt one created concurrently. A new claim that does not become ready is deleted."""

    def create(*, adopt_existing: bool) -> Any:
        arguments = options | {"namespace": namespace, "claim_name": claim_name, "adopt_existing": adopt_existing}
        return client.create_sandbox(pool, **arguments)

    try:
        return create(adopt_existing=False)
    except Exception as error:
        # Errors of the API server have a status; in this case no claim was created.
        status = getattr(error, "status", None)
        if status == CONFLICT:
            return create(adopt_existing=True)
        if status is None and (helper := getattr(client, "k8s_helper", None)):
            logger.warning("SandboxClaim %s did not become ready and is deleted: %s", claim_name, error)
            helper.delete_sandbox_claim(claim_name, namespace)
        raise


def pool_of(client: Any, template: str, namespace: str) -> str:
    """Return the fullest warm pool of a template; claims refer to pools, not to templates."""
    helper = getattr(client, "k8s_helper", None)
    if helper is None:
        return template
    pools = helper.custom_objects_api.list_namespaced_custom_object(GROUP, VERSION, namespace, "sandboxwarmpools")
    own = [pool for pool in pools["items"] if pool["spec"].get("sandboxTemplateRef", {}).get("name") == template]
    if not own:
        msg = (
            f"No SandboxWarmPool in namespace '{namespace}' has the template '{template}', and claims require a pool. "
            "Create one, with replicas: 0 for no warm Pods, or use "
            "KubernetesSandbox(template_name=…, claim_name=…), which creates one."
        )
        raise SandboxError(msg, "not_found")
    return max(own, key=lambda pool: pool.get("status", {}).get("readyReplicas", 0))["metadata"]["name"]
