//! The watch of sandboxes, by an API server that goes away and comes back.

use std::sync::Arc;

use sandpod_router::{Lookup, Registry, SandboxRef, watch};
use tokio::time::timeout;

use crate::api::FakeApi;
use crate::stage::SOON;

fn lookup(registry: &Registry, name: &str) -> Lookup {
    registry.find(&SandboxRef::new("agents", name))
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn known_sandboxes_stay_while_the_api_server_is_away_and_changes_follow() {
    let (api, registry) = (FakeApi::new(), Arc::new(Registry::default()));
    api.add_sandbox("first", "10.0.0.1");
    let following = registry.clone();
    let client = api.client();
    let follower = tokio::spawn(async move { watch::follow(client, None, following).await });
    let found = |name: &str| matches!(lookup(&registry, name), Lookup::Found(_));

    until("the list", || found("first") && registry.is_synced()).await;
    assert!(matches!(lookup(&registry, "other"), Lookup::Missing));
    api.add_sandbox("second", "10.0.0.2");
    until("an event", || found("second")).await;
    let Lookup::Found(second) = lookup(&registry, "second") else { panic!("it was found") };

    api.set_away(true);
    until("the loss", || !registry.is_current()).await;
    assert!(found("first") && found("second"), "known sandboxes stay");
    assert!(matches!(lookup(&registry, "other"), Lookup::Unknown));
    api.remove_sandbox("second");
    api.add_sandbox("third", "10.0.0.3");

    api.set_away(false);
    until("a new list", || found("third") && registry.is_current()).await;
    assert!(matches!(lookup(&registry, "second"), Lookup::Missing));
    assert!(second.gone.is_cancelled(), "its requests end");
    let claim = SandboxRef::new("agents", "claim-third");
    assert_eq!(registry.of_claim(&claim), Some(SandboxRef::new("agents", "third")));
    follower.abort();
}
