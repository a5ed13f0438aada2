//! The images of the test Pods, in one OCI archive, built without a registry or Docker.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::tools::Tools;
use crate::progress::step;
use crate::shell::{command, output, run};
use crate::workspace::{cache, fingerprint, hex, root};

/// The image that holds a Pod's namespaces open.
pub(super) const PAUSE: &str = "sandpod.test/pause:1";
pub(super) const ROUTER: &str = "sandpod.test/sandbox-router:1";
/// An image whose environment asks the guest to drop its kernel restrictions.
const WEAK_ENV: &str = "sandpod.test/weak-env:1";
/// The image with Python, under our name and the one that the code of other packages uses.
const PYTHON: [&str; 2] = ["sandpod.test/python:1", "docker.io/library/python:3.12-slim"];

/// Returns the archive with all images, from the cache or created now.
pub(super) fn archive(tools: &Tools) -> Result<PathBuf> {
    let inputs = [root().join("xtask/src/cluster/images.rs"), PathBuf::from("/bin/busybox")];
    let tools_key = tools.dir.file_name().unwrap_or_default().to_string_lossy();
    let dir = cache()?.join("testbed/images").join(fingerprint(&inputs, &tools_key)?);
    let archive = dir.join("images.tar");
    if archive.exists() {
        return Ok(archive);
    }
    step("making the test images (pause, scratch, busybox, python)");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let unfinished = dir.join("images.tar.unfinished");
    write_archive(tools, &dir, &unfinished)?;
    fs::rename(&unfinished, &archive).context("cannot keep the images in the cache")?;
    Ok(archive)
}

fn write_archive(tools: &Tools, scratch_dir: &Path, archive: &Path) -> Result<()> {
    let mut images = ImageArchive::create(archive)?;
    let pause = binary_layer(&tools.path("pause"), "pause")?;
    images.add(&[PAUSE], &pause, ("Cmd", "/pause"))?;
    images.add(&["sandpod.test/scratch:1"], &pause, ("Cmd", "/pause"))?;
    let busybox = busybox_layer()?;
    images.add(&["sandpod.test/busybox:1"], &busybox, ("Cmd", "sh"))?;
    images.add_with_env(
        &[WEAK_ENV],
        &busybox,
        ("Cmd", "sh"),
        &["SANDPOD_DISABLED_KERNEL_FEATURES=landlock,seccomp", "OTHER=arrives"],
    )?;
    // With the entry point of its project's image: users' manifests have only the arguments.
    let router = binary_layer(&tools.path("sandbox-router"), "sandbox-router")?;
    images.add(&[ROUTER], &router, ("Entrypoint", "/sandbox-router"))?;
    images.add(&PYTHON, &python_layer(scratch_dir)?, ("Cmd", "python3"))?;
    images.finish()
}

/// An OCI image layout in a tar file, as `ctr images import` reads it.
struct ImageArchive {
    tar: Builder<File>,
    manifests: Vec<Value>,
}

impl ImageArchive {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { tar: Builder::new(file), manifests: Vec::new() })
    }

    /// Adds an image of one layer, an uncompressed tar, under each of `names`. `start` is a key of its configuration and a program.
    fn add(&mut self, names: &[&str], layer: &[u8], start: (&str, &str)) -> Result<()> {
        self.add_with_env(names, layer, start, &[])
    }

    fn add_with_env(
        &mut self,
        names: &[&str],
        layer: &[u8],
        (key, program): (&str, &str),
        env: &[&str],
    ) -> Result<()> {
        let env = [&["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], env].concat();
        let layer = self.blob("application/vnd.oci.image.layer.v1.tar", layer)?;
        let config = json!({
            "architecture": go_arch(),
            "os": "linux",
            "config": {
                key: [program],
                "Env": env,
            },
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", &serde_json::to_vec(&config)?)?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": [layer],
        });
        let manifest = self.blob(media_type, &serde_json::to_vec(&manifest)?)?;
        for name in names {
            let mut entry = manifest.clone();
            entry["annotations"] = json!({ "io.containerd.image.name": name });
            self.manifests.push(entry);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let index = json!({ "schemaVersion": 2, "manifests": self.manifests });
        append_file(&mut self.tar, "index.json", 0o644, &serde_json::to_vec(&index)?)?;
        append_file(&mut self.tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        self.tar.into_inner()?.flush()?;
        Ok(())
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, content: &[u8]) -> Result<Value> {
        let digest = hex(&Sha256::digest(content));
        append_file(&mut self.tar, &format!("blobs/sha256/{digest}"), 0o644, content)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len() }))
    }
}

/// A layer with one executable at the root.
fn binary_layer(binary: &Path, name: &str) -> Result<Vec<u8>> {
    let content = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let mut layer = Builder::new(Vec::new());
    append_file(&mut layer, name, 0o755, &content)?;
    Ok(layer.into_inner()?)
}

/// A layer with the static busybox and a link for each of its tools.
fn busybox_layer() -> Result<Vec<u8>> {
    let busybox = "/bin/busybox";
    let mut layer = Builder::new(Vec::new());
    append_dir(&mut layer, "bin/", 0o755)?;
    append_dir(&mut layer, "etc/", 0o755)?;
    append_dir(&mut layer, "tmp/", 0o1777)?;
    append_file(&mut layer, "etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n")?;
    append_file(&mut layer, "etc/group", 0o644, b"root:x:0:\n")?;
    append_file(&mut layer, "bin/busybox", 0o755, &fs::read(busybox).context("cannot read busybox")?)?;
    for applet in output(&mut command(busybox, ["--list"]))?.lines().filter(|name| *name != "busybox") {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    Ok(layer.into_inner()?)
}

/// A layer with Debian's essential packages and Python, from the release of this machine.
fn python_layer(scratch_dir: &Path) -> Result<Vec<u8>> {
    let path = scratch_dir.join("python.tar");
    let mut debootstrap = command("mmdebstrap", ["--quiet", "--variant=essential", "--include=python3"]);
    for folder in ["doc", "locale", "man"] {
        debootstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    debootstrap
        .arg(r#"--customize-hook=ln -s python3 "$1/usr/bin/python""#)
        .arg(r#"--customize-hook=rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists"#)
        .arg(debian_release()?)
        .arg(&path);
    run(&mut debootstrap)
        .context("cannot make the python image: mmdebstrap needs Debian's package archive")?;
    let layer = fs::read(&path).context("mmdebstrap left no archive")?;
    fs::remove_file(&path)?;
    Ok(layer)
}

fn debian_release() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release names no release: the python image needs Debian or Ubuntu")
}

/// The name of the architecture in OCI images.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn append_file<W: std::io::Write>(tar: &mut Builder<W>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

fn append_dir<W: std::io::Write>(tar: &mut Builder<W>, path: &str, mode: u32) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Directory);
    header.set_mode(mode);
    header.set_size(0);
    Ok(tar.append_data(&mut header, path, std::io::empty())?)
}
