//! The Debian package of the command, made by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::archive::{FILE, PROGRAM, gzip, set_source_date};
use super::command::Documents;
use super::{Files, version};
use crate::guest::Arch;
use crate::shell::{command, output};
use crate::workspace::root;

/// Packs the command for `arch`.
pub(super) fn pack(files: &Files, arch: Arch, sandpod: &Path, documents: &Documents) -> Result<()> {
    let program = fs::read(sandpod).with_context(|| format!("cannot read {}", sandpod.display()))?;
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("sandpod");
    let add = |path: &str, mode, content: &[u8]| write(&tree.join(path), mode, content);
    add("usr/bin/sandpod", PROGRAM, &program)?;
    for (name, script) in &documents.completions {
        add(completion(name), FILE, script)?;
    }
    for (name, page) in &documents.pages {
        add(&format!("usr/share/man/man1/{name}.gz"), FILE, &gzip(page)?)?;
    }
    let license = fs::read_to_string(root().join("LICENSE"))?;
    add("usr/share/doc/sandpod/copyright", FILE, license.as_bytes())?;
    add("DEBIAN/control", FILE, control(arch, program.len()).as_bytes())?;
    open_directories(&tree)?;
    let to = files.dir().join(format!("sandpod_{}_{}.deb", version(), arch.name()));
    let mut build = command("dpkg-deb", ["--root-owner-group", "-Zxz", "--build"]);
    build.arg(&tree).arg(to);
    set_source_date(&mut build)?;
    output(&mut build).map(drop).context("cannot make the Debian package")
}

/// The place where the shell of a completion script looks for it.
fn completion(name: &str) -> &'static str {
    match name {
        "_sandpod" => "usr/share/zsh/vendor-completions/_sandpod",
        "sandpod.fish" => "usr/share/fish/vendor_completions.d/sandpod.fish",
        _ => "usr/share/bash-completion/completions/sandpod",
    }
}

fn control(arch: Arch, size: usize) -> String {
    format!(
        "Package: sandpod\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The sandpod authors <maintainers@sandpod.dev>\n\
         Installed-Size: {}\n\
         Section: devel\n\
         Priority: optional\n\
         Homepage: https://github.com/sandpod/sandpod\n\
         Description: Sandboxes for AI agents, on Kubernetes or on this machine\n \
         The command creates isolated sandboxes as Pods, as claims of agent-sandbox or in\n \
         namespaces of this machine, and runs commands and file operations in them.\n",
        version(),
        arch.name(),
        size.div_ceil(1024),
    )
}

/// Writes a file with its mode, whatever the umask is.
fn write(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("the path has a directory")?)?;
    fs::write(path, content)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Gives a directory and those below it the mode that Debian expects.
fn open_directories(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(PROGRAM))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_directories(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::on_path;

    #[test]
    fn the_package_has_each_file_where_its_reader_looks_and_the_same_bytes_each_time() {
        if !on_path("dpkg-deb") {
            return; // not on Debian
        }
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sandpod");
        fs::write(&program, "program").unwrap();
        let documents = Documents {
            completions: vec![("sandpod.bash", b"bash".to_vec()), ("_sandpod", b"zsh".to_vec())],
            pages: vec![("sandpod-run.1".to_owned(), b"page".to_vec())],
        };
        let packed = |name: &str| {
            let files = Files::empty(dir.path().join(name)).unwrap();
            pack(&files, Arch::Arm64, &program, &documents).unwrap();
            files.dir().join(&files.names().unwrap()[0])
        };

        let (one, other) = (packed("one"), packed("other"));

        assert_eq!(fs::read(&one).unwrap(), fs::read(other).unwrap());
        assert!(one.ends_with(format!("sandpod_{}_arm64.deb", version())));
        let shown = output(command("dpkg-deb", ["--info"]).arg(&one)).unwrap();
        assert!(shown.contains("Package: sandpod") && shown.contains("Architecture: arm64"), "{shown}");
        let listed = output(command("dpkg-deb", ["--contents"]).arg(&one)).unwrap();
        for path in [
            "-rwxr-xr-x root/root         7 ",
            " ./usr/bin/sandpod",
            " ./usr/share/bash-completion/completions/sandpod",
            " ./usr/share/man/man1/sandpod-run.1.gz",
            " ./usr/share/zsh/vendor-completions/_sandpod",
        ] {
            assert!(listed.contains(path), "{path} is not in {listed}");
        }
    }
}
