//! The suite on this machine: guests in this process and in namespaces of their own.

#![expect(clippy::unwrap_used, reason = "a suite that can't begin fails")]

mod transport;

use std::process::ExitCode;

use futures::FutureExt as _;
use sandpod::{GuestProgram, LocalConfig, Provider, SandboxRequest};
use sandpod_client::Binding;
use sandpod_conformance::{Kernel, OpenedSandbox, Target};
use sandpod_guest::Guest;
use transport::Transport;

/// With this argument the program runs as the guest of a local sandbox.
const GUEST: &str = "guest-of-a-local-sandbox";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(GUEST) {
        return sandpod_guest::local::run();
    }
    let here = Kernel::ALL
        .iter()
        .flat_map(|kernel| Transport::ALL.map(|transport| in_this_process(transport, *kernel)));
    sandpod_conformance::run(here.chain([local()]).collect())
}

/// Returns a target whose guest is in this process.
fn in_this_process(transport: Transport, kernel: Kernel) -> Target {
    Target {
        transport: transport.name(),
        place: "this machine",
        user: "the caller",
        kernel,
        has_shell: true,
        loses_streams: true,
        missing: &[],
        open: Box::new(move || open_in_this_process(transport, kernel).boxed()),
    }
}

async fn open_in_this_process(transport: Transport, kernel: Kernel) -> OpenedSandbox {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("work").to_str().unwrap().to_owned();
    std::fs::create_dir(&dir).unwrap();
    let guest = Guest::new(sandpod_guest::Options {
        token_sha256: Some(transport::token_hash()),
        disabled_kernel_features: kernel.without().unwrap_or_default().parse().unwrap(),
        ..sandpod_guest::Options::new(directory.path().join("state"))
    });
    let (sandbox, lose_streams) = transport.reach(guest.unwrap()).await;
    let env = [("HOME".to_owned(), dir.clone())].into();
    let binding =
        Binding { claim: "conformance".to_owned(), env, working_dir: dir.clone(), ..Binding::default() };
    sandbox.bind(binding).await.unwrap();
    let end = async move { drop(directory) };
    OpenedSandbox { sandbox, home: dir.clone(), dir, lose_streams, end: Box::new(|| end.boxed()) }
}

/// Returns the target of local sandboxes, whose streams are pairs of Unix sockets.
fn local() -> Target {
    Target {
        transport: "Unix socket",
        place: "local sandbox",
        user: "1000",
        kernel: Kernel::Full,
        has_shell: true,
        loses_streams: false,
        missing: &[],
        open: Box::new(|| open_local().boxed()),
    }
}

async fn open_local() -> OpenedSandbox {
    let state = tempfile::tempdir().unwrap();
    let program = GuestProgram { path: std::env::current_exe().unwrap(), args: vec![GUEST.to_owned()] };
    let provider = Provider::local(&LocalConfig {
        program: Some(program),
        state_dir: Some(state.path().to_owned()),
        ends_with_process: true,
        ..LocalConfig::default()
    });
    let provider = provider.unwrap();
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    let (sandbox, id) = (handle.sandbox, handle.id);
    let end = || {
        async move {
            provider.delete(id.as_str(), true).await.unwrap();
            drop(state);
        }
        .boxed()
    };
    OpenedSandbox {
        sandbox: sandbox.unguarded().clone(),
        home: "/home/sandbox".to_owned(),
        dir: "/workspace".to_owned(),
        lose_streams: Box::new(|| ()),
        end: Box::new(end),
    }
}
