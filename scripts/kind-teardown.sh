#!/usr/bin/env bash
# Deletes the kind cluster of kind-setup.sh. KIND_CLUSTER names another one than langchain-k8s.
set -euo pipefail

exec kind delete cluster --name "${KIND_CLUSTER:-langchain-k8s}"
