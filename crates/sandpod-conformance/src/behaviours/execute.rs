//! Commands that run to their end.

use std::time::Duration;

use sandpod_client::{Command, Error, ErrorCode, ExecuteOptions};

use super::{Case, NO_SHELL, behaviours, code, text, within};

behaviours! {
    SHELL both_outputs_are_combined_in_the_order_written,
    SHELL a_signal_ends_a_command_with_exit_code_128_plus_its_number,
    SHELL a_timeout_keeps_the_output_and_is_reported_in_the_last_line,
    SHELL a_timeout_kills_all_that_the_command_started,
    SHELL a_background_child_survives_and_does_not_delay_the_result,
    SHELL output_beyond_the_limit_is_dropped_and_the_command_continues,
    SHELL output_is_cut_between_characters,
    SHELL a_command_has_the_variables_of_the_sandbox_and_its_own,
    SHELL a_command_runs_in_its_working_directory,
    SHELL a_command_has_an_empty_input,
    SHELL a_command_line_of_a_megabyte_runs,
    SHELL an_argv_reaches_its_program_unchanged,
    SHELL the_user_needs_no_entry_in_passwd,
    SHELL many_commands_run_at_once,
    SHELL a_dropped_command_is_killed,
    SHELL a_cancelled_command_is_killed_and_returns_its_output,
    NOTHING a_missing_program_is_named,
    NOTHING a_missing_working_directory_is_named,
    NOTHING invalid_commands_are_refused_before_they_start,
    NOTHING a_line_without_a_shell_is_a_clear_error,
}

async fn both_outputs_are_combined_in_the_order_written(case: Case<'_>) {
    let line = "for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 3";
    assert_eq!(case.run(line).await, ("out1\nerr1\nout2\nerr2\nout3\nerr3\n".to_owned(), Some(3)));
}

async fn a_signal_ends_a_command_with_exit_code_128_plus_its_number(case: Case<'_>) {
    assert_eq!(case.run("kill -KILL $$").await.1, Some(137));
    assert_eq!(case.run("kill -TERM $$").await.1, Some(143));
}

async fn a_timeout_keeps_the_output_and_is_reported_in_the_last_line(case: Case<'_>) {
    let executed = case.execute("printf partial; sleep 60", within(Duration::from_secs(1))).await;
    assert_eq!(text(&executed), "partial\nCommand timed out after 1s");
    assert_eq!((executed.exit_code, executed.timed_out), (Some(124), true));
}

async fn a_timeout_kills_all_that_the_command_started(case: Case<'_>) {
    let line =
        "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > .pid; mv .pid pid; exec sleep 600' > /dev/null 2>&1 &)
                while ! [ -e pid ]; do sleep 0.02; done; sleep 600";
    let executed = case.execute(line, within(Duration::from_secs(2))).await;
    assert!(executed.timed_out, "{executed:?}");
    let pid = case.content(&case.path("pid")).await;
    assert!(case.is_gone(&pid).await, "a child lives on");
}

async fn a_background_child_survives_and_does_not_delay_the_result(case: Case<'_>) {
    let (output, code) = case.run("sleep 600 & echo $!").await;
    assert_eq!(code, Some(0));
    assert_eq!(case.run(&format!("kill {}", output.trim())).await.1, Some(0), "it does not live on");
}

async fn output_beyond_the_limit_is_dropped_and_the_command_continues(case: Case<'_>) {
    let options = ExecuteOptions { max_output_bytes: Some(1000), ..ExecuteOptions::default() };
    let executed = case.execute("head -c 300000 /dev/zero | tr '\\0' x; exit 4", options).await;
    assert_eq!((text(&executed), executed.truncated), ("x".repeat(1000), true));
    assert_eq!(executed.exit_code, Some(4));
}

async fn output_is_cut_between_characters(case: Case<'_>) {
    let options = ExecuteOptions { max_output_bytes: Some(1000), ..ExecuteOptions::default() };
    let executed = case
        .execute("printf x; for i in 1 2 3 4 5 6 7 8; do printf '%0100d' 0 | sed s/0/é/g; done", options)
        .await;
    assert!(executed.truncated);
    assert_eq!(text(&executed).len(), 999);
}

async fn a_command_has_the_variables_of_the_sandbox_and_its_own(case: Case<'_>) {
    let env = [("OWN".to_owned(), "a b\n$c".to_owned())].into();
    let executed =
        case.execute("echo \"$HOME|$OWN\"", ExecuteOptions { env, ..ExecuteOptions::default() }).await;
    assert_eq!(text(&executed), format!("{}|a b\n$c\n", case.place.home));
}

