//! Finds the guest's programs on this machine. Backends copy them into sandboxes.

use std::env;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::read::DeflateDecoder;

use crate::{Error, ErrorKind, Result};

/// File name of the program that starts the guest.
const BOOT: &str = "sandpod-boot";
/// File name of the guest.
const GUEST: &str = "sandpod-guest";

/// CPU architecture of this machine.
const OWN_ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The guests of this executable, see [`embed_guests`].
static EMBEDDED: OnceLock<&'static [EmbeddedGuest]> = OnceLock::new();

/// The guest's programs for one architecture as part of an executable, each compressed by deflate.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedGuest {
    /// The architecture as Kubernetes names it, such as `amd64`.
    pub arch: &'static str,
    /// The program that starts the guest.
    pub boot: &'static [u8],
    /// The guest.
    pub guest: &'static [u8],
}

/// Makes the guests that were built into this executable available to all providers. They are used if no directory holds a
/// guest that was installed with the executable. Only the first call has an effect.
///
/// ```
/// sandpod::embed_guests(&[]);
/// ```
pub fn embed_guests(guests: &'static [EmbeddedGuest]) {
    let _ = EMBEDDED.set(guests);
}

/// Contents of both programs.
pub(crate) struct GuestBinaries {
    pub(crate) boot: Vec<u8>,
    pub(crate) guest: Vec<u8>,
}

/// Reads the programs for `arch` from the first of these that has both: `SANDPOD_GUEST_DIR`, the directory beside `package_dir`
/// or the executable, the executable itself, and the user's cache directory.
pub(crate) fn find(arch: &str, package_dir: Option<&Path>) -> Result<GuestBinaries> {
    let embedded = EMBEDDED.get().copied().unwrap_or_default();
    find_in(arch, named(), package_dir, embedded)
}

fn find_in(
    arch: &str,
    named: Option<PathBuf>,
    package_dir: Option<&Path>,
    embedded: &[EmbeddedGuest],
) -> Result<GuestBinaries> {
    // The cache may contain another version than the executable.
    let only_cached = named.is_none() && beside(arch, package_dir).is_none_or(|dir| !is_complete(&dir));
    match embedded.iter().find(|guest| guest.arch == arch) {
        Some(guest) if only_cached => inflate(guest),
        _ => read_first(&candidates(arch, named, package_dir), arch),
    }
}

fn inflate(guest: &EmbeddedGuest) -> Result<GuestBinaries> {
    let inflated = |packed: &[u8]| {
        let mut program = Vec::new();
        DeflateDecoder::new(packed).read_to_end(&mut program).map(|_| program).map_err(|cause| {
            Error::new(
                ErrorKind::StartFailed,
                format!("The guest for {} in this executable is damaged: {cause}.", guest.arch),
                "Install sandpod again.",
            )
        })
    };
    Ok(GuestBinaries { boot: inflated(guest.boot)?, guest: inflated(guest.guest)? })
}

/// Path of the guest's program for this machine, in the directories that [`find`] searches.
pub(crate) fn find_guest(package_dir: Option<&Path>) -> Result<PathBuf> {
    Ok(first(&candidates(OWN_ARCH, named(), package_dir), OWN_ARCH)?.join(GUEST))
}

/// Path of the guest's program for this machine, if it was installed with the executable or `SANDPOD_GUEST_DIR` is set.
/// The cache is not searched, because it may contain another version.
pub(crate) fn find_installed_guest() -> Result<Option<PathBuf>> {
    match named() {
        Some(dir) => Ok(Some(first(&candidates(OWN_ARCH, Some(dir), None), OWN_ARCH)?.join(GUEST))),
        None => Ok(beside(OWN_ARCH, None).map(|dir| dir.join(GUEST)).filter(|guest| guest.is_file())),
    }
}

fn named() -> Option<PathBuf> {
    env::var_os("SANDPOD_GUEST_DIR").map(PathBuf::from)
}

fn candidates(arch: &str, named: Option<PathBuf>, package_dir: Option<&Path>) -> Vec<PathBuf> {
    // If a directory is named, no other is searched, so that another guest is never used silently.
    if let Some(dir) = named {
        return vec![dir.join(arch), dir];
    }
    let cached = cache_dir().map(|dir| dir.join("sandpod/guest").join(arch));
    beside(arch, package_dir).into_iter().chain(cached).collect()
}

