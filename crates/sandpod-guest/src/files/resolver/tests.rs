use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sandpod_protocol::v1::{
    DeleteRequest, EditRequest, GlobRequest, GrepRequest, ListRequest, MoveRequest, Policy, ReadRequest,
    StatRequest, WriteRequest,
};

use super::*;
use crate::files::testing::{code, disabled_features, names, text};
use crate::files::{delete, download, edit, info, read, rename, write};
use crate::search;

/// Runs all of the crate's tests of files and searches once more, without `openat2`.
#[test]
fn all_tests_pass_without_openat2() {
    if disabled_features().openat2 {
        assert!(!PathResolver::default().use_openat2);
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = tests
        .args(["files::", "search::"])
        .env("SANDPOD_DISABLED_KERNEL_FEATURES", "openat2")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn real(resolver: &PathResolver, path: &Path) -> Result<PathBuf, Failure> {
    resolver.resolve(&text(path), Purpose::READ)?.real_path()
}

#[test]
fn links_and_dots_lead_where_the_kernel_says() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/file"), "").unwrap();
    symlink("a/b", root.join("link")).unwrap();
    symlink(root.join("link"), root.join("absolute")).unwrap();
    symlink("../file", root.join("a/b/up")).unwrap();
    for (path, leads_to) in [
        ("a/file", "a/file"),
        ("link/../file", "a/file"),
        ("absolute/up", "a/file"),
        ("a/b/../../a/./b/up", "a/file"),
        ("absolute", "a/b"),
        ("a/b/..", "a"),
    ] {
        let found = real(&PathResolver::default(), &root.join(path)).unwrap();
        assert_eq!(found, root.join(leads_to), "{path}");
        assert_eq!(found, root.join(path).canonicalize().unwrap());
    }
    // The parent of the root is the root.
    assert_eq!(real(&PathResolver::default(), Path::new("/../../..")).unwrap(), Path::new("/"));
}

#[test]
fn random_paths_lead_where_the_standard_library_says() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let names = ["a", "b", "c", "..", ".", "x"];
    for _ in 0..60 {
        let path = |random: &mut fastrand::Rng| {
            (0..random.usize(1..5)).map(|_| *random.choice(&names).unwrap()).collect::<PathBuf>()
        };
        let at = root.join(path(&mut random));
        if at.starts_with(&root) && !text(&at).contains("..") {
            let _ = match random.u8(0..3) {
                0 => fs::create_dir_all(&at),
                1 => symlink(path(&mut random), &at),
                _ => fs::write(&at, ""),
            };
        }
        let asked = root.join(path(&mut random));
        let expected = asked.canonicalize().map_err(|error| Failure::from(error).code());
        let found = PathResolver::default().resolve(&text(&asked), Purpose::READ);
        let found = found.and_then(|location| location.found().and_then(|_| location.real_path()));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{asked:?}"),
            (Err(_), Err(_)) => {}
            // The standard library requires a directory before a final dot; this resolver drops the dot.
            (Ok(found), Err(ErrorCode::NotADirectory)) if text(&asked).ends_with('.') => drop(found),
            (found, expected) => panic!("{asked:?}: {found:?} and {expected:?}"),
        }
    }
}

#[test]
fn the_kernels_own_links_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let opened = fs::File::open(dir.path()).unwrap();
    let own = own_fd(opened.as_fd());
    for path in
        [own.clone(), format!("{own}/file"), "/proc/self/root/etc".to_owned(), "/proc/self/cwd".to_owned()]
    {
        let failure = PathResolver::default().resolve(&path, Purpose::READ).unwrap_err();
        assert_eq!(failure.code(), ErrorCode::InvalidArgument, "{path}: {failure}");
        assert!(failure.message().contains("the kernel's own"), "{failure}");
    }
    PathResolver::default().resolve("/proc/self/status", Purpose::READ).unwrap();
    PathResolver::default().resolve("/proc/mounts", Purpose::READ).unwrap();
}

