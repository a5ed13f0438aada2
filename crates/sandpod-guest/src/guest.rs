//! The guest as a whole: what its services share, and the streams that it answers on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::activity::Activity;
use crate::files::FileService;
use crate::process::{Children, ProcessService};
use crate::session::SessionService;
use crate::session::binding::Binding;
use crate::session::records::Records;
use crate::transport::{self, Services};

/// What a guest is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it keeps what it is bound to, for when it is started again.
    pub state_dir: PathBuf,
    /// What every command finds in its environment before anything is added.
    pub env: BTreeMap<String, String>,
}

impl Options {
    /// Options for a guest whose commands have a `PATH`, a `HOME` and nothing else of this process.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: state_dir.into(), env: BTreeMap::new() }.with_defaults()
    }

    /// Takes the environment of this process, without sandpod's own variables.
    #[must_use]
    pub fn with_own_env(mut self) -> Self {
        self.env.extend(own_env());
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
    services: Services,
}

impl Guest {
    /// Makes a guest, bound as one before it with the same state directory was.
    pub fn new(options: Options) -> io::Result<Self> {
        let records = Records::default();
        let binding = Arc::new(Binding::restore(options.state_dir));
        let children = Arc::new(Children::default());
        let session = SessionService::new(boot_id()?, records.clone(), binding.clone());
        let bound = binding.clone();
        let files = FileService::new(records.clone(), Arc::new(move || bound.working_dir()));
        let process = ProcessService::new(records, binding.clone(), children.clone(), options.env);
        let activity = Activity::default();
        let services = Services::new(session, process, files, activity.clone());
        Ok(Self { binding, activity, children, services })
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
}

/// The environment of this process, without sandpod's own variables and what is no text.
pub(crate) fn own_env() -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| !name.starts_with("SANDPOD_")).collect()
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
