//! Shell sessions: what one line leaves behind is there for the next.
//!
//! A line of a session is run by a small [`driver`] script, which says at the end in what state the shell is
//! ([`left`]). The guest keeps that, and starts the session's next line in it. What is kept: the directory,
//! exported variables, the umask, options of `set -o`, and functions where the shell can print them
//! (bash, ksh; dash and busybox cannot). A line that is ended by the guest leaves the session as it was,
//! and so does one that replaces the shell (`exec`), or that ends by `exit` or `set -e` while it has a `trap`
//! on EXIT of its own. Lines that run at the same time start from one state and don't wait for each other: the state
//! of the one that ends last stays, as a whole. A line that changes nothing does not count.

mod driver;
mod left;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use prost::Message;
use sandpod_protocol::v1::{self, ErrorCode, command::What};
use sandpod_protocol::{Failure, limits};
use sha2::{Digest as _, Sha256};

use crate::saved;
use left::Left;

/// The longest name of a session.
const MAX_NAME_BYTES: usize = 256;
/// The kernel takes no longer variable; one that came near would keep the next line from starting.
const LONGEST_VARIABLE: usize = 100 << 10;
/// The most that a shell may say of itself: quoted, it is longer than what is kept.
const MAX_SAID: u64 = 2 * limits::MAX_SHELL_STATE_BYTES as u64;

/// All shell sessions, in memory and in a directory.
#[derive(Default)]
pub(crate) struct Shells {
    dir: PathBuf,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_name: HashMap<String, Session>,
    /// Counts uses, to find the session that was used longest ago.
    clock: u64,
}

struct Session {
    state: Arc<State>,
    used: u64,
}

/// What a session's next line finds.
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
    /// As text that the shell itself has printed.
    #[prost(bytes = "vec", tag = "6")]
    functions: Vec<u8>,
}

impl Shells {
    /// The sessions that a directory holds, as a guest before this one left them.
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

    /// Lets a line into the session that its command names, if it does: `env` becomes the session's.
    pub(crate) fn enter(
        self: &Arc<Self>,
        command: &v1::Command,
        what: &What,
        env: &mut BTreeMap<String, String>,
        working_dir: &Path,
    ) -> Result<Option<Visit>, Failure> {
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
        Ok(Some(Visit {
            shells: self.clone(),
            name: name.clone(),
            state,
            working_dir,
            given_dir,
            given_env: command.env.clone(),
            env: env.clone(),
            said: OnceLock::new(),
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

    /// Keeps a state; the session that was used longest ago goes if there are too many.
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

    /// Writes a state for a guest after this one. Best effort: this one has it in memory.
    fn save(&self, state: &State) -> io::Result<()> {
        saved::save(&self.file(&state.name), &state.encode_to_vec())
    }

    fn file(&self, name: &str) -> PathBuf {
        let mut file = String::new();
        for byte in Sha256::digest(name) {
            let _ = write!(file, "{byte:02x}");
        }
        self.dir.join(file)
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line's stay in a session.
pub(crate) struct Visit {
    shells: Arc<Shells>,
    name: String,
    /// As the line finds it; none in a new session.
    state: Option<Arc<State>>,
    working_dir: PathBuf,
    /// What the call asks for, for this line only.
    given_dir: Option<PathBuf>,
    given_env: HashMap<String, String>,
    /// Without what the call gives.
    env: BTreeMap<String, String>,
    /// Where the shell says in what state it ends.
    said: OnceLock<File>,
}

impl Visit {
    /// Where the session is; where the sandbox starts, if the session is new or its directory is gone.
    pub(crate) fn working_dir(&self) -> &Path {
        &self.working_dir
    }

    /// The script that runs a line in the session, and the files that the shell must inherit for it.
    pub(crate) fn driver(&self, line: &str) -> io::Result<(String, Vec<OwnedFd>)> {
        let driver = driver::Driver::new(self.state.as_deref(), line)?;
        let _ = self.said.set(driver.said);
        Ok((driver.script, driver.inherited))
    }

    /// Keeps what the line left behind, and says what it can't keep. One that did not say so to the end leaves the
    /// session as it was.
    pub(crate) fn leave(&self) -> Option<String> {
        let said = self.said.get()?;
        if said.metadata().ok()?.len() > MAX_SAID {
            return Some(too_large());
        }
        let (state, long) = self.settle(Left::parse(&read(said)?)?);
        if state.encoded_len() > limits::MAX_SHELL_STATE_BYTES {
            return Some(too_large());
        }
        if !self.has_found(&state) {
            let _ = self.shells.save(&state);
            self.shells.insert(state);
        }
        long.map(|name| {
            let most = LONGEST_VARIABLE >> 10;
            format!("The shell session did not keep the variable {name}: it has more than {most} KiB.")
        })
    }

    /// Whether the line found this state, so that it has changed nothing and must not undo what a line beside it has done.
    fn has_found(&self, left: &State) -> bool {
        let Some(found) = self.state.as_deref() else { return self.is_new(left) };
        found == left
    }

    /// Whether a line that changes nothing leaves this state in a new session.
    fn is_new(&self, left: &State) -> bool {
        let State { name: _, dir, env, umask, options, functions } = left;
        let mut expected = self.env.clone();
        expected.insert("PWD".to_owned(), dir.clone());
        expected.retain(|name, _| name == "PWD" || !left::is_own(name));
        *env == expected
            && is_same(&self.working_dir, Path::new(dir))
            && Some(*umask) == umask_here()
            && options.is_empty()
            && functions.is_empty()
    }

    /// What the call itself has given does not stay, unless the line has changed it. Nor does a variable that is too
    /// long; one of those is named.
    fn settle(&self, left: Left) -> (State, Option<String>) {
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
            "a shell session is named by at most {MAX_NAME_BYTES} bytes, not by {}",
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

/// The umask with which commands start, as the kernel knows it.
fn umask_here() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// What a shell has said, if it is not too much.
fn read(said: &File) -> Option<Vec<u8>> {
    let size = Some(said.metadata().ok()?.len()).filter(|size| *size <= MAX_SAID)?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    said.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

fn too_large() -> String {
    let most = limits::MAX_SHELL_STATE_BYTES >> 10;
    format!(
        "The shell session is as before this line: its variables and functions together have more than {most} KiB. \
         Keep large things in files."
    )
}

/// A damaged file is no session.
fn load(file: &Path) -> Option<State> {
    State::decode(&*saved::read(file, MAX_SAID).ok()?).ok().filter(|state| !state.name.is_empty())
}
