//! agent-sandbox's first runtime: `main.py` of its Go module, served by uvicorn from a virtual environment in the cache.
//!
//! Its source contains the path of its directory, `/app`. The tests replace it by a directory of their own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

const MODULE: &str = "sigs.k8s.io/agent-sandbox";
const FOLDER: &str = "examples/python-runtime-sandbox";
const PACKAGES: [&str; 3] = ["fastapi", "uvicorn", "python-multipart"];
/// The directory in the source, and how often it occurs.
const BASE_DIR: (&str, usize) = ("\"/app\"", 2);

/// A version of the runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    /// The version that the testbed pins. It answers other requests while a command runs.
    Pinned,
    /// The first version with this API, up to v0.4.6: it answers no other request while a command runs.
    Oldest,
}

/// The oldest version, and the hash of its source, which no go.sum pins.
const OLDEST: (&str, &str) = ("v0.2.1", "bd1c00a00cca9646cda2abb27443097c431b53bb63fd3831022a233af8587a3a");

impl Version {
    /// Downloads the module; returns the directory of the runtime.
    fn folder(self) -> PathBuf {
        let testbed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/agent-sandbox");
        let mut go = Command::new("go");
        let dir = match self {
            Self::Pinned => {
                output(go.args(["mod", "download", MODULE]).current_dir(&testbed));
                let mut list = Command::new("go");
                output(list.args(["list", "-m", "-f", "{{.Dir}}", MODULE]).current_dir(&testbed))
            }
            Self::Oldest => {
                let module = format!("{MODULE}@{}", OLDEST.0);
                go.args(["mod", "download", "-json", &module]).current_dir(std::env::temp_dir());
                let told = output(go.env("GOSUMDB", "off").env("GOFLAGS", "-mod=mod"));
                let told: serde_json::Value = serde_json::from_str(&told).unwrap();
                told["Dir"].as_str().unwrap().to_owned()
            }
        };
        Path::new(dir.trim()).join(FOLDER)
    }

    /// Returns its source with another directory.
    fn source(self, base_dir: &Path) -> String {
        let source = fs::read_to_string(self.folder().join("main.py")).unwrap();
        if matches!(self, Self::Oldest) {
            assert_eq!(HEXLOWER.encode(&Sha256::digest(&source)), OLDEST.1, "{} was changed", OLDEST.0);
        }
        assert!(
            source.matches(BASE_DIR.0).count() >= BASE_DIR.1,
            "main.py does not contain its directory as expected"
        );
        source.replace(BASE_DIR.0, &serde_json::to_string(base_dir).unwrap())
    }
}

/// A process that serves the runtime.
pub(crate) struct StockPython {
    pub(crate) address: SocketAddr,
    pub(crate) process: Child,
    /// The requests that it has answered, such as `POST /upload HTTP/1.1 200 OK`.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl StockPython {
    /// Starts the runtime with `base_dir` as its directory. `program` contains its source.
    pub(crate) fn start(version: Version, base_dir: &Path, program: &Path) -> Self {
        fs::create_dir_all(base_dir).unwrap();
        fs::create_dir_all(program).unwrap();
        fs::write(program.join("main.py"), version.source(base_dir)).unwrap();
        let mut process = Command::new(environment().join("bin/python"))
            .args(["-m", "uvicorn", "main:app", "--host", "127.0.0.1", "--port", "0"])
            .current_dir(program)
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let running = "Uvicorn running on http://";
        let address =
            log.find_map(|line| Some(line.split_once(running)?.1.split(' ').next()?.parse().unwrap()));
        std::thread::spawn(move || log.for_each(drop));
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (answers, seen) = (BufReader::new(process.stdout.take().unwrap()), requests.clone());
        std::thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                // INFO:     127.0.0.1:1234 - "POST /upload HTTP/1.1" 200 OK
                if let Some((request, status)) =
                    line.split_once(" - \"").and_then(|(_, rest)| rest.split_once('"'))
                {
                    seen.lock().unwrap().push(format!("{request}{status}"));
                }
            }
        });
        Self { address: address.expect("the runtime did not start"), process, requests }
    }
}

/// Returns the virtual environment with the runtime's imports in the pinned versions.
fn environment() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let pinned = fs::read_to_string(Version::Pinned.folder().join("requirements.txt")).unwrap();
        let pins = pinned.lines().filter(|line| !line.starts_with([' ', '#']) && line.contains("=="));
        let pins: String = pins.flat_map(|line| [line.trim_end_matches(" \\"), "\n"]).collect();
        let key = HEXLOWER.encode(&Sha256::digest(&pins)[..8]);
        let all = cache().join("python/stock-runtime");
        fs::create_dir_all(&all).unwrap();
        // Another process may create the same environment.
        let lock = File::create(all.join(format!("{key}.lock"))).unwrap();
        lock.lock().unwrap();
        let dir = all.join(key);
        let complete = dir.join("complete");
        if !complete.exists() {
            output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir));
            let constraints = dir.join("constraints.txt");
            fs::write(&constraints, pins).unwrap();
            let mut pip = Command::new(dir.join("bin/pip"));
            output(pip.args(["install", "--quiet", "--constraint"]).arg(&constraints).args(PACKAGES));
            fs::write(complete, "").unwrap();
        }
        dir
    })
}

/// Returns the cache of `cargo xtask`.
fn cache() -> PathBuf {
    let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = own.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    cache.expect("set HOME or XDG_CACHE_HOME: the runtime's packages are kept there").join("sandpod")
}

/// Returns the output of a program that must succeed.
fn output(command: &mut Command) -> String {
    let why = "These tests run agent-sandbox's own Python runtime: `go` downloads its source, and python3 with its venv \
               module and pip installs fastapi and uvicorn from PyPI, once. Install both, and allow the Go module proxy \
               and PyPI.";
    match command.output() {
        Ok(done) if done.status.success() => String::from_utf8(done.stdout).unwrap(),
        Ok(done) => panic!("{command:?} failed: {}\n{why}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => panic!("{command:?} could not be run: {error}\n{why}"),
    }
}
