//! Local sandboxes through the library. The test binary is also the guest of its sandboxes: a guest must start before any
//! thread does, so the binary has its own `main` and its tests are listed there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod audit;
mod lifecycle;
mod logs;
mod losses;
mod mounts;
mod policy;
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A trial for each test, which runs on a runtime of its own.
macro_rules! trials {
    ($($module:ident { $($test:ident,)* })*) => {
        vec![$($(
            Trial::test(concat!(stringify!($module), "::", stringify!($test)), || {
                tokio::runtime::Runtime::new().unwrap().block_on($module::$test());
                Ok(())
            }),
        )*)*]
    };
}

fn main() -> ExitCode {
    if std::env::args_os().skip(1).eq([support::GUEST]) {
        return sandpod_guest::local::run();
    }
    let trials = trials! {
        audit {
            g7_every_operation_is_audited_before_and_after,
            g7_a_failing_strict_audit_blocks_operations_and_a_lenient_one_does_not,
            an_audit_file_contains_the_session_and_a_valid_hash_chain,
            logs_above_debug_contain_no_command_content_or_environment,
            metrics_count_operations_their_duration_and_streams,
        }
        lifecycle {
            a_sandbox_outlives_its_creator_and_is_found_by_name,
            concurrent_requests_for_one_name_get_one_sandbox,
            an_expired_sandbox_ends_and_cleanup_deletes_it,
            i7_cleanup_deletes_idle_sandboxes_within_seconds_and_no_others,
            a_sandbox_with_very_deep_directories_is_deleted,
            a_deep_directory_left_by_a_killed_delete_is_removed,
            a_killed_guest_restarts_with_the_same_files,
            a_sandbox_with_a_damaged_record_is_listed_and_can_be_deleted,
            extend_prolongs_a_sandbox,
            programs_in_local_bin_are_on_the_path,
            an_idle_sandbox_ends_and_a_used_one_stays,
            sandboxes_are_listed_by_label_and_counted,
            a_cancelled_creation_does_not_disturb_another_of_the_same_name,
            an_interrupted_delete_is_finished_by_cleanup_or_by_the_next_creation,
            a_handle_of_a_deleted_sandbox_never_reaches_its_successor,
            commands_cannot_keep_an_expired_sandbox_alive,
            an_expired_sandbox_is_recreated_with_the_new_request,
            a_recreated_sandbox_uses_the_current_network_option,
            cleanup_names_a_sandbox_that_cannot_be_deleted_and_deletes_the_others,
            a_cancelled_creation_leaves_nothing,
            host_network_reaches_tcp_ports_but_not_abstract_sockets,
            info_names_the_enforced_limits_and_cgroup_limits_hold,
        }
        losses {
            the_first_call_of_every_kind_reports_lost_files_and_does_nothing,
            a_first_command_reports_lost_files_beside_its_output,
            lost_files_are_reported_until_a_caller_receives_the_report,
            a_sandbox_created_instead_of_a_missing_one_reports_that,
        }
        mounts {
            a_mounted_link_is_resolved_when_the_sandbox_is_created,
        }
        policy {
            g1_allowed_prefixes_limit_writes_and_edits_but_not_uploads_or_commands,
            g1_a_link_out_of_an_allowed_prefix_is_refused,
            swapping_a_link_during_calls_never_lets_a_write_escape,
            a_link_in_place_of_an_allowed_prefix_is_refused,
            g2_g3_a_virtual_root_confines_every_file_call_and_links,
            g3_prefixes_outside_the_root_refuse_writes_and_nothing_else,
            g5_a_narrowed_root_confines_every_file_call,
            g5_nested_roots_may_be_given_as_virtual_or_real_paths,
            g5_a_nested_root_keeps_the_refusals_of_the_outer_policy,
            g4_a_permission_error_that_the_policy_allows_is_logged,
            g5_paths_in_results_are_relative_to_root_dir,
            g6_denied_prefixes_and_commands_are_refused_but_reads_are_not,
            every_rule_of_a_policy_is_bound_for_later_handles,
            reads_are_checked_when_the_policy_includes_them,
            the_kernel_enforces_allowed_prefixes_and_network_for_commands,
            a_second_handle_with_a_policy_restricts_its_own_commands_only,
            a_policy_that_cannot_be_enforced_creates_no_sandbox,
        }
    };
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
