//! The npm packages of a release: the main one, with JavaScript and the guests, and one with the addon of each platform.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::platform::{Libc, Platform};
use super::tools::{Tools, reproducible};
use super::{Files, LIBRARY, version};
use crate::node::Package;
use crate::progress::step;
use crate::shell::{command, output, run};
use crate::workspace::{root, target};

/// Builds the addon for a platform; returns its path.
pub(super) fn build_addon(tools: &Tools, platform: Platform) -> Result<PathBuf> {
    step(format!("building the addon for {}", platform.npm()));
    let mut cargo = tools.cargo(platform)?;
    if platform.libc == Libc::Musl {
        // A static C library cannot be loaded by Node.
        reproducible(&mut cargo, "-Ctarget-feature=-crt-static")?;
    }
    cargo.args(["--package=sandpod-node", "--profile", LIBRARY.name()]);
    run(cargo.current_dir(root()))
        .with_context(|| format!("cannot build the addon for {}", platform.npm()))?;
    Ok(target().join(platform.triple()).join(LIBRARY.name()).join("libsandpod_node.so"))
}

/// Packs the main package and that of each addon. The JavaScript of `package` was built, and `guests` has one directory for each
/// architecture.
pub(super) fn pack(
    package: &Package,
    guests: &Path,
    addons: &[(Platform, PathBuf)],
    files: &Files,
) -> Result<()> {
    files.remove("tgz", |name| !name.contains("-chart-"))?;
    let manifest = fs::read_to_string(package.dir().join("package.json"))?;
    let manifest: Value = serde_json::from_str(&manifest).context("package.json is no JSON")?;
    let staged = tempfile::tempdir()?;
    for (platform, addon) in addons {
        let dir = staged.path().join(platform.npm());
        stage_platform(*platform, addon, &manifest, &dir)?;
        npm_pack(&dir, files)?;
    }
    let main = staged.path().join("main");
    stage_main(package, guests, addons.iter().map(|(platform, _)| *platform), &main)?;
    npm_pack(&main, files)
}

/// The package of one addon. npm installs it only on its platform.
fn stage_platform(platform: Platform, addon: &Path, main: &Value, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let file = format!("sandpod.{}.node", platform.npm());
    fs::copy(addon, dir.join(&file)).with_context(|| format!("cannot copy {}", addon.display()))?;
    fs::copy(root().join("LICENSE"), dir.join("LICENSE"))?;
    let name = package_name(platform);
    fs::write(
        dir.join("README.md"),
        format!("# {name}\n\nThe native addon of the npm package `sandpod` for {}.\n", platform.npm()),
    )?;
    let manifest = json!({
        "name": name,
        "version": version(),
        "description": format!("The native addon of sandpod for {}", platform.npm()),
        "license": main["license"],
        "repository": main["repository"],
        "engines": main["engines"],
        "os": ["linux"],
        "cpu": [platform.arch.node()],
        "libc": [platform.npm_libc()],
        "main": file,
        "files": [file],
    });
    Ok(fs::write(dir.join("package.json"), serde_json::to_string_pretty(&manifest)? + "\n")?)
}

/// The main package. It depends on the package of each addon, and npm installs the one that fits.
fn stage_main(
    package: &Package,
    guests: &Path,
    platforms: impl Iterator<Item = Platform>,
    dir: &Path,
) -> Result<()> {
    fs::create_dir_all(dir)?;
    for name in ["package.json", "README.md", "OPTIONS.md", "native.cjs", "native.d.cts"] {
        fs::copy(package.dir().join(name), dir.join(name))?;
    }
    fs::copy(root().join("LICENSE"), dir.join("LICENSE"))?;
    copy_dir(&package.dir().join("dist"), &dir.join("dist"))?;
    copy_dir(guests, &dir.join("guest"))?;
    // By npm, which keeps the order of the fields: conditions of `exports` are tried in their order.
    let npm_pkg = |args: &[&str]| run(command("npm", ["pkg"]).args(args).current_dir(dir));
    npm_pkg(&["delete", "devDependencies", "scripts", "napi"])?;
    for platform in platforms {
        npm_pkg(&["set", &format!("optionalDependencies[{}]={}", package_name(platform), version())])?;
    }
    Ok(())
}

fn package_name(platform: Platform) -> String {
    format!("@sandpod/{}", platform.npm())
}

fn npm_pack(dir: &Path, files: &Files) -> Result<()> {
    let mut pack = command("npm", ["pack", "--silent", "--pack-destination"]);
    output(pack.arg(files.dir()).current_dir(dir)).map(drop).context("cannot make an npm package")
}

/// Copies a directory with everything in it.
pub(super) fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?.path();
        let to = to.join(entry.file_name().unwrap_or_default());
        if entry.is_dir() {
            copy_dir(&entry, &to)?;
        } else {
            fs::copy(&entry, &to)?;
        }
    }
    Ok(())
}