#[test]
fn names_may_contain_a_newline_but_no_nul_and_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: String| {
        write::write(&WriteRequest { operation: None, path, content: "x".into() }, &PathResolver::default())
    };
    write(format!("{}/new\nline", dir.path().display())).unwrap();
    assert_eq!(names(dir.path()), ["new\nline"]);
    assert_eq!(code(write(format!("{}/n\0l", dir.path().display()))), ErrorCode::InvalidArgument);
    let failure = write(format!("/{}", "x".repeat(1 << 20))).unwrap_err();
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(failure.message().len() < 1000);
    // Short enough for a path, but too long for a name.
    assert_eq!(code(write(format!("/tmp/{}", "x".repeat(300)))), ErrorCode::InvalidArgument);
}

/// One writable, one readable, one denied directory, and one that is none of these.
struct PolicySetup {
    dir: tempfile::TempDir,
    resolver: PathResolver,
}

impl PolicySetup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| text(&dir.path().join(name));
        for name in ["w/denied", "r", "out"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), "needle").unwrap();
        }
        fs::write(dir.path().join("w/file"), "needle").unwrap();
        symlink("../out", dir.path().join("w/way-out")).unwrap();
        symlink("../out/file", dir.path().join("w/file-out")).unwrap();
        symlink("../out/new", dir.path().join("w/new-out")).unwrap();
        symlink("w", dir.path().join("way-in")).unwrap();
        let policy = Policy {
            readable: vec![path("r")],
            writable: vec![path("w")],
            denied: vec![path("w/denied")],
            ..Policy::default()
        };
        let resolver = PathResolver::default().with_rules(FileRules::new(&policy).into());
        Self { dir, resolver }
    }

    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name))
    }

    fn read(&self, name: &str) -> Result<(), Failure> {
        let request = ReadRequest { path: self.path(name), line_limit: 1, ..ReadRequest::default() };
        read::read(&request, &self.resolver).map(drop)
    }

    fn write(&self, name: &str) -> Result<(), Failure> {
        let request = WriteRequest { operation: None, path: self.path(name), content: "new".into() };
        write::write(&request, &self.resolver).map(drop)
    }

    fn moved(&self, from: &str, to: &str) -> Result<(), Failure> {
        let (from, to) = (self.path(from), self.path(to));
        rename::move_path(&MoveRequest { operation: None, from, to, replace: true }, &self.resolver).map(drop)
    }
}

const FORBIDDEN: [&str; 7] = [
    "out/file",
    "w/../out/file",
    "w/way-out/file",
    "w/file-out",
    "w/denied/file",
    "out/no/such",
    "w/way-out/no",
];

#[test]
fn reads_obey_the_policy_for_the_real_path() {
    let setup = PolicySetup::new();
    for allowed in ["w/file", "r/file", "r/../w/file", "way-in/file"] {
        setup.read(allowed).unwrap();
    }
    for path in FORBIDDEN {
        assert_eq!(code(setup.read(path)), ErrorCode::Policy, "{path}");
        let stat = StatRequest { path: setup.path(path), follow: true };
        assert_eq!(code(info::stat(&stat, &setup.resolver)), ErrorCode::Policy, "{path}");
        let request = sandpod_protocol::v1::DownloadRequest { path: setup.path(path) };
        assert_eq!(
            code(download::Download::new(&request, &setup.resolver).map(drop)),
            ErrorCode::Policy,
            "{path}"
        );
    }
    let failure = setup.read("out/file").unwrap_err();
    assert!(failure.message().contains("the policy of this sandbox does not allow it"), "{failure}");
    // A link out may be inspected, but not followed.
    let itself = StatRequest { path: setup.path("w/file-out"), follow: false };
    info::stat(&itself, &setup.resolver).unwrap();
    for path in ["", "out", "w/way-out", "w/denied"] {
        let request = ListRequest { path: setup.path(path) };
        assert_eq!(code(info::list(&request, &setup.resolver)), ErrorCode::Policy, "{path}");
    }
    let listed = info::list(&ListRequest { path: setup.path("w") }, &setup.resolver).unwrap().entries;
    assert!(!listed.iter().any(|entry| entry.path.ends_with("denied")));
}

