//! Target `paths`: an input is a list of file calls, a line each: a letter, and the paths it is about. The
//! sandbox is bound to one directory, and no path may lead out of it, whatever it reads like.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{
    Binding, ByteStream, Bytes, Connection, DialError, Dialer, GrepOptions, Options, Page, Policy,
    ReadOptions, Sandbox,
};
use sandpod_guest::{Guest, Without};

use crate::outside::{Outside, SECRET};
use crate::wire::{finish, guest_without};

/// More calls than this show nothing more.
const MOST_CALLS: usize = 8;

pub(crate) fn run(input: &[u8], planted: bool) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    finish(async {
        // Every second input goes the way of kernels that do not resolve paths themselves.
        let guest = guest_without(Without { openat2: input.len() % 2 == 1, ..Without::default() });
        let (outside, inside) = Outside::prepare();
        let sandbox = Sandbox::new(Connection::new(Here(guest), Options::default()));
        sandbox.bind(binding(&inside)).await.expect("a sandbox can be bound to a directory");
        for line in input.lines().take(MOST_CALLS) {
            let (call, paths) = line.split_at_checked(1).unwrap_or_default();
            let (path, other) = paths.split_once('\t').unwrap_or((paths, "f"));
            let [path, other] = [path, other].map(|path| absolute(&inside, path));
            if planted && call == "w" {
                naive_write(&path);
            }
            let heard = ask(&sandbox, call, &path, &other).await;
            let heard = String::from_utf8_lossy(&heard);
            assert!(!heard.contains(SECRET), "{line:?} showed what is outside: {heard}");
        }
        outside.assert_untouched();
    });
}

fn binding(inside: &str) -> Binding {
    let roots = || vec![inside.to_owned()];
    let policy = Policy { readable: roots(), writable: roots(), ..Policy::default() };
    Binding { claim: "fuzz".to_owned(), policy: Some(policy), ..Binding::default() }
}

/// A path that does not begin with a slash is below the directory.
fn absolute(inside: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{inside}/{path}") }
}

/// Makes one call, and answers what the guest showed of contents.
async fn ask(sandbox: &Sandbox, call: &str, path: &str, other: &str) -> Bytes {
    let nothing = Bytes::new();
    match call {
        "w" => drop(sandbox.write(path, "written").await),
        "e" => drop(sandbox.edit(path, "text", "edited", true).await),
        "d" => drop(sandbox.delete(path).await),
        "m" => drop(sandbox.move_path(path, other, true).await),
        "s" => drop(sandbox.stat(path, true).await),
        "l" => drop(sandbox.list(path).await),
        "g" => drop(sandbox.glob("*", path).await),
        "r" => {
            return match sandbox.read(path, ReadOptions::default()).await {
                Ok(Page::Text(page)) => page.content.into(),
                Ok(Page::Binary(content)) => content,
                Err(_) => nothing,
            };
        }
        "x" => return sandbox.download(path, 1 << 20).await.unwrap_or_default(),
        "f" => {
            let options = GrepOptions { root: Some(path.to_owned()), ..GrepOptions::default() };
            let found = sandbox.grep("secret", options).await;
            return found.map_or(nothing, |found| {
                found.matches.into_iter().map(|found| found.text).collect::<String>().into()
            });
        }
        _ => {}
    }
    nothing
}

/// The planted bug: a look at the words of a path, and none at what the links in it lead to.
fn naive_write(path: &str) {
    if !path.split('/').any(|name| name == "..") && path.starts_with("/cell/in/") {
        let _ = std::fs::write(path, "written");
    }
}

/// Dials a guest in this process.
struct Here(Guest);

impl Dialer for Here {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let guest = self.0.clone();
        tokio::spawn(async move { guest.serve_stream(theirs).await });
        async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
    }
}
