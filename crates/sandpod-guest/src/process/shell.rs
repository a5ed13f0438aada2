//! Shell sessions: the state that one line leaves behind carries over to the next.
//!
//! A small [`driver`] script runs a line of a session and reports the state of the shell at its end ([`final_state`]).
//! The guest keeps this state and starts the session's next line in it. The state consists of the directory, exported
//! variables, the umask, options of `set -o`, and functions if the shell can print them (bash and ksh can; dash
//! and busybox cannot).
//!
//! A line leaves the session unchanged if the guest ends it, if it replaces the shell (`exec`), or if it has a `trap` on
//! EXIT of its own and ends by `exit` or `set -e`. Lines that run at the same time start from one state and do not wait
//! for each other: the state of the one that ends last replaces the others as a whole. A line that changes nothing
//! does not count.

mod driver;
mod final_state;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use prost::Message;
use sandpod_protocol::v1::{self, ErrorCode, command::What};
use sandpod_protocol::{Failure, limits};
use sha2::{Digest as _, Sha256};

use crate::state_file;
use final_state::FinalState;

/// Maximum length of a session's name.
const MAX_NAME_BYTES: usize = 256;
/// Maximum length of a variable. The kernel's limit is little higher, and exceeding it would keep the next line from starting.
const LONGEST_VARIABLE: usize = 100 << 10;
/// Maximum size of a shell's report, which is longer than the state because of quoting.
const MAX_REPORT_BYTES: u64 = 2 * limits::MAX_SHELL_STATE_BYTES as u64;

/// All shell sessions, in memory and in a directory.
#[derive(Default)]
pub(crate) struct ShellSessions {
    dir: PathBuf,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_name: HashMap<String, Session>,
    /// Counts uses, to find the least recently used session.
    clock: u64,
}

struct Session {
    state: Arc<State>,
    used: u64,
}

/// State in which a session's next line starts.
#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    dir: String,
    #[prost(btree_map = "string, string", tag = "3")]
    env: BTreeMap<String, String>,
    #[prost(uint32, tag = "4")]
    umask: u32,
    #[prost(string, repeated, tag = "5")]
    options: Vec<String>,
    /// Definitions as the shell has printed them.
    #[prost(bytes = "vec", tag = "6")]
    functions: Vec<u8>,
}

impl ShellSessions {
    /// Loads the sessions that an earlier guest has saved in a directory.
    pub(crate) fn restore(dir: PathBuf) -> Self {
        let mut files: Vec<_> =
            fs::read_dir(&dir).into_iter().flatten().flatten().map(|file| file.path()).collect();
        files.sort_by_key(|file| {
            fs::metadata(file).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
        });
        let shells = Self { dir, sessions: Mutex::default() };
        for state in files.iter().filter_map(|file| load(file)) {
            shells.insert(state);
        }
        shells
    }

    /// Begins a line in the session that its command names, if any, and replaces `env` by that of the session.
    pub(crate) fn enter(
        self: &Arc<Self>,
        command: &v1::Command,
        what: &What,
        env: &mut BTreeMap<String, String>,
        working_dir: &Path,
    ) -> Result<Option<SessionLine>, Failure> {
        let name = &command.shell_session;
        if name.is_empty() {
            return Ok(None);
        }
        check(name, what)?;
        let state = self.state(name);
        let dir = state.as_ref().map(|state| Path::new(&state.dir)).filter(|dir| dir.is_dir());
        let working_dir = dir.unwrap_or(working_dir).to_owned();
        if let Some(state) = &state {
            env.clone_from(&state.env);
        }
        let given_dir = (!command.working_dir.is_empty()).then(|| working_dir.join(&command.working_dir));
        Ok(Some(SessionLine {
            shells: self.clone(),
            name: name.clone(),
            state,
            working_dir,
            given_dir,
            given_env: command.env.clone(),
            env: env.clone(),
            report: OnceLock::new(),
        }))
    }

    fn state(&self, name: &str) -> Option<Arc<State>> {
        let mut sessions = self.lock();
        sessions.clock += 1;
        let clock = sessions.clock;
        let session = sessions.by_name.get_mut(name)?;
        session.used = clock;
        Some(session.state.clone())
    }

    /// Stores a state. The least recently used session is removed if there are too many.
    fn insert(&self, state: State) {
        let mut sessions = self.lock();
        sessions.clock += 1;
        let session = Session { used: sessions.clock, state: Arc::new(state) };
        sessions.by_name.insert(session.state.name.clone(), session);
        if sessions.by_name.len() > limits::MAX_SHELL_SESSIONS {
            let oldest = sessions.by_name.values().min_by_key(|session| session.used);
            if let Some(name) = oldest.map(|session| session.state.name.clone()) {
                sessions.by_name.remove(&name);
                let _ = fs::remove_file(self.file(&name));
            }
        }
    }

