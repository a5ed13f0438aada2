//! Images of agent-sandbox's Python runtime and Python router, equivalent to those of their Dockerfiles. The sources come from
//! the Go module that the testbed pins, the packages are those that the sources pin, and the base is the testbed's Debian.
//!
//! Each image has the layer of [`BASE`], which the testbed's containerd already holds, and one more, which is cached.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tar::{Archive, Builder, EntryType, Header};

use crate::cluster;
use crate::guest_image::{ctr, give};
use crate::oci::{self, append};
use crate::progress::step;
use crate::shell::{command, output, run};
use crate::workspace::{cache, fingerprint, root};

/// The testbed's image with Debian and Python.
const BASE: &str = "sandpod.test/python:1";
/// The user of both Dockerfiles.
const USER: u64 = 1000;

/// A program of agent-sandbox that uvicorn serves.
struct Program {
    image: &'static str,
    /// Its directory in the Go module, with its `requirements.txt`.
    dir: &'static str,
    source: &'static str,
    /// The arguments of `uvicorn` in its Dockerfile's CMD.
    arguments: &'static [&'static str],
}

const PROGRAMS: [Program; 2] = [
    Program {
        image: "sandpod.test/stock-python:1",
        dir: "examples/python-runtime-sandbox",
        source: "main.py",
        arguments: &["main:app", "--host", "0.0.0.0", "--port", "8888", "--log-level", "trace"],
    },
    Program {
        image: "sandpod.test/stock-router:1",
        dir: "clients/python/agentic-sandbox-client/sandbox-router",
        source: "sandbox_router.py",
        arguments: &["sandbox_router:app", "--host", "0.0.0.0", "--port", "8080"],
    },
];

/// The omitted packages, which neither API imports: 400 MB for users' code (lightgbm, pandas, scikit-learn and their
/// dependencies), and the test tools of the router.
const OMITTED: [&str; 16] = [
    "iniconfig",
    "joblib",
    "lightgbm",
    "narwhals",
    "numpy",
    "packaging",
    "pandas",
    "pluggy",
    "pygments",
    "pytest",
    "pytest-asyncio",
    "python-dateutil",
    "scikit-learn",
    "scipy",
    "six",
    "threadpoolctl",
];

/// Replaces pip's script, which names the interpreter that runs pip; the image has another one.
const UVICORN: &[u8] = b"#!/usr/bin/python3\nimport sys\nfrom uvicorn.main import main\nsys.exit(main())\n";

/// Loads both images into the testbed whose kubeconfig this is. Another cluster must have them already.
pub(crate) fn load(kubeconfig: &Path) -> Result<()> {
    if ctr(kubeconfig).is_none() {
        return Ok(());
    }
    let sources = cluster::module_sources("testbed/agent-sandbox", "sigs.k8s.io/agent-sandbox")?;
    let base = Base::find(kubeconfig)?;
    PROGRAMS.iter().try_for_each(|program| {
        let layer = program.layer(&sources, &base, kubeconfig)?;
        give(kubeconfig, |archive| program.write(&base, &fs::read(layer)?, archive))
    })
}

/// The parts of [`BASE`] that an image on top of it repeats.
struct Base {
    /// The descriptors of its layers.
    layers: Vec<Value>,
    config: Value,
}

impl Base {
    fn find(kubeconfig: &Path) -> Result<Self> {
        let ctr = |args: &[&str]| {
            let ctr = crate::guest_image::ctr(kubeconfig).context("the testbed has a containerd")?;
            output({ ctr }.args(args))
        };
        let json =
            |digest: &str| -> Result<Value> { Ok(serde_json::from_str(&ctr(&["content", "get", digest])?)?) };
        let table = ctr(&["images", "ls", &format!("name=={BASE}")])?;
        let digest = table.split_whitespace().find(|word| word.starts_with("sha256:"));
        let manifest = json(digest.with_context(|| format!("the testbed has no image {BASE}"))?)?;
        let config = json(manifest["config"]["digest"].as_str().context("a manifest names its config")?)?;
        let layers = manifest["layers"].as_array().context("a manifest names its layers")?.clone();
        Ok(Self { layers, config })
    }

    fn layer(&self) -> Result<&str> {
        self.layers.first().and_then(|layer| layer["digest"].as_str()).context("the base image has a layer")
    }

    /// The version of its Python, such as `3.11`: a wheel is for one version.
    fn python(&self, kubeconfig: &Path) -> Result<String> {
        let mut ctr = ctr(kubeconfig).context("the testbed has a containerd")?;
        let mut reading = ctr.args(["content", "get", self.layer()?]).stdout(Stdio::piped()).spawn()?;
        let stdout = reading.stdout.take().context("the child's output is piped")?;
        let found = python_in(stdout);
        let _ = reading.kill();
        reading.wait()?;
        found?.with_context(|| format!("{BASE} has no Python"))
    }
}

