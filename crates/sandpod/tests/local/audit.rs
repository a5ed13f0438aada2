//! Audits, logs and metrics of local sandboxes. A test's name begins with the row of docs/acceptance.md that it proves.

use std::sync::{Arc, Mutex};

use sandpod::{
    Audit, AuditEvent, AuditFile, AuditOptions, CommandRedaction, Decision, DenyScope, ExecuteOptions,
    Operation, Phase, Sandbox, SandboxPolicy, SandboxRequest, verify_audit,
};
use sandpod_client::{GrepOptions, ReadOptions};

use crate::logs;
use crate::support::{local, refusal, run, texts};

type Events = Arc<Mutex<Vec<AuditEvent>>>;

/// An audit, and the events that it recorded.
fn recording(options: AuditOptions) -> (Audit, Events) {
    let recorded = Events::default();
    let sink = {
        let recorded = recorded.clone();
        move |events: &[AuditEvent]| {
            recorded.lock().unwrap().extend_from_slice(events);
            Ok(())
        }
    };
    (Audit::new(sink, options).unwrap(), recorded)
}

pub(super) async fn g7_every_operation_is_audited_before_and_after() {
    let policy = SandboxPolicy {
        deny_prefixes: texts(&["/etc"]),
        deny_scope: DenyScope::FileTools,
        deny_commands: texts(&["curl"]),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let (audit, recorded) = recording(AuditOptions::default());
    let provider = local.provider.clone().with_audit(audit.clone());
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    let sandbox = &handle.sandbox;
    sandbox.write("/tmp/a", "12345").await.unwrap();
    sandbox.edit("/tmp/a", "1", "2", true).await.unwrap();
    sandbox.upload_bytes("/tmp/up", "123").await.unwrap();
    sandbox.download("/tmp/up", 100).await.unwrap();
    sandbox.read_bytes("/tmp/a", 100).await.unwrap();
    run(sandbox, "exit 3").await;
    run(sandbox, "curl x").await;
    refusal(sandbox.write("/etc/x", "x").await);
    refusal(sandbox.read("/none", ReadOptions::default()).await);
    sandbox.start("sleep 100", ExecuteOptions::default()).await.unwrap().signal(9).await.unwrap();
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(300), run(sandbox, "sleep 100"));
    waiting.await.unwrap_err();
    provider.delete(handle.id.as_str(), true).await.unwrap();
    audit.flush().await;

    let recorded = recorded.lock().unwrap();
    let of = |operation: Operation, target: &str| -> Vec<AuditEvent> {
        let is_it = |event: &&AuditEvent| {
            event.operation == operation
                && (target.is_empty() || event.targets.iter().any(|one| one == target))
        };
        recorded.iter().filter(is_it).cloned().collect()
    };
    let intents: Vec<_> = recorded.iter().filter(|event| event.phase == Phase::Intent).collect();
    for intent in &intents {
        let both: Vec<_> = recorded.iter().filter(|event| event.id == intent.id).collect();
        assert_eq!(both.len(), 2, "{intent:?}");
        assert_eq!((both[1].phase, both[1].duration_us.is_some()), (Phase::Outcome, true));
    }
    assert_eq!(of(Operation::Write, "/tmp/a")[0].size, Some(5));
    assert_eq!(of(Operation::Edit, "/tmp/a")[0].replace_all, Some(true));
    assert_eq!(
        (of(Operation::Upload, "/tmp/up")[0].size, of(Operation::Write, "/tmp/up").len()),
        (Some(3), 0)
    );
    assert_eq!((of(Operation::Download, "/tmp/up").len(), of(Operation::Read, "/tmp/up").len()), (2, 0));
    assert_eq!((of(Operation::Download, "/tmp/a").len(), of(Operation::Read, "/tmp/a").len()), (0, 2));
    assert_eq!(of(Operation::Execute, "exit 3")[1].exit_code, Some(3));
    let [intent, outcome] = &of(Operation::Execute, "curl x")[..] else { panic!("not two events") };
    assert_eq!((intent.decision, outcome.decision), (Decision::Denied, Decision::Denied));
    assert_eq!(intent.reason.as_deref(), Some("Policy denied: command blocked by policy (rule 'curl')"));
    assert_eq!(of(Operation::Write, "/etc/x")[1].decision, Decision::Denied);
    assert_eq!(of(Operation::Read, "/none")[1].error.as_deref(), Some("not_found"));
    assert_eq!(of(Operation::Execute, "sleep 100")[1].error.as_deref(), Some("cancelled"));
    assert_eq!(of(Operation::Control, "").len(), 2);
    assert_eq!(of(Operation::Create, "")[1].sandbox, handle.id.as_str());
    assert_eq!(of(Operation::Remove, "")[0].sandbox, handle.id.as_str());
}

