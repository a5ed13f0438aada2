//! Archives whose bytes depend on nothing but the names and contents of their files.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::shell::{command, output};
use crate::workspace::root;

/// The mode of a program.
pub(super) const PROGRAM: u32 = 0o755;
/// The mode of any other file.
pub(super) const FILE: u32 = 0o644;

/// The files of an archive, with their modes, by path.
pub(super) type Entries = BTreeMap<String, (u32, Vec<u8>)>;

/// Packs files below a directory `top` as `.tar.gz`. All times are those of the checked out commit.
pub(super) fn pack(top: &str, entries: &Entries) -> Result<Vec<u8>> {
    let time = source_date()?;
    let gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let mut archive = Builder::new(gzip);
    for (path, (mode, content)) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(*mode);
        header.set_mtime(time);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, format!("{top}/{path}"), content.as_slice())?;
    }
    Ok(archive.into_inner()?.finish()?)
}

/// `SOURCE_DATE_EPOCH`, or the time of the checked out commit.
fn source_date() -> Result<u64> {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok();
    let seconds = match named {
        Some(seconds) => seconds,
        None => output(command("git", ["log", "-1", "--format=%ct"]).current_dir(root()))?,
    };
    Ok(seconds.trim().parse()?)
}

/// Sets `SOURCE_DATE_EPOCH` for a tool that writes a time into its output.
pub(super) fn set_source_date(tool: &mut Command) -> Result<()> {
    tool.env("SOURCE_DATE_EPOCH", source_date()?.to_string());
    Ok(())
}

/// Compresses one file as `gzip -n` does.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut gzip, content)?;
    Ok(gzip.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_the_same_files_has_the_same_bytes() {
        let mut entries = Entries::new();
        entries.insert("bin/b".to_owned(), (PROGRAM, b"program".to_vec()));
        entries.insert("a".to_owned(), (FILE, b"text".to_vec()));
        let first = pack("top", &entries).unwrap();
        assert_eq!(first, pack("top", &entries).unwrap());

        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&first[..]));
        let listed = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
        });
        assert_eq!(
            listed.collect::<Vec<_>>(),
            [("top/a".to_owned(), FILE), ("top/bin/b".to_owned(), PROGRAM)]
        );
    }
}
