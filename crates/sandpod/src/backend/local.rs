//! Sandboxes on this machine: the guest in namespaces of its own, for as long as its owner lives.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sandpod_client::{Binding, ByteStream, Connection, DialError, Dialer, Options, Sandbox};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, Command};

use crate::{Error, ErrorKind, Result};

/// Who the guest is outside its namespaces when its owner is root.
const NOBODY: u32 = 65534;
/// What is kept of a guest's last words.
const MAX_LAST_WORDS: u64 = 4096;

/// A program that becomes the guest of a local sandbox when it is started with these arguments.
///
/// ```
/// use sandpod::local::GuestProgram;
///
/// let program = GuestProgram { path: "/usr/bin/sandpod-guest".into(), args: vec!["local".to_owned()] };
/// # assert_eq!(program.args, ["local"]);
/// ```
#[derive(Clone, Debug)]
pub struct GuestProgram {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// A sandbox on this machine. Dropping it ends it, with all that runs in it.
///
/// ```no_run
/// # async fn example(program: &sandpod::local::GuestProgram) -> sandpod::Result<()> {
/// let local = sandpod::local::LocalSandbox::create(program).await?;
/// let executed = local.sandbox().execute("echo hello", Default::default()).await;
/// local.end().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalSandbox {
    sandbox: Sandbox,
    control: Arc<UnixStream>,
    guest: Child,
}

impl LocalSandbox {
    /// Makes a sandbox and waits until its guest answers.
    pub async fn create(program: &GuestProgram) -> Result<Self> {
        let (control, theirs) = UnixStream::pair().map_err(|error| cannot_start(&error.to_string()))?;
        let mut command = Command::new(&program.path);
        command
            .args(&program.args)
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut guest = command.spawn().map_err(|error| cannot_start(&error.to_string()))?;
        drop(command);
        let last_words = guest.stderr.take();
        let control = Arc::new(control);
        let dialer = LocalDialer { control: control.clone() };
        let sandbox = Sandbox::new(Connection::new(dialer, Options::default()));
        let binding =
            Binding { claim: "local".to_owned(), working_dir: "/workspace".to_owned(), ..Binding::default() };
        match sandbox.bind(binding).await {
            Ok(()) => Ok(Self { sandbox, control, guest }),
            Err(error) => {
                drop(guest.start_kill());
                Err(cannot_start(&reason(last_words, &error).await))
            }
        }
    }

    /// The sandbox itself.
    #[must_use]
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Ends the sandbox and waits until nothing of it runs any more.
    pub async fn end(mut self) {
        // The guest ends when its control socket closes, and the kernel ends the rest with it.
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let _ = self.guest.wait().await;
    }
}

/// Opens streams by sending one end of a new socket pair through the control socket.
struct LocalDialer {
    control: Arc<UnixStream>,
}

impl Dialer for LocalDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            let gone = |error: io::Error| DialError::Gone(format!("the local sandbox has ended ({error})"));
            let (ours, theirs) =
                UnixStream::pair().map_err(|error| DialError::Unreachable(error.to_string()))?;
            send_stream(&self.control, &theirs).map_err(gone)?;
            ours.set_nonblocking(true).map_err(gone)?;
            let stream = tokio::net::UnixStream::from_std(ours).map_err(gone)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }
        .boxed()
    }
}

fn send_stream(control: &UnixStream, stream: &UnixStream) -> io::Result<()> {
    let sockets = [stream.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    sendmsg(control, &[io::IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What the guest said before it ended, or what the client saw.
async fn reason(last_words: Option<ChildStderr>, error: &sandpod_client::Error) -> String {
    let mut said = String::new();
    if let Some(stderr) = last_words {
        let _ = stderr.take(MAX_LAST_WORDS).read_to_string(&mut said).await;
    }
    if said.trim().is_empty() { error.to_string() } else { said.trim().to_owned() }
}

fn cannot_start(reason: &str) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("Can't make a sandbox on this machine: {reason}."),
        "Mend that, or use a cluster.",
    )
}