/// The version of the interpreter in a layer.
fn python_in(layer: impl Read) -> Result<Option<String>> {
    for entry in Archive::new(layer).entries()? {
        let entry = entry?;
        let path = entry.path()?;
        let version = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("python"));
        let Some(version) = version.filter(|_| path.parent().is_some_and(|dir| dir.ends_with("usr/bin")))
        else {
            continue;
        };
        if version.starts_with("3.") && entry.header().entry_type() == EntryType::Regular {
            return Ok(Some(version.to_owned()));
        }
    }
    Ok(None)
}

impl Program {
    /// The layer with the program and its packages, from the cache or created now.
    fn layer(&self, sources: &Path, base: &Base, kubeconfig: &Path) -> Result<PathBuf> {
        let own = sources.join(self.dir);
        let inputs =
            [root().join("xtask/src/stock_images.rs"), own.join("requirements.txt"), own.join(self.source)];
        let dir = cache()?.join("testbed/stock-images").join(fingerprint(&inputs, base.layer()?)?);
        let layer = dir.join("layer.tar");
        if layer.exists() {
            return Ok(layer);
        }
        step(format!("creating the test image {}", self.image));
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let scratch = tempfile::tempdir()?;
        let python = base.python(kubeconfig)?;
        let packages = install(&own.join("requirements.txt"), &python, scratch.path())?;
        let unfinished = dir.join("layer.tar.unfinished");
        let mut tar = Builder::new(File::create(&unfinished)?);
        tar.append_dir_all(format!("usr/local/lib/python{python}/dist-packages"), packages)?;
        append(&mut tar, "usr/local/bin/uvicorn", 0o755, UVICORN)?;
        append_owned(&mut tar, "app/", EntryType::Directory, 0o755, b"")?;
        for file in ["requirements.txt", self.source] {
            append_owned(
                &mut tar,
                &format!("app/{file}"),
                EntryType::Regular,
                0o644,
                &fs::read(own.join(file))?,
            )?;
        }
        tar.into_inner()?.flush()?;
        fs::rename(unfinished, &layer).context("cannot keep the layer in the cache")?;
        Ok(layer)
    }

    /// Writes the image as an OCI archive without the layer of [`BASE`], which containerd has.
    fn write(&self, base: &Base, layer: &[u8], to: &Path) -> Result<()> {
        let mut archive = oci::Archive::create(to)?;
        let own = archive.blob("application/vnd.oci.image.layer.v1.tar", layer)?;
        let mut config = base.config.clone();
        let command: Vec<_> = ["uvicorn"].iter().chain(self.arguments).collect();
        config["config"]["Cmd"] = json!(command);
        config["config"]["User"] = json!(USER.to_string());
        config["config"]["WorkingDir"] = json!("/app");
        let diff_ids = config["rootfs"]["diff_ids"].as_array_mut().context("a config names its layers")?;
        // A layer that is not compressed has one digest.
        diff_ids.push(own["digest"].clone());
        let layers: Vec<_> = base.layers.iter().chain([&own]).collect();
        let manifest = archive.manifest(&config, &layers)?;
        archive.finish(self.image, manifest)?;
        step(format!("{} is in {}", self.image, to.display()));
        Ok(())
    }
}

/// Installs the requirements for this Python, without the omitted ones; returns their directory.
fn install(requirements: &Path, python: &str, scratch: &Path) -> Result<PathBuf> {
    let (tools, wanted, packages) =
        (scratch.join("tools"), scratch.join("wanted.txt"), scratch.join("packages"));
    fs::write(&wanted, kept(&fs::read_to_string(requirements)?))?;
    run(command("python3", ["-m", "venv"]).arg(&tools))
        .context("cannot create a virtual environment: python3 needs its venv module")?;
    let mut pip: Command =
        command(tools.join("bin/pip"), ["install", "--quiet", "--no-deps", "--require-hashes"]);
    pip.args(["--only-binary=:all:", "--python-version", python, "--target"]).arg(&packages);
    run(pip.arg("--requirement").arg(&wanted))
        .with_context(|| format!("cannot install {}", wanted.display()))?;
    Ok(packages)
}

/// The lines of a requirements file with hashes, without those of omitted packages.
fn kept(requirements: &str) -> String {
    let mut keeping = false;
    let lines = requirements.lines().filter(|line| {
        if let Some((name, _)) = line.split_once("==").filter(|_| !line.starts_with([' ', '#'])) {
            keeping = !OMITTED.contains(&name);
        }
        keeping
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Adds a file or directory that belongs to the image's user.
fn append_owned<W: std::io::Write>(
    tar: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(USER);
    header.set_gid(USER);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_omitted_with_its_hashes() {
        let all = "# made by\nfastapi==1 \\\n    --hash=sha256:a\n    # via x\nnumpy==2 \\\n    --hash=sha256:b\nuvicorn==3\n";
        assert_eq!(kept(all), "fastapi==1 \\\n    --hash=sha256:a\n    # via x\nuvicorn==3\n");
    }
}