fn beside(arch: &str, package_dir: Option<&Path>) -> Option<PathBuf> {
    let executable = || env::current_exe().ok()?.parent().map(Path::to_owned);
    package_dir.map(Path::to_owned).or_else(executable).map(|dir| dir.join("guest").join(arch))
}

fn cache_dir() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| env::home_dir().map(|home| home.join(".cache")))
}

fn first<'a>(candidates: &'a [PathBuf], arch: &str) -> Result<&'a Path> {
    let found = candidates.iter().find(|dir| is_complete(dir));
    found.map(PathBuf::as_path).ok_or_else(|| {
        let looked: Vec<_> = candidates.iter().map(|dir| dir.display().to_string()).collect();
        Error::new(
            ErrorKind::StartFailed,
            format!("The guest for {arch} ({BOOT}, {GUEST}) is not in {}.", looked.join(", nor in ")),
            "Build it with `cargo xtask guest`, or set SANDPOD_GUEST_DIR to the folder that holds it.",
        )
    })
}

fn is_complete(dir: &Path) -> bool {
    dir.join(BOOT).is_file() && dir.join(GUEST).is_file()
}

fn read_first(candidates: &[PathBuf], arch: &str) -> Result<GuestBinaries> {
    let dir = first(candidates, arch)?;
    Ok(GuestBinaries { boot: read(&dir.join(BOOT))?, guest: read(&dir.join(GUEST))? })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|cause| {
        Error::new(
            ErrorKind::Unavailable,
            format!("Can't read {}: {cause}.", path.display()),
            "Make it readable, or build it again with `cargo xtask guest`.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_guest_error_lists_searched_directories_and_the_fix() {
        let looked = ["/no/such/dir".into(), "/nor/this".into()];
        let error = read_first(&looked, "arm64").err().unwrap().to_string();
        for part in ["arm64", "/no/such/dir", "/nor/this", "cargo xtask guest", "SANDPOD_GUEST_DIR"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn first_directory_with_both_programs_is_used() {
        let temporary = env::temp_dir().join(format!("sandpod-binaries-{}", std::process::id()));
        let (half, whole) = (temporary.join("half"), temporary.join("whole"));
        for (dir, name) in [(&half, BOOT), (&whole, BOOT), (&whole, GUEST)] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join(name), name).unwrap();
        }

        let found = read_first(&[half, whole], "amd64");

        fs::remove_dir_all(temporary).unwrap();
        let found = found.unwrap();
        assert_eq!((&found.boot[..], &found.guest[..]), (BOOT.as_bytes(), GUEST.as_bytes()));
    }

    #[test]
    fn embedded_guest_is_used_unless_one_is_named_or_installed_beside_the_executable() {
        let packed = |text: &str| {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
            &*encoder.finish().unwrap().leak()
        };
        let embedded = [EmbeddedGuest { arch: "amd64", boot: packed("boot"), guest: packed("guest") }];
        let installed = env::temp_dir().join(format!("sandpod-embedded-{}", std::process::id()));
        fs::create_dir_all(installed.join("guest/amd64")).unwrap();
        for program in [BOOT, GUEST] {
            fs::write(installed.join("guest/amd64").join(program), "installed").unwrap();
        }

        let none = find_in("amd64", None, Some("/no/such/dir".as_ref()), &embedded);
        let beside = find_in("amd64", None, Some(&installed), &embedded);
        let named = find_in("amd64", Some("/no/such/dir".into()), None, &embedded);

        fs::remove_dir_all(installed).unwrap();
        let none = none.unwrap();
        assert_eq!((&none.boot[..], &none.guest[..]), (&b"boot"[..], &b"guest"[..]));
        assert_eq!(beside.unwrap().guest, b"installed");
        assert!(named.is_err());
    }

    #[test]
    fn named_directory_excludes_others_and_package_precedes_cache() {
        let named = candidates("amd64", Some("/named".into()), Some("/package".as_ref()));
        assert_eq!(named, [Path::new("/named/amd64"), Path::new("/named")]);
        let others = candidates("amd64", None, Some("/package".as_ref()));
        assert_eq!(others[0], Path::new("/package/guest/amd64"));
        assert!(others[1].ends_with("sandpod/guest/amd64"), "{others:?}");
    }
}
