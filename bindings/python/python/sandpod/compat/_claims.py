"""Claims that are found and made through somebody's own `SandboxClient`."""

from __future__ import annotations

import logging
from typing import Any

from sandpod.errors import SandboxError

logger = logging.getLogger("langchain_k8s.sandbox")

CONFLICT = 409
GROUP, VERSION = "extensions.agents.x-k8s.io", "v1beta1"


def find(client: Any, claim_name: str, namespace: str) -> Any:
    """The handle of a claim that is there. Only its absence is an absence: other trouble is the caller's to see."""
    helper = getattr(client, "k8s_helper", None)
    # Asked for a claim that is not there, the client itself waits for half a minute, and takes every trouble for that.
    if helper is not None and helper.get_sandbox_claim(claim_name, namespace) is None:
        return None
    try:
        return client.get_sandbox(claim_name, namespace=namespace)
    except Exception as error:
        if helper is None and "NotFound" in type(error).__name__:
            return None
        raise


def make(client: Any, claim_name: str, pool: str, *, namespace: str, **wanted: Any) -> Any:
    """Make the claim, or join whoever makes it now; what is made here and does not become ready is taken back."""

    def create(*, adopt_existing: bool) -> Any:
        wishes = wanted | {"namespace": namespace, "claim_name": claim_name, "adopt_existing": adopt_existing}
        return client.create_sandbox(pool, **wishes)

    try:
        return create(adopt_existing=False)
    except Exception as error:
        # The API server's own refusals have a status: then nothing was made.
        status = getattr(error, "status", None)
        if status == CONFLICT:
            return create(adopt_existing=True)
        if status is None and (helper := getattr(client, "k8s_helper", None)):
            logger.warning("SandboxClaim %s did not become ready and is deleted: %s", claim_name, error)
            helper.delete_sandbox_claim(claim_name, namespace)
        raise


def pool_of(client: Any, template: str, namespace: str) -> str:
    """The pool of a template that has most ready: claims are taken from pools, which know their templates."""
    helper = getattr(client, "k8s_helper", None)
    if helper is None:
        return template
    pools = helper.custom_objects_api.list_namespaced_custom_object(GROUP, VERSION, namespace, "sandboxwarmpools")
    own = [pool for pool in pools["items"] if pool["spec"].get("sandboxTemplateRef", {}).get("name") == template]
    if not own:
        msg = (
            f"No SandboxWarmPool in namespace '{namespace}' has the template '{template}', and claims are taken from "
            "pools. Create one, with replicas: 0 if nothing is to be kept warm, or use "
            "KubernetesSandbox(template_name=…, claim_name=…), which does so itself."
        )
        raise SandboxError(msg, "not_found")
    return max(own, key=lambda pool: pool.get("status", {}).get("readyReplicas", 0))["metadata"]["name"]