#[test]
fn changes_obey_the_policy_for_the_real_path() {
    let setup = PolicySetup::new();
    setup.write("w/new/file").unwrap();
    let edit = |path: String| {
        let (old_text, new_text) = ("needle".to_owned(), "x".to_owned());
        let request = EditRequest { operation: None, path, old_text, new_text, replace_all: false };
        edit::edit(&request, &setup.resolver)
    };
    for path in
        FORBIDDEN.into_iter().chain(["r/file", "r/new", "w/new-out", "w/way-out/new/deep", "w/denied/new/x"])
    {
        assert_eq!(code(setup.write(path)), ErrorCode::Policy, "{path}");
        assert_eq!(code(edit(setup.path(path))), ErrorCode::Policy, "{path}");
    }
    for (from, to) in [("w/file", "out/x"), ("r/file", "w/x"), ("w/file", "w/denied/x"), ("out/file", "w/x")]
    {
        assert_eq!(code(setup.moved(from, to)), ErrorCode::Policy, "{from} {to}");
    }
    assert_eq!(names(&setup.dir.path().join("out")), ["file"]);
    assert_eq!(names(&setup.dir.path().join("w/denied")), ["file"]);
}

#[test]
fn a_denied_path_protects_its_parent_directory() {
    let setup = PolicySetup::new();
    assert_eq!(code(setup.moved("w", "w2")), ErrorCode::Policy);
    let delete = |path: &str| {
        let request = DeleteRequest { path: setup.path(path), ..DeleteRequest::default() };
        delete::delete(&request, &setup.resolver)
    };
    assert_eq!(code(delete("w")), ErrorCode::Policy);
    assert_eq!(code(delete("w/way-out/file")), ErrorCode::Policy);
    delete("w/way-out").unwrap(); // the link itself is inside
    assert!(setup.dir.path().join("out/file").exists());
}

#[test]
fn searches_obey_the_policy() {
    let setup = PolicySetup::new();
    let glob = |root: &str| {
        let request = GlobRequest { pattern: "**".to_owned(), root: setup.path(root) };
        search::glob(&request, &setup.resolver).map(|found| found.matches.len())
    };
    let grep = |root: &str| {
        let (pattern, root) = ("needle".to_owned(), setup.path(root));
        let request = GrepRequest { pattern, root, ..GrepRequest::default() };
        search::grep(&request, Path::new("/"), &setup.resolver).map(|found| found.matches.len())
    };
    assert_eq!((glob("w").unwrap(), grep("w").unwrap()), (1, 1));
    assert_eq!((glob("r").unwrap(), grep("r").unwrap()), (1, 1));
    for root in ["", "out", "w/way-out", "w/denied", "out/file"] {
        assert_eq!(code(glob(root)), ErrorCode::Policy, "{root}");
        assert_eq!(code(grep(root)), ErrorCode::Policy, "{root}");
    }
}

#[test]
fn a_link_swapped_during_a_write_does_not_redirect_it() {
    let setup = PolicySetup::new();
    let (path, aside) = (setup.dir.path().join("w/swapped"), setup.dir.path().join("w/aside"));
    let (done, mut failures) = (AtomicBool::new(false), Vec::new());
    fs::create_dir(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = fs::rename(&path, &aside);
                let _ = symlink("../out", &path);
                let _ = fs::remove_file(&path);
                let _ = fs::rename(&aside, &path);
            }
        });
        for round in 0..1000 {
            let outcome = match round % 3 {
                0 => setup.write("w/swapped/file"),
                1 => setup
                    .write("w/swapped/file")
                    .and_then(|()| setup.moved("w/swapped/file", "w/swapped/moved")),
                _ => setup.read("w/swapped/file"),
            };
            failures.extend(outcome.err());
        }
        done.store(true, Ordering::Relaxed);
    });
    let expected = [ErrorCode::Policy, ErrorCode::NotFound, ErrorCode::NotADirectory, ErrorCode::Changed];
    let other = failures.iter().find(|failure| !expected.contains(&failure.code()));
    assert!(other.is_none(), "{other:?}");
    assert_eq!(names(&setup.dir.path().join("out")), ["file"]);
    assert_eq!(fs::read_to_string(setup.dir.path().join("out/file")).unwrap(), "needle");
}
