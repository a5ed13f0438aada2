"""One exec for each command, by the Kubernetes client that the Python packages before sandpod use.

Arguments: namespace, Pod, commands one after the other, threads, commands of each thread.
Prints the median time of a command in ms and the rate of all threads in commands per second.
"""

import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from kubernetes import client, config
from kubernetes.stream import stream


def main() -> None:
    """Measure both and print them as JSON."""
    namespace, pod, alone, threads, each = (
        sys.argv[1],
        sys.argv[2],
        *map(int, sys.argv[3:6]),
    )
    config.load_kube_config()

    def execute(api: client.CoreV1Api) -> float:
        begin = time.perf_counter()
        stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            command=["sh", "-c", "true"],
            stdout=True,
            stderr=True,
        )
        return time.perf_counter() - begin

    def worker() -> None:
        # One client for each thread: the package's stream() is not thread-safe.
        api = client.CoreV1Api(client.ApiClient())
        for _ in range(each):
            execute(api)

    api = client.CoreV1Api(client.ApiClient())
    median = statistics.median(execute(api) for _ in range(alone))
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(worker) for _ in range(threads)]:
            done.result()
    rate = threads * each / (time.perf_counter() - begin)
    print(json.dumps({"median_ms": median * 1000, "rate": rate}))


if __name__ == "__main__":
    main()
