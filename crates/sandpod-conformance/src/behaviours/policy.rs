//! Policies of commands, and what the guest reports about them.

use sandpod_client::{ErrorCode, ExecuteOptions, Executed, Network, Policy};

use super::{Case, behaviours, code, text};
use crate::Kernel;

behaviours! {
    NOTHING the_guest_reports_what_its_kernel_enforces,
    NOTHING stats_report_the_resource_usage,
    SHELL a_command_is_restricted_to_its_roots_or_does_not_run,
    SHELL a_command_without_network_has_no_sockets_or_does_not_run,
}

async fn the_guest_reports_what_its_kernel_enforces(case: Case<'_>) {
    let enforced = case.sandbox.info().await.unwrap().enforced;
    assert_eq!(case.sandbox.stats().await.unwrap().enforced, enforced);
    if case.kernel == Kernel::Old {
        assert!(!enforced.files && !enforced.kernel_paths, "{enforced:?}");
    }
}

async fn stats_report_the_resource_usage(case: Case<'_>) {
    let first = case.sandbox.stats().await.unwrap();
    let second = case.sandbox.stats().await.unwrap();
    assert!(second.uptime >= first.uptime);
    assert_eq!(second.memory_limit_bytes, first.memory_limit_bytes);
    assert!(first.memory_limit_bytes.is_none() || first.memory_bytes.is_some(), "{first:?}");
}

fn under(case: &Case<'_>, policy: Policy) -> ExecuteOptions {
    let policy = Some(Policy { required: true, ..policy });
    ExecuteOptions { working_dir: Some(case.dir.clone()), policy, ..ExecuteOptions::default() }
}

async fn a_command_is_restricted_to_its_roots_or_does_not_run(case: Case<'_>) {
    case.write("in/file", "").await;
    let options = under(&case, Policy { writable: vec![case.path("in")], ..Policy::default() });
    let line = "echo x > in/new; echo x > out; cat in/new";
    let executed = case.sandbox.execute(line, options).await.unwrap();
    if case.sandbox.info().await.unwrap().enforced.files {
        let output = text(&executed);
        assert!(output.contains("ermission denied") && output.ends_with("\nx\n"), "{output}");
    } else {
        assert_refused(&executed);
    }
    assert_eq!(code(case.sandbox.stat(&case.path("out"), false).await), ErrorCode::NotFound);
}

async fn a_command_without_network_has_no_sockets_or_does_not_run(case: Case<'_>) {
    let options = under(&case, Policy { network: Some(Network::None), ..Policy::default() });
    let executed = case.sandbox.execute("echo runs", options).await.unwrap();
    if case.sandbox.info().await.unwrap().enforced.network {
        assert_eq!(text(&executed), "runs\n");
    } else {
        assert_refused(&executed);
    }
}

/// Asserts that a command was not started because the kernel cannot enforce its policy.
fn assert_refused(executed: &Executed) {
    assert_eq!(executed.exit_code, Some(125));
    assert!(text(executed).contains("and the policy is required"), "{executed:?}");
}