pub(super) async fn g7_a_failing_strict_audit_blocks_operations_and_a_lenient_one_does_not() {
    let warnings = logs::capture();
    let local = local(None);
    let failing = |_: &[AuditEvent]| Err("g7-marker".to_owned());
    let open = local.provider.get_or_create(SandboxRequest::named("x")).await.unwrap();

    let lenient = Audit::new(failing, AuditOptions::default()).unwrap();
    let handle = local.provider.clone().with_audit(lenient.clone()).reconnect("x").await.unwrap();
    handle.sandbox.write("/tmp/lenient", "x").await.unwrap();
    lenient.flush().await;
    let expected = "Audit log callback failed (continuing): g7-marker";
    assert!(warnings.all().iter().any(|line| line.contains(expected)), "{:?}", warnings.all());

    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sink = {
        let fails = fails.clone();
        move |_: &[AuditEvent]| {
            if fails.load(std::sync::atomic::Ordering::SeqCst) { Err("disk full".to_owned()) } else { Ok(()) }
        }
    };
    let strict = Audit::new(sink, AuditOptions { strict: true, ..AuditOptions::default() }).unwrap();
    let provider = local.provider.clone().with_audit(strict);
    let handle = provider.reconnect("x").await.unwrap();
    handle.sandbox.write("/tmp/recorded", "x").await.unwrap();
    fails.store(true, std::sync::atomic::Ordering::SeqCst);
    let error = handle.sandbox.write("/tmp/unrecorded", "x").await.unwrap_err().to_string();
    assert!(error.contains("nothing was done") && error.contains("disk full"), "{error}");
    handle.sandbox.execute("touch /tmp/unrecorded", ExecuteOptions::default()).await.unwrap_err();
    provider.delete("x", true).await.unwrap_err();
    assert_eq!(run(&open.sandbox, "ls /tmp").await.0, "lenient\nrecorded\n");
}

pub(super) async fn an_audit_file_contains_the_session_and_a_valid_hash_chain() {
    let local = local(None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let options = AuditOptions { strict: true, commands: CommandRedaction::Hash, ..AuditOptions::default() };
    let audit = Audit::new(AuditFile::open(&path).unwrap(), options).unwrap();
    let provider = local.provider.clone().with_audit(audit.clone());
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    run(&handle.sandbox, "echo secret-word").await;
    handle.sandbox.write("/tmp/a", "secret-content").await.unwrap();
    audit.flush().await;
    assert_eq!(verify_audit(&path, None).unwrap().lines, 6);
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept.contains("sha256:") && kept.contains("/tmp/a"), "{kept}");
    assert!(!kept.contains("secret-word") && !kept.contains("secret-content"), "{kept}");
}

pub(super) async fn logs_above_debug_contain_no_command_content_or_environment() {
    let captured = logs::capture();
    let local = local(Some(SandboxPolicy { deny_commands: texts(&["curl"]), ..SandboxPolicy::default() }));
    let env = [("TOKEN".to_owned(), "MARKER-env".to_owned())].into();
    let request = SandboxRequest { env, ..SandboxRequest::named("quiet") };
    let handle = local.provider.get_or_create(request).await.unwrap();
    let sandbox = &handle.sandbox;
    run(sandbox, "echo MARKER-command MARKER-$TOKEN; exit 3").await;
    run(sandbox, "curl MARKER-denied").await;
    sandbox.write("/tmp/a", "MARKER-content").await.unwrap();
    sandbox.edit("/tmp/a", "MARKER-content", "MARKER-edited", false).await.unwrap();
    refusal(sandbox.edit("/tmp/a", "MARKER-missing", "x", false).await);
    sandbox.grep("MARKER-pattern", GrepOptions::default()).await.unwrap();
    let process = sandbox.start("cat MARKER-started", ExecuteOptions::default()).await.unwrap();
    process.wait().await.unwrap();
    let argv = vec!["MARKER-program".to_owned()];
    sandbox.execute(argv, ExecuteOptions::default()).await.unwrap();
    local.provider.delete("quiet", true).await.unwrap();
    run_after_delete(sandbox).await;

    let all = captured.all();
    assert!(all.iter().any(|line| line.contains("execute")), "spans of operations are captured: {all:?}");
    let shown: Vec<_> = all.iter().filter(|line| line.contains("MARKER")).collect();
    assert!(shown.is_empty(), "{shown:?}");
}

async fn run_after_delete(sandbox: &Sandbox) {
    sandbox.execute("echo MARKER-late", ExecuteOptions::default()).await.unwrap_err();
}

pub(super) async fn metrics_count_operations_their_duration_and_streams() {
    let local = local(None);
    let before = local.provider.metrics();
    let handle = local.sandbox().await;
    run(&handle.sandbox, "sleep 0.05").await;
    handle.sandbox.upload_bytes("/tmp/up", "x").await.unwrap();
    refusal(handle.sandbox.read("/none", ReadOptions::default()).await);
    let after = local.provider.metrics();
    let count =
        |metrics: &sandpod::Metrics, name: &str| metrics.operations.get(name).copied().unwrap_or_default();
    assert!(count(&after, "execute").count > count(&before, "execute").count);
    assert!(
        count(&after, "execute").total
            >= count(&before, "execute").total + std::time::Duration::from_millis(50)
    );
    assert!(count(&after, "read").failed > count(&before, "read").failed);
    assert!(count(&after, "create").count > count(&before, "create").count);
    assert!(count(&after, "upload").count > count(&before, "upload").count);
    assert!(after.streams.open > 0 && after.streams.opened > before.streams.opened);
}
