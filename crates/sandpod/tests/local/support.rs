//! What the tests of local sandboxes share.

use sandpod::{
    ExecuteOptions, GuestProgram, LocalConfig, Provider, Sandbox, SandboxHandle, SandboxPolicy,
    SandboxRequest,
};
use sandpod_client::{Error, ErrorCode};

/// The only argument of this binary when it is to be a guest.
pub(crate) const GUEST: &str = "guest";

/// This binary as the guest of local sandboxes.
pub(crate) fn guest() -> GuestProgram {
    GuestProgram { path: std::env::current_exe().unwrap(), args: vec![GUEST.to_owned()] }
}

/// A provider whose sandboxes end with the test.
pub(crate) struct Local {
    pub(crate) provider: Provider,
    _state_dir: tempfile::TempDir,
}

pub(crate) fn local(policy: Option<SandboxPolicy>) -> Local {
    let state_dir = tempfile::tempdir().unwrap();
    let config = LocalConfig {
        program: Some(guest()),
        state_dir: Some(state_dir.path().to_owned()),
        ends_with_process: true,
        policy,
        ..LocalConfig::default()
    };
    Local { provider: Provider::local(&config).unwrap(), _state_dir: state_dir }
}

impl Local {
    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        self.provider.get_or_create(SandboxRequest::default()).await.unwrap()
    }
}

pub(crate) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// The output and exit code of a shell line.
pub(crate) async fn run(sandbox: &Sandbox, line: &str) -> (String, Option<i32>) {
    let executed = sandbox.execute(line, ExecuteOptions::default()).await.unwrap();
    (String::from_utf8_lossy(&executed.output).into_owned(), executed.exit_code)
}

/// The code and message of a refused call.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (ErrorCode, String) {
    match result.unwrap_err() {
        Error::Failure(failure) => (failure.code(), failure.message().to_owned()),
        other => panic!("{other}"),
    }
}
