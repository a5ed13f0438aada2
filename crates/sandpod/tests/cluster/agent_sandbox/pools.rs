//! Claims from warm pools.

use std::collections::BTreeSet;
use std::time::Duration;

use sandpod::{AgentSandboxConfig, Provider, SandboxRequest, Status};
use sandpod_kube::agent_sandbox::SandboxWarmPool;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::ListParams;
use sandpod_testbed::calls::Calls;
use tokio::time::{sleep, timeout};

use super::setup::{config, fill_pool, finish, named, namespace, provider};
use crate::setup::{execute, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_a_pool_gives_warm_sandboxes_with_an_environment_of_their_own() {
    let namespace = namespace().await;
    fill_pool(&namespace, "pool", 2).await;
    let provider = provider(&namespace, config(&namespace)).await;
    let status = provider.pool_status().await.unwrap();
    assert_eq!((status.available, status.active, status.total, status.target), (2, 0, 2, 2));
    let request =
        SandboxRequest { env: [("KEY".to_owned(), "of this claim".to_owned())].into(), ..named("a") };

    let handle = soon("claiming", provider.get_or_create(request)).await.unwrap();

    assert!(handle.pod.contains("/pool-"), "{} is not of the pool", handle.pod);
    assert_eq!(execute(&handle, "echo $KEY").await, "of this claim\n");
    assert_eq!(provider.info("a").await.unwrap().status, Status::Running);
    assert_eq!(provider.pool_status().await.unwrap().active, 1);
    let pools = namespace.api::<SandboxWarmPool>().list(&ListParams::default()).await.unwrap();
    assert_eq!(pools.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["pool"], "we made one");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_pool_is_used_even_if_it_is_empty() {
    let namespace = namespace().await;
    fill_pool(&namespace, "empty", 0).await;
    fill_pool(&namespace, "full", 1).await;
    let mut config = config(&namespace);
    (config.template_name, config.warm_pool_name) = (None, Some("empty".to_owned()));
    let provider = provider(&namespace, config).await;

    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();

    assert!(handle.pod.ends_with("/a"), "{} is not cold", handle.pod);
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_of_a_pool_of_ten_each_get_their_own_pod() {
    let namespace = namespace().await;
    fill_pool(&namespace, "pool", 10).await;
    let config = AgentSandboxConfig { startup_timeout_seconds: 300, ..config(&namespace) };
    let provider = provider(&namespace, config).await;

    let claiming = (0..50).map(|number| {
        let provider = provider.clone();
        async move {
            let id = format!("a-{number}");
            let handle =
                provider.get_or_create(named(&id)).await.unwrap_or_else(|error| panic!("{id}: {error}"));
            execute(&handle, &format!("echo {id} >> mine; cat mine")).await;
            let mine = execute(&handle, "cat mine").await;
            assert_eq!(mine, format!("{id}\n"), "another sandbox used this Pod");
            provider.delete(&id, true).await.expect("it is deleted");
            handle.pod
        }
    });
    let claiming = futures::future::join_all(claiming);
    let pods = timeout(Duration::from_secs(400), claiming).await.expect("claiming hangs");

    assert_eq!(pods.iter().collect::<BTreeSet<_>>().len(), 50);
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_to_the_next_warm_pod_is_open_before_the_second_claim() {
    const EXEC: &str = "GET pods/exec";
    let namespace = namespace().await;
    fill_pool(&namespace, "pool", 2).await;
    let (client, calls) = Calls::of(namespace.agent_sandbox().await);
    let provider = Provider::agent_sandbox_with_client(client, config(&namespace)).unwrap();

    soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    // Its own stream, that to the remaining Pod, and that to its replacement.
    soon("opening ahead", async {
        while calls.count(EXEC) < 3 {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let opened = calls.count(EXEC);
    let handle = soon("claiming", provider.get_or_create(named("b"))).await.unwrap();

    // Counted at once, before the stream to the next Pod is opened.
    assert_eq!(calls.count(EXEC), opened, "it was opened once more");
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    assert!(handle.pod.contains("/pool-"), "{} is not of the pool", handle.pod);
    for id in ["a", "b"] {
        provider.delete(id, true).await.unwrap();
    }
    finish(namespace, &provider).await;
}