    /// Saves a state for a restarted guest. Best effort: this guest has it in memory.
    fn save(&self, state: &State) -> io::Result<()> {
        state_file::save(&self.file(&state.name), &state.encode_to_vec())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(HEXLOWER.encode(&Sha256::digest(name)))
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line that runs in a session.
pub(crate) struct SessionLine {
    shells: Arc<ShellSessions>,
    name: String,
    /// State of the session at the start of the line; `None` in a new session.
    state: Option<Arc<State>>,
    working_dir: PathBuf,
    /// Directory and variables that the call sets for this line only.
    given_dir: Option<PathBuf>,
    given_env: HashMap<String, String>,
    /// Environment without what the call sets.
    env: BTreeMap<String, String>,
    /// File into which the shell reports its final state.
    report: OnceLock<File>,
}

impl SessionLine {
    /// Returns the directory of the session, or that of the sandbox if the session is new or its directory is gone.
    pub(crate) fn working_dir(&self) -> &Path {
        &self.working_dir
    }

    /// Returns the script that runs a line in the session, and the files that the shell must inherit.
    pub(crate) fn driver(&self, line: &str) -> io::Result<(String, Vec<OwnedFd>)> {
        let driver = driver::Driver::new(self.state.as_deref(), line)?;
        let _ = self.report.set(driver.report);
        Ok((driver.script, driver.inherited))
    }

    /// Saves the state that the line left behind, and returns a note about state that cannot be kept. An incomplete report
    /// leaves the session unchanged.
    pub(crate) fn save_final_state(&self) -> Option<String> {
        let report = self.report.get()?;
        if report.metadata().ok()?.len() > MAX_REPORT_BYTES {
            return Some(too_large());
        }
        let (state, long) = self.to_session_state(FinalState::parse(&read(report)?)?);
        if state.encoded_len() > limits::MAX_SHELL_STATE_BYTES {
            return Some(too_large());
        }
        if !self.is_unchanged(&state) {
            let _ = self.shells.save(&state);
            self.shells.insert(state);
        }
        long.map(|name| {
            let most = LONGEST_VARIABLE >> 10;
            format!("The shell session did not keep the variable {name}: it has more than {most} KiB.")
        })
    }

    /// Returns whether the line changed nothing, so that its state must not replace that of a concurrent line.
    fn is_unchanged(&self, left: &State) -> bool {
        let Some(found) = self.state.as_deref() else { return self.is_new(left) };
        found == left
    }

    /// Returns whether this is the state that a line which changes nothing leaves in a new session.
    fn is_new(&self, left: &State) -> bool {
        let State { name: _, dir, env, umask, options, functions } = left;
        let mut expected = self.env.clone();
        expected.insert("PWD".to_owned(), dir.clone());
        expected.retain(|name, _| name == "PWD" || !final_state::is_set_by_shell(name));
        *env == expected
            && is_same(&self.working_dir, Path::new(dir))
            && Some(*umask) == own_umask()
            && options.is_empty()
            && functions.is_empty()
    }

    /// Converts a final state to a session state. Values that the call set for this line are removed unless the line has
    /// changed them, and so are variables that are too long; the name of one of those is returned.
    fn to_session_state(&self, left: FinalState) -> (State, Option<String>) {
        let (mut env, mut dir) = (left.env, left.dir);
        for (name, given) in &self.given_env {
            if env.get(name) == Some(given) {
                match self.env.get(name) {
                    Some(before) => env.insert(name.clone(), before.clone()),
                    None => env.remove(name),
                };
            }
        }
        if self.given_dir.as_ref().is_some_and(|given| is_same(given, Path::new(&dir)))
            && let Some(before) = self.working_dir.to_str()
        {
            before.clone_into(&mut dir);
        }
        let is_long = |name: &str, value: &str| name.len() + value.len() >= LONGEST_VARIABLE;
        let long = env.iter().find(|(name, value)| is_long(name, value)).map(|(name, _)| name.clone());
        env.retain(|name, value| !is_long(name, value));
        env.insert("PWD".to_owned(), dir.clone());
        let (umask, options, functions) = (left.umask, left.options, left.functions);
        (State { name: self.name.clone(), dir, env, umask, options, functions }, long)
    }
}

fn check(name: &str, what: &What) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::new(ErrorCode::InvalidArgument, message));
    if name.len() > MAX_NAME_BYTES {
        return refused(format!(
            "the name of a shell session has at most {MAX_NAME_BYTES} bytes, not {}",
            name.len()
        ));
    }
    match what {
        What::Line(_) => Ok(()),
        What::Argv(_) => {
            refused("only a line can be part of a shell session: an argv has no shell".to_owned())
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the umask with which commands start.
fn own_umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// Reads a shell's report, unless it is too large.
fn read(report: &File) -> Option<Vec<u8>> {
    let size = Some(report.metadata().ok()?.len()).filter(|size| *size <= MAX_REPORT_BYTES)?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    report.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

fn too_large() -> String {
    let most = limits::MAX_SHELL_STATE_BYTES >> 10;
    format!(
        "The shell session is as before this line: its variables and functions together have more than {most} KiB. \
         Keep large things in files."
    )
}

/// Loads a session. Damaged files are ignored.
fn load(file: &Path) -> Option<State> {
    State::decode(&*state_file::read(file, MAX_REPORT_BYTES).ok()?)
        .ok()
        .filter(|state| !state.name.is_empty())
}
