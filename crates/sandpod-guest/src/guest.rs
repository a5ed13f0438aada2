//! The guest as a whole: what its services share, and the streams that it answers on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::files::FileService;
use crate::policy::Kernel;
use crate::process::{Children, ProcessService};
use crate::session::SessionService;
use crate::session::binding::Binding;
use crate::session::records::Records;
use crate::transport::{self, Services};
use crate::without::Without;

/// What a guest is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it keeps what it is bound to, for when it is started again.
    pub state_dir: PathBuf,
    /// What every command finds in its environment before anything is added.
    pub env: BTreeMap<String, String>,
    /// Abilities of the kernel that it does not use.
    pub without: Without,
}

impl Options {
    /// Options for a guest whose commands have a `PATH`, a `HOME` and nothing else of this process.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: state_dir.into(), env: BTreeMap::new(), without: Without::default() }
            .with_defaults()
    }

    /// Takes the environment of this process, without sandpod's own variables.
    #[must_use]
    pub fn with_own_env(mut self) -> Self {
        let own = std::env::vars().filter(|(name, _)| !name.starts_with("SANDPOD_"));
        self.env.extend(own);
        self.with_defaults()
    }

    fn with_defaults(mut self) -> Self {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        self.env.entry("PATH".to_owned()).or_insert_with(|| path.to_owned());
        self.env.entry("HOME".to_owned()).or_insert_with(|| "/".to_owned());
        self
    }
}

/// A guest: cheap to clone, and every clone is the same guest.
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use sandpod_guest::{Guest, Options};
///
/// let guest = Guest::new(Options::new("/tmp/guest-state"))?;
/// let (ours, theirs) = tokio::io::duplex(64 << 10);
/// tokio::spawn(async move { guest.serve_stream(theirs).await });
/// // speak the protocol on `ours`
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Guest {
    binding: Arc<Binding>,
    activity: Activity,
    children: Arc<Children>,
    command_exit: Arc<OnceLock<i32>>,
    services: Services,
}

impl Guest {
    /// Makes a guest, bound as one before it with the same state directory was.
    pub fn new(options: Options) -> io::Result<Self> {
        let records = Records::default();
        let binding = Arc::new(Binding::restore(options.state_dir));
        let children = Arc::new(Children::default());
        let (activity, command_exit) = (Activity::default(), Arc::default());
        let kernel = Kernel::probe(options.without);
        let session = SessionService {
            boot_id: boot_id()?,
            started: Instant::now(),
            records: records.clone(),
            binding: binding.clone(),
            activity: activity.clone(),
            children: children.clone(),
            kernel,
            command_exit: Arc::clone(&command_exit),
        };
        let bound = binding.clone();
        let files = FileService::new(records.clone(), Arc::new(move || bound.working_dir()));
        let process = ProcessService::new(records, binding.clone(), children.clone(), options.env, kernel);
        let services = Services::new(session, process, files, activity.clone());
        Ok(Self { binding, activity, children, command_exit, services })
    }

    /// Answers calls on a stream until it ends.
    pub async fn serve_stream<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        transport::serve(stream, self.services.clone()).await
    }

    /// Resolves when the time that the guest was given by Bind is up.
    pub async fn expired(&self) {
        self.binding.expired(&self.activity).await;
    }

    /// The processes that this guest started and waits for itself.
    pub(crate) fn children(&self) -> &Arc<Children> {
        &self.children
    }

    /// Notes how the user's own command ended.
    pub(crate) fn note_command_exit(&self, code: i32) {
        // There is one such command, and it ends once.
        let _ = self.command_exit.set(code);
    }
}

fn boot_id() -> io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut id = String::new();
    for byte in random {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}