async fn a_command_runs_in_its_working_directory(case: Case<'_>) {
    assert_eq!(case.run("pwd").await.0, format!("{}\n", case.dir));
    let executed = case.sandbox.execute("pwd", ExecuteOptions::default()).await.unwrap();
    let parent = case.dir.rsplit_once('/').unwrap().0;
    assert_eq!(text(&executed), format!("{parent}\n"));
}

async fn a_command_has_an_empty_input(case: Case<'_>) {
    assert_eq!(case.run("cat; echo end").await.0, "end\n");
}

async fn a_command_line_of_a_megabyte_runs(case: Case<'_>) {
    let line = format!(": {}\necho $0; cat; exit 7\n", "x".repeat(1 << 20));
    assert_eq!(case.run(&line).await, ("/bin/sh\n".to_owned(), Some(7)));
}

async fn an_argv_reaches_its_program_unchanged(case: Case<'_>) {
    let words = ["printf", "%s|", "a b", "$HOME", "*", ""].map(str::to_owned).to_vec();
    let executed = case.sandbox.execute(words, ExecuteOptions::default()).await.unwrap();
    assert_eq!(text(&executed), "a b|$HOME|*||");
}

async fn the_user_needs_no_entry_in_passwd(case: Case<'_>) {
    let (output, code) = case.run("id -u && cd && touch .own && rm .own").await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.trim().parse::<u32>().is_ok(), "{output}");
}

async fn many_commands_run_at_once(case: Case<'_>) {
    let commands = (0..16).map(|number| {
        let case = case.clone();
        async move { (number, case.run(&format!("echo {number}")).await.0) }
    });
    for (number, output) in futures::future::join_all(commands).await {
        assert_eq!(output, format!("{number}\n"));
    }
}

async fn a_dropped_command_is_killed(case: Case<'_>) {
    let command = case.run("echo $$ > .pid; mv .pid pid; exec sleep 600");
    let begun = async {
        while case.sandbox.stat(&case.path("pid"), false).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = command => panic!("{ended:?}"),
        () = begun => {}
    }
    let pid = case.content(&case.path("pid")).await;
    assert!(case.is_gone(&pid).await, "the command still runs");
}

async fn a_cancelled_command_is_killed_and_returns_its_output(case: Case<'_>) {
    let command =
        format!("echo partial; echo $$ > {0}.pid; mv {0}.pid {0}; exec sleep 600", case.path("pid"));
    let begun = async {
        while case.sandbox.stat(&case.path("pid"), false).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let executed = Box::pin(case.sandbox.execute_until(command, ExecuteOptions::default(), begun));
    let executed = executed.await.unwrap();
    assert!(text(&executed).starts_with("partial\n"), "{executed:?}");
    assert_eq!((executed.exit_code, executed.timed_out), (Some(124), true));
    let pid = case.content(&case.path("pid")).await;
    assert!(case.is_gone(&pid).await, "the command still runs");
}

async fn a_missing_program_is_named(case: Case<'_>) {
    let words = vec!["/no/such/program".to_owned()];
    let executed = case.sandbox.execute(words, ExecuteOptions::default()).await.unwrap();
    assert_eq!(text(&executed), "the command was not started: there is no program /no/such/program");
    assert_eq!(executed.exit_code, Some(125));
}

async fn a_missing_working_directory_is_named(case: Case<'_>) {
    let options = ExecuteOptions { working_dir: Some(case.path("missing")), ..ExecuteOptions::default() };
    let executed = case.sandbox.execute("true", options).await.unwrap();
    let sentence = format!("the working directory {} does not exist", case.path("missing"));
    assert!(text(&executed).contains(&sentence), "{executed:?}");
    assert_eq!(executed.exit_code, Some(125));
}

async fn invalid_commands_are_refused_before_they_start(case: Case<'_>) {
    for command in [Command::Argv(Vec::new()), Command::Line("a\0b".to_owned())] {
        let refused = case.sandbox.execute(command, ExecuteOptions::default()).await;
        assert_eq!(code(refused), ErrorCode::InvalidArgument);
    }
    let huge = " ".repeat(5 << 20);
    let refused = case.sandbox.execute(huge, ExecuteOptions::default()).await;
    assert!(matches!(refused, Err(Error::Failure(failure)) if failure.code() == ErrorCode::TooLarge));
}

async fn a_line_without_a_shell_is_a_clear_error(case: Case<'_>) {
    let executed = case.execute("true", ExecuteOptions::default()).await;
    match executed.exit_code {
        Some(0) => assert_eq!(text(&executed), ""),
        code => assert_eq!((text(&executed).as_str(), code), (NO_SHELL, Some(125))),
    }
}
