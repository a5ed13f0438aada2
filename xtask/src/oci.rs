//! OCI image archives, written without a registry or a container engine. `docker load`, `ctr images import` and `skopeo copy`
//! read them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

use crate::guest::Arch;
use crate::progress::step;
use crate::workspace::hex;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image for one architecture, of one layer.
pub(crate) struct Platform {
    pub(crate) arch: Arch,
    /// The layer, as an uncompressed tar archive.
    pub(crate) layer: Vec<u8>,
}

/// An archive that is being written.
pub(crate) struct Archive {
    tar: Builder<File>,
}

/// Writes an image to `to`; one for several architectures if there are several `platforms`.
pub(crate) fn write(name: &str, entrypoint: &str, platforms: &[Platform], to: &Path) -> Result<()> {
    let mut archive = Archive::create(to)?;
    let mut manifests = Vec::new();
    for Platform { arch, layer } in platforms {
        // An uncompressed layer has one digest.
        let layer = archive.blob("application/vnd.oci.image.layer.v1.tar", layer)?;
        let config = json!({
            "architecture": arch.name(),
            "os": "linux",
            "config": { "Entrypoint": [entrypoint], "Env": ["PATH=/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let mut manifest = archive.manifest(&config, &[&layer])?;
        manifest["platform"] = json!({ "architecture": arch.name(), "os": "linux" });
        manifests.push(manifest);
    }
    let image = match <[Value; 1]>::try_from(manifests) {
        Ok([manifest]) => manifest,
        Err(manifests) => {
            let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
            archive.blob(INDEX, &serde_json::to_vec(&index)?)?
        }
    };
    archive.finish(name, image)?;
    step(format!("{name} is in {}", to.display()));
    Ok(())
}

impl Archive {
    pub(crate) fn create(to: &Path) -> Result<Self> {
        let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(Self { tar: Builder::new(file) })
    }

    /// Adds a blob and returns its descriptor.
    pub(crate) fn blob(&mut self, media_type: &str, content: &[u8]) -> Result<Value> {
        let digest = hex(&Sha256::digest(content));
        append(&mut self.tar, &format!("blobs/sha256/{digest}"), 0o644, content)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len() }))
    }

    /// Adds the manifest of an image and returns its descriptor.
    pub(crate) fn manifest(&mut self, config: &Value, layers: &[&Value]) -> Result<Value> {
        let config = self.blob("application/vnd.oci.image.config.v1+json", &serde_json::to_vec(config)?)?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers });
        self.blob(media_type, &serde_json::to_vec(&manifest)?)
    }

    /// Ends the archive with the descriptor of the image.
    pub(crate) fn finish(mut self, name: &str, mut image: Value) -> Result<()> {
        let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        image["annotations"] =
            json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [image] });
        append(&mut self.tar, "index.json", 0o644, &serde_json::to_vec(&index)?)?;
        append(&mut self.tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(self.tar.into_inner()?.flush()?)
    }
}

/// Appends a file of root, without a time, so that equal contents give equal archives.
pub(crate) fn append<W: Write>(tar: &mut Builder<W>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use super::*;

    fn entries(archive: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(File::open(archive).unwrap());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        });
        entries.collect()
    }

    fn blob(entries: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        let content = &entries[&format!("blobs/{digest}")];
        assert_eq!(descriptor["size"], content.len());
        assert_eq!(digest, format!("sha256/{}", hex(&Sha256::digest(content))));
        serde_json::from_slice(content).unwrap()
    }

    #[test]
    fn an_archive_for_two_architectures_has_an_index_with_a_manifest_for_each() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("image.tar");
        let platforms = [(Arch::Amd64, "a"), (Arch::Arm64, "b")]
            .map(|(arch, layer)| Platform { arch, layer: layer.into() });
        write("r.example/x:1", "/x", &platforms, &to).unwrap();
        let first = std::fs::read(&to).unwrap();

        let entries = entries(&to);
        assert_eq!(entries["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
        let index: Value = serde_json::from_slice(&entries["index.json"]).unwrap();
        let image = &index["manifests"][0];
        assert_eq!(image["annotations"]["io.containerd.image.name"], "r.example/x:1");
        let image = blob(&entries, image);
        let arches = image["manifests"].as_array().unwrap().iter().map(|manifest| {
            let (platform, manifest) = (&manifest["platform"], blob(&entries, manifest));
            let config = blob(&entries, &manifest["config"]);
            assert_eq!(config["architecture"], platform["architecture"]);
            assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
            platform["architecture"].as_str().unwrap().to_owned()
        });
        assert_eq!(arches.collect::<Vec<_>>(), ["amd64", "arm64"]);

        write("r.example/x:1", "/x", &platforms, &to).unwrap();
        assert!(std::fs::read(&to).unwrap() == first, "equal inputs give equal archives");
    }

    #[test]
    fn an_archive_for_one_architecture_has_its_manifest_in_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("image.tar");
        let platforms = [Platform { arch: Arch::Amd64, layer: b"a".to_vec() }];
        write("r.example/x:1", "/x", &platforms, &to).unwrap();
        let entries = entries(&to);
        let index: Value = serde_json::from_slice(&entries["index.json"]).unwrap();
        let manifest = blob(&entries, &index["manifests"][0]);
        assert_eq!(blob(&entries, &manifest["config"])["config"]["Entrypoint"], json!(["/x"]));
    }
}
