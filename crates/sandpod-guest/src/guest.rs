//! The guest: the state that its services share, and the streams that it serves.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use data_encoding::HEXLOWER;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::cgroup::{self, Cgroup};
use crate::disabled_kernel_features::DisabledKernelFeatures;
use crate::files::{FileService, PathResolver};
use crate::network::auth::{self, Authenticator, Metered, TokenHash};
use crate::policy::Probe;
use crate::process::{Children, ProcessService};
use crate::session::SessionService;
use crate::session::binding::Binding;
use crate::session::records::Records;
use crate::transport::{self, Services};
use crate::watchdog::Watchdog;

/// Time between the answer to the call that ended an idle guest and its exit, so that the answer is sent first.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the guest's state, which is restored after a restart.
    pub state_dir: PathBuf,
    /// Environment of every command, before its own variables are added.
    pub env: BTreeMap<String, String>,
    /// Root of the cgroup file systems, in which the guest finds its own limits.
    pub cgroups: PathBuf,
    /// SHA-256 of the token that opens streams over the network until Bind sets another one.
    pub token_sha256: Option<TokenHash>,
    /// Kernel features that the guest does not use.
    pub disabled_kernel_features: DisabledKernelFeatures,
    /// Whether an expired guest also sends SIGTERM to the container's first process, if that is another process.
    pub ends_container: bool,
    /// Whether commands and file calls are refused until Bind, after each start: commands may have changed the state directory.
    pub needs_bind: bool,
}

impl Options {
    /// Returns options for a guest whose commands have `PATH` and `HOME` and no other variable of this process.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            env: BTreeMap::new(),
            cgroups: cgroup::ROOT.into(),
            token_sha256: None,
            disabled_kernel_features: DisabledKernelFeatures::default(),
            ends_container: false,
            needs_bind: false,
        }
        .with_defaults()
    }

    /// Adds the environment of this process, without sandpod's own variables.
    #[must_use]
    pub fn with_own_env(mut self) -> Self {
        self.env.extend(own_env());
        self.with_defaults()
    }

    /// Reads the token's hash from `SANDPOD_TOKEN_SHA256`, or from the file that
    /// `SANDPOD_TOKEN_SHA256_FILE` names.
    pub fn with_own_token(self) -> io::Result<Self> {
        let text = std::env::var("SANDPOD_TOKEN_SHA256").ok();
        let file = std::env::var_os("SANDPOD_TOKEN_SHA256_FILE").map(PathBuf::from);
        Ok(Self { token_sha256: auth::read_hash(text, file.as_deref())?, ..self })
    }

    fn with_defaults(mut self) -> Self {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        self.env.entry("PATH".to_owned()).or_insert_with(|| path.to_owned());
        self.env.entry("HOME".to_owned()).or_insert_with(|| "/".to_owned());
        self
    }
}

/// A handle to a guest. Clones share one guest and are cheap.
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
    authenticator: Arc<Authenticator>,
}

impl Guest {
    /// Makes a guest and restores the binding from its state directory.
    pub fn new(options: Options) -> io::Result<Self> {
        let records = Records::default();
        let binding = Arc::new(Binding::restore(options.state_dir.clone(), options.needs_bind));
        let resolver = PathResolver::new(&options.state_dir, options.disabled_kernel_features);
        if !options.needs_bind {
            resolver.with_rules(binding.file_rules()).recover();
        }
        let children = Arc::new(Children::default());
        let (activity, command_exit) = (Activity::default(), Arc::default());
        let kernel = Probe::begin(options.disabled_kernel_features);
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
            resolver: resolver.clone(),
            command_exit: Arc::clone(&command_exit),
        };
        let files = FileService::new(records.clone(), binding.clone(), resolver);
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
        let authenticator = Authenticator::new(options.token_sha256, binding.clone());
        Ok(Self { binding, activity, children, command_exit, process, files, services, authenticator })
    }

    /// Answers calls on a stream until it ends. The stream needs no token: the kernel has identified its peer.
    pub async fn serve_stream<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        transport::serve(Box::new(stream), self.services.clone()).await
    }

    /// Answers calls on a stream that came over the network until it ends. Only Hello is answered before the token.
    pub async fn serve_network_stream<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.serve_metered(stream, std::future::ready).await
    }

    /// Serves a stream that is carried inside another one, whose bytes are counted until it is authenticated.
    pub(crate) async fn serve_metered<O, S, F>(
        &self,
        outer: O,
        inside: impl FnOnce(Metered<O>) -> F,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = S>,
    {
        let Some(auth) = self.authenticator.begin() else {
            return Err(io::Error::other("there are too many streams over the network"));
        };
        let stream = inside(Metered::new(outer, auth.clone())).await;
        let services = self.services.clone().with_auth(auth.clone());
        tokio::select! {
            served = transport::serve(Box::new(stream), services) => served,
            () = auth.failed() => Err(io::Error::new(io::ErrorKind::TimedOut, "no token came")),
        }
    }

    /// Resolves when the time to live is up, or when a cleanup has ended the idle guest.
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

    /// Returns the processes that the guest started and waits for.
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

    /// Records the exit code of the user's own command.
    pub(crate) fn note_command_exit(&self, code: i32) {
        // There is one such command, and it ends once.
        let _ = self.command_exit.set(code);
    }
}

/// Returns the environment of this process, without sandpod's own variables and those that are not UTF-8.
pub(crate) fn own_env() -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| !name.starts_with("SANDPOD_")).collect()
}

/// Returns a random, unique id.
pub(crate) fn random_id() -> io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(HEXLOWER.encode(&random))
}
