#!/usr/bin/env bash
# Creates a kind cluster with agent-sandbox's controller, its router, a template and a warm pool. kindnet enforces the
# NetworkPolicies from kind 0.24 on.
#
# Needs kind, kubectl and a container engine. kind-teardown.sh deletes the cluster. Variables:
#
#   KIND_CLUSTER            name of the cluster (langchain-k8s)
#   AGENT_SANDBOX_VERSION   release of agent-sandbox (v0.5.6, the one that sandpod's tests use)
set -euo pipefail

cluster=${KIND_CLUSTER:-langchain-k8s}
version=${AGENT_SANDBOX_VERSION:-v0.5.6}
examples=$(cd "$(dirname "$0")/../examples/k8s" && pwd)
release=https://github.com/kubernetes-sigs/agent-sandbox/releases/download/$version/sandbox-with-extensions.yaml

for program in kind kubectl; do
  if ! command -v "$program" >/dev/null; then
    echo "error: $program is not installed" >&2
    exit 1
  fi
done

kube() {
  kubectl --context "kind-$cluster" "$@"
}

if kind get clusters | grep --quiet --line-regexp --fixed-strings "$cluster"; then
  echo "The kind cluster $cluster exists already."
else
  kind create cluster --name "$cluster" --wait 120s
fi

# Server-side, because the CRDs are too large for the annotation of a client-side apply.
kube apply --server-side --filename "$release"
kube rollout status deployment/agent-sandbox-controller --namespace agent-sandbox-system --timeout 180s
kube apply --server-side --filename "$examples/sandbox-router.yaml"
kube apply --server-side --filename "$examples/sandbox-router-rbac.yaml"
kube apply --server-side --filename "$examples/sandbox-template.yaml"
kube apply --server-side --filename "$examples/warm-pool.yaml"
kube rollout status deployment/sandbox-router --namespace agent-sandbox-system --timeout 180s

cat <<EOF

The cluster is ready. Check it and use it:

  sandpod doctor --mode agent-sandbox --template python-sandbox-template --namespace default
  sandpod run --mode agent-sandbox --template python-sandbox-template --namespace default 'echo hello'
EOF
