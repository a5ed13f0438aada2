//! The guest as a whole: what its services share, and the streams that it answers on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::cgroup::{self, Cgroup};
use crate::files::{FileService, Reach};
use crate::network::gate::{self, Admission, Metered, TokenHash};
use crate::policy::Probe;
use crate::process::{Children, ProcessService};
use crate::session::SessionService;
use crate::session::binding::Binding;
use crate::session::records::Records;
use crate::transport::{self, Services};
use crate::watchdog::Watchdog;
use crate::without::Without;

/// How long a guest that a cleanup has ended stays, so that its answer leaves first.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// What a guest is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it keeps what it is bound to, for when it is started again.
    pub state_dir: PathBuf,
    /// What every command finds in its environment before anything is added.
    pub env: BTreeMap<String, String>,
    /// Where the limits of this process are found.
    pub cgroups: PathBuf,
    /// SHA-256 of the token that opens streams over the network until Bind sets another one.
    pub token_sha256: Option<TokenHash>,
    /// Abilities of the kernel that it does not use.
    pub without: Without,
    /// When its time is up the container's first process is told to end too, where that is another one.
    pub ends_container: bool,
    /// After each start it runs no command and opens no file before a Bind: commands may have changed the state directory.
    pub needs_bind: bool,
}

impl Options {
    /// Options for a guest whose commands have a `PATH`, a `HOME` and nothing else of this process.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            env: BTreeMap::new(),
            cgroups: cgroup::ROOT.into(),
            token_sha256: None,
            without: Without::default(),
            ends_container: false,
            needs_bind: false,
        }
        .with_defaults()
    }

    /// Takes the environment of this process, without sandpod's own variables.
    #[must_use]
    pub fn with_own_env(mut self) -> Self {
        self.env.extend(own_env());
        self.with_defaults()
    }

    /// Takes the token's hash from `SANDPOD_TOKEN_SHA256`, or from the file that
    /// `SANDPOD_TOKEN_SHA256_FILE` names.
    pub fn with_own_token(self) -> io::Result<Self> {
        let text = std::env::var("SANDPOD_TOKEN_SHA256").ok();
        let file = std::env::var_os("SANDPOD_TOKEN_SHA256_FILE").map(PathBuf::from);
        Ok(Self { token_sha256: gate::read_hash(text, file.as_deref())?, ..self })
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
    process: Arc<ProcessService>,
    files: Arc<FileService>,
    services: Services,
    admission: Arc<Admission>,
}

impl Guest {
    /// Makes a guest, bound as one before it with the same state directory was.
    pub fn new(options: Options) -> io::Result<Self> {
        let records = Records::default();
        let binding = Arc::new(Binding::restore(options.state_dir.clone(), options.needs_bind));
        let reach = Reach::new(&options.state_dir, options.without);
        if !options.needs_bind {
            reach.by(binding.file_rules()).repair();
        }
        let children = Arc::new(Children::default());
        let (activity, command_exit) = (Activity::default(), Arc::default());
        let kernel = Probe::begin(options.without);
        let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let watchdog = Arc::new(Watchdog::new(Cgroup::find(&options.cgroups, &membership)));
        let session = SessionService {
            boot_id: random_id()?,
            started: Instant::now(),
            records: records.clone(),
            binding: binding.clone(),
            activity: activity.clone(),
            watchdog: watchdog.clone(),
            kernel: kernel.clone(),
            reach: reach.clone(),
            command_exit: Arc::clone(&command_exit),
        };
        let files = FileService::new(records.clone(), binding.clone(), reach);
        let process = ProcessService::new(
            records,
            binding.clone(),
            children.clone(),
            options.env,
            kernel,
            watchdog,
            &options.state_dir,
        );
        let (files, process) = (Arc::new(files), Arc::new(process));
        let services =
            Services::new(session, process.clone(), files.clone(), activity.clone(), binding.clone());
        let admission = Admission::new(options.token_sha256, binding.clone());
        Ok(Self { binding, activity, children, command_exit, process, files, services, admission })
    }

    /// Answers calls on a stream until it ends. Whoever opened it is trusted: the kernel says who it is.
    pub async fn serve_stream<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        transport::serve(Box::new(stream), self.services.clone()).await
    }

    /// Answers calls on a stream over the network until it ends, once its Hello has brought the token.
    pub async fn serve_network_stream<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.serve_metered(stream, std::future::ready).await
    }

    /// The same for a stream inside of another one: what that carries is counted.
    pub(crate) async fn serve_metered<O, S, F>(
        &self,
        outer: O,
        inside: impl FnOnce(Metered<O>) -> F,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = S>,
    {
        let Some(gate) = self.admission.gate() else {
            return Err(io::Error::other("there are too many streams over the network"));
        };
        let stream = inside(Metered::new(outer, gate.clone())).await;
        let services = self.services.clone().behind(gate.clone());
        tokio::select! {
            served = transport::serve(Box::new(stream), services) => served,
            () = gate.stays_closed() => Err(io::Error::new(io::ErrorKind::TimedOut, "no token came")),
        }
    }

    /// Resolves when the time that the guest was given by Bind is up, or a cleanup has ended it because it was idle.
    pub async fn expired(&self) {
        let ended = async {
            self.activity.ended().await;
            tokio::time::sleep(ANSWER_TIME).await;
        };
        tokio::select! {
            () = self.binding.expired(&self.activity) => {}
            () = ended => {}
        }
    }

    /// The processes that this guest started and waits for itself.
    pub(crate) fn children(&self) -> &Arc<Children> {
        &self.children
    }

    pub(crate) fn process(&self) -> &Arc<ProcessService> {
        &self.process
    }

    pub(crate) fn files(&self) -> &Arc<FileService> {
        &self.files
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Notes how the user's own command ended.
    pub(crate) fn note_command_exit(&self, code: i32) {
        // There is one such command, and it ends once.
        let _ = self.command_exit.set(code);
    }
}

/// The environment of this process, without sandpod's own variables and what is no text.
pub(crate) fn own_env() -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| !name.starts_with("SANDPOD_")).collect()
}

/// A name that nobody else has.
pub(crate) fn random_id() -> io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut id = String::new();
    for byte in random {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}
