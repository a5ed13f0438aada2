"""Drop-in modules: change the import line, keep the rest.

Each has the names, arguments and results of another package, and maps them onto this one's core.

| instead of | write |
| --- | --- |
| `from langchain_kubernetes import …` | `from sandpod.compat.langchain_kubernetes import …` |
| `from langchain_k8s import …` | `from sandpod.compat.langchain_k8s import …` |
| `from langchain_kubernetes_agent_sandbox …` | `from sandpod.compat.langchain_kubernetes_agent_sandbox …` |
| `from langchain_agent_sandbox import …` | `from sandpod.compat.langchain_agent_sandbox import …` |
"""
