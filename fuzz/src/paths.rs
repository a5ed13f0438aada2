//! Target `paths`: an input is a list of file calls, one in each line. The first byte of a line selects the call, and every
//! other byte a name of its path. The sandbox is bound to one directory, and no path may lead out of it.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{
    Binding, ByteStream, Bytes, Connection, DialError, Dialer, GrepOptions, Options, Page, Policy,
    ReadOptions, Sandbox,
};
use sandpod_guest::{DisabledKernelFeatures, Guest};

use crate::outside::{Outside, SECRET};
use crate::wire::{finish, guest_with_disabled};

/// The number of kinds of calls.
const CALLS: u8 = 11;
const WRITE: u8 = 0;
/// The most calls of an input; more do not find more.
const MOST_CALLS: usize = 8;
/// The names of paths: links that lead out, existing names, and names that are hard to parse.
const NAMES: [&str; 16] = [
    "..", ".", "", "d", "f", "up", "file", "absolute", "dots", "out", "in", "new", "a\0b", "...", "e\u{301}",
    "cell",
];

pub(crate) fn run(input: &[u8], planted: bool) {
    finish(async {
        // Every second input uses the code for kernels without openat2.
        let guest = guest_with_disabled(DisabledKernelFeatures {
            openat2: input.len() % 2 == 1,
            ..DisabledKernelFeatures::default()
        });
        let (outside, inside) = Outside::prepare();
        let sandbox = Sandbox::new(Connection::new(Here(guest), Options::default()));
        sandbox.bind(binding(&inside)).await.expect("a sandbox can be bound to a directory");
        for line in input.split(|byte| *byte == b'\n').take(MOST_CALLS) {
            let Some((call, names)) = line.split_first() else { continue };
            let path = path(&inside, names);
            if planted && call % CALLS == WRITE {
                naive_write(&path);
            }
            let heard = ask(&sandbox, *call, &path, &format!("{inside}/d/other")).await;
            let heard = String::from_utf8_lossy(&heard);
            assert!(!heard.contains(SECRET), "{path:?} showed what is outside: {heard}");
        }
        outside.assert_untouched();
    });
}

/// Returns the path for the bytes, below the directory, or from the root if the first name is absolute.
fn path(inside: &str, names: &[u8]) -> String {
    let from_top = names.first().is_some_and(|byte| *byte >= 0x80);
    let names: Vec<_> = names.iter().map(|byte| NAMES[usize::from(byte % 16)]).collect();
    if from_top { format!("/{}", names.join("/")) } else { format!("{inside}/{}", names.join("/")) }
}

fn binding(inside: &str) -> Binding {
    let roots = || vec![inside.to_owned()];
    let policy = Policy { readable: roots(), writable: roots(), ..Policy::default() };
    Binding { claim: "fuzz".to_owned(), policy: Some(policy), ..Binding::default() }
}

/// Makes one call, and returns the contents that the guest showed.
async fn ask(sandbox: &Sandbox, call: u8, path: &str, other: &str) -> Bytes {
    match call % CALLS {
        WRITE => drop(sandbox.write(path, "written").await),
        1 => drop(sandbox.edit(path, "text", "edited", true).await),
        2 => drop(sandbox.delete(path).await),
        3 => drop(sandbox.move_path(path, other, true).await),
        4 => drop(sandbox.move_path(other, path, true).await),
        5 => drop(sandbox.stat(path, true).await),
        6 => drop(sandbox.list(path).await),
        7 => drop(sandbox.glob("*", path).await),
        8 => return sandbox.download(path, 1 << 20).await.unwrap_or_default(),
        9 => {
            let options = GrepOptions { root: Some(path.to_owned()), ..GrepOptions::default() };
            let found = sandbox.grep("secret", options).await.map(|found| found.matches).unwrap_or_default();
            return found.into_iter().map(|found| found.text).collect::<String>().into();
        }
        _ => {
            if let Ok(Page::Text(page)) = sandbox.read(path, ReadOptions::default()).await {
                return page.content.into();
            }
        }
    }
    Bytes::new()
}

/// The planted bug: a check of the path's text that ignores links.
fn naive_write(path: &str) {
    if !path.split('/').any(|name| name == "..") && path.starts_with("/cell/in/") {
        let _ = std::fs::write(path, "written");
    }
}

/// Connects to a guest in this process.
struct Here(Guest);

impl Dialer for Here {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let guest = self.0.clone();
        tokio::spawn(async move { guest.serve_stream(theirs).await });
        async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
    }
}
