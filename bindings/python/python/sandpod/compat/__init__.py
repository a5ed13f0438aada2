"""Drop-in replacements: only the import line changes.

Each module has the names, arguments and results of another package, implemented with this package's core.

| instead of | write |
| --- | --- |
| `from langchain_kubernetes import …` | `from sandpod.compat.langchain_kubernetes import …` |
| `from langchain_k8s import …` | `from sandpod.compat.langchain_k8s import …` |
| `from langchain_kubernetes_agent_sandbox …` | `from sandpod.compat.langchain_kubernetes_agent_sandbox …` |
| `from langchain_agent_sandbox import …` | `from sandpod.compat.langchain_agent_sandbox import …` |
"""
