//! Embeds the guests that `SANDPOD_EMBED_GUESTS` names. The variable holds a directory with one directory for each
//! architecture. Without it, the command contains no guest, and looks for one beside itself and in the cache.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

const VARIABLE: &str = "SANDPOD_EMBED_GUESTS";
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut guests = String::new();
    if let Some(dir) = env::var_os(VARIABLE).map(PathBuf::from) {
        for arch in ARCHITECTURES.iter().filter(|arch| dir.join(arch).is_dir()) {
            let boot = pack(&dir.join(arch).join("sandpod-boot"), &out.join(format!("boot-{arch}")))?;
            let guest = pack(&dir.join(arch).join("sandpod-guest"), &out.join(format!("guest-{arch}")))?;
            writeln!(guests, "EmbeddedGuest {{ arch: {arch:?}, boot: {boot}, guest: {guest} }},")?;
        }
    }
    Ok(fs::write(out.join("guests.rs"), format!("&[{guests}]"))?)
}

/// Compresses a program into a file; returns the expression that includes it.
fn pack(program: &Path, to: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", program.display());
    let content = fs::read(program).map_err(|error| format!("cannot read {}: {error}", program.display()))?;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&content)?;
    fs::write(to, encoder.finish()?)?;
    let name = to.file_name().unwrap_or_default().display();
    Ok(format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\"))"))
}
