//! The guest as immutable `ConfigMaps` of a namespace. Their names contain a hash, so a rebuilt guest gets new ones.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use futures::future::try_join_all;
use sandpod_kube::k8s_openapi::ByteString;
use sandpod_kube::k8s_openapi::api::core::v1::ConfigMap;
use sandpod_kube::kube::api::{ListParams, ObjectMeta, PostParams};
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sha2::{Digest, Sha256};

use super::anchor::MANAGED_BY;
use super::api::{find, is, within};
use crate::guest_binaries::{self, GuestBinaries};
use crate::{Error, ErrorKind, Result};

/// The name of the boot stub. The parts of the guest are files beside it.
pub(in crate::backend) const BOOT: &str = "boot";
/// The most bytes in one `ConfigMap`. The API server takes 1 MiB.
const MAX_PART: usize = 900 << 10;

/// Writes the guest for `arch` to `ConfigMaps` of a namespace and returns their names, for Pod templates that are not
/// made by sandpod. A projected volume of all of them, mounted at `/sandpod`, delivers the guest. The programs are
/// looked for in the usual directories and beside `package_dir`.
///
/// ```no_run
/// # async fn example(client: sandpod_kube::kube::Client) -> sandpod::Result<()> {
/// let names = sandpod::install_guest(client, "agents", "amd64", None).await?;
/// assert!(names[0].starts_with("sandpod-guest-"));
/// # Ok(())
/// # }
/// ```
pub async fn install_guest(
    client: Client,
    namespace: &str,
    arch: &str,
    package_dir: Option<&Path>,
) -> Result<Vec<String>> {
    let maps = GuestMaps::load(arch, package_dir).await?;
    maps.ensure(&Api::namespaced(client, namespace)).await?;
    Ok(maps.names().map(str::to_owned).collect())
}

/// The guest's files, divided into parts.
pub(in crate::backend) struct GuestMaps {
    parts: Arc<[Part]>,
    /// The UIDs of the `ConfigMaps` that were verified. They are immutable, so this is done once.
    verified: Mutex<HashMap<String, String>>,
}

/// The guest that was packed last: the providers of a process pack the same one, and packing takes a second.
static LAST_PACKED: LastPacked = LastPacked(Mutex::new(None));

/// The parts of one guest, and the hash of its programs and architecture.
struct LastPacked(Mutex<Option<(Key, Arc<[Part]>)>>);

type Key = [u8; 32];

impl LastPacked {
    /// Packs the programs, unless they were packed last.
    fn pack(&self, binaries: &GuestBinaries, arch: &str) -> Result<Arc<[Part]>> {
        let mut hasher = Sha256::new();
        for field in [arch.as_bytes(), &binaries.boot, &binaries.guest] {
            hasher.update((field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        let key = hasher.finalize().into();
        // Held while packing: providers that start together wait for the first one.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((packed, parts)) = &*last
            && *packed == key
        {
            return Ok(parts.clone());
        }
        let parts = split(&binaries.boot, &deflate(&binaries.guest)?);
        let hash = &hash(&parts)[..8];
        let parts = parts
            .into_iter()
            .enumerate()
            .map(|(number, files)| Part { name: format!("sandpod-guest-{hash}-{arch}-{number}"), files })
            .collect::<Arc<[Part]>>();
        *last = Some((key, parts.clone()));
        Ok(parts)
    }
}

/// One `ConfigMap`.
struct Part {
    name: String,
    files: BTreeMap<String, ByteString>,
}

impl GuestMaps {
    /// Finds the programs for `arch` and packs them.
    pub(in crate::backend) async fn load(arch: &str, package_dir: Option<&Path>) -> Result<Self> {
        let (arch, package_dir) = (arch.to_owned(), package_dir.map(Path::to_owned));
        let packing = tokio::task::spawn_blocking(move || {
            Self::pack(&guest_binaries::find(&arch, package_dir.as_deref())?, &arch)
        });
        packing.await.map_err(super::interrupted)?
    }

    /// Packs the programs. It compresses, so call it from a blocking thread.
    pub(in crate::backend) fn pack(binaries: &GuestBinaries, arch: &str) -> Result<Self> {
        if binaries.boot.len() > MAX_PART {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "The guest's stub sandpod-boot has {} bytes, more than the limit of {MAX_PART}.",
                    binaries.boot.len()
                ),
                "Build it with `cargo xtask guest`, which strips and optimises it.",
            ));
        }
        Ok(Self { parts: LAST_PACKED.pack(binaries, arch)?, verified: Mutex::default() })
    }

    /// Returns the names of the `ConfigMaps`.
    pub(in crate::backend) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Returns the `ConfigMaps` as objects.
    pub(in crate::backend) fn objects(&self) -> impl Iterator<Item = ConfigMap> {
        self.parts.iter().map(Part::object)
    }

    /// Returns every file with its name.
    pub(in crate::backend) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.parts.iter().flat_map(|part| &part.files);
        files.map(|(name, content)| (name.as_str(), &content.0[..]))
    }

    /// Creates the `ConfigMaps` that are missing and verifies the content of the others.
    pub(in crate::backend) async fn ensure(&self, maps: &Api<ConfigMap>) -> Result<()> {
        // From the API server's cache: the newest version would be read from etcd, with all contents, each time.
        let ours = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)).match_any();
        let seen = within(maps.list_metadata(&ours)).await;
        let seen = seen.map_err(|cause| Error::api("list ConfigMaps", &cause))?;
        let seen: HashMap<_, _> =
            seen.items.iter().filter_map(|map| Some((map.name_any(), map.uid()?))).collect();
        let unsure = self.parts.iter().filter(|part| {
            let uid = seen.get(&part.name);
            uid.is_none() || self.verified().get(&part.name) != uid
        });
        let unsure: Vec<_> = unsure.collect();
        try_join_all(unsure.into_iter().map(|part| self.ensure_part(maps, part))).await.map(drop)
    }

    async fn ensure_part(&self, maps: &Api<ConfigMap>, part: &Part) -> Result<()> {
        let name = &part.name;
        let map = match find(maps, name).await? {
            Some(map) => map,
            None => create(maps, part).await?,
        };
        verify(&map, part)?;
        self.verified().extend(map.uid().map(|uid| (name.clone(), uid)));
        Ok(())
    }

    /// Forgets which `ConfigMaps` were verified, because they may have been replaced.
    pub(in crate::backend) fn forget(&self) {
        self.verified().clear();
    }

    fn verified(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn object(&self) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            binary_data: Some(self.files.clone()),
            immutable: Some(true),
            ..ConfigMap::default()
        }
    }
}

async fn create(maps: &Api<ConfigMap>, part: &Part) -> Result<ConfigMap> {
    match within(maps.create(&PostParams::default(), &part.object())).await {
        Ok(created) => Ok(created),
        Err(cause) if is(&cause, 409) => find(maps, &part.name).await?.ok_or_else(|| wrong(&part.name)),
        Err(cause) => Err(Error::api(&format!("create ConfigMap '{}'", part.name), &cause)),
    }
}

/// Checks the content, because every writer of the namespace could have put another program there.
fn verify(map: &ConfigMap, part: &Part) -> Result<()> {
    let same =
        map.binary_data.as_ref() == Some(&part.files) && map.data.as_ref().is_none_or(BTreeMap::is_empty);
    let stays = map.immutable == Some(true) && map.metadata.deletion_timestamp.is_none();
    if same && stays { Ok(()) } else { Err(wrong(&part.name)) }
}

fn wrong(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "No sandbox was made: the ConfigMap '{name}' does not hold the guest that its name stands for."
        ),
        format!("Find out what changed it, delete it with kubectl delete configmap {name}, and try again."),
    )
}

fn deflate(guest: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(guest).and_then(|()| encoder.finish()).map_err(|cause| {
        Error::new(ErrorKind::Internal, format!("Can't pack the guest: {cause}."), "Report this.")
    })
}

/// Divides the files: the stub and the beginning of the guest first, then the rest of the guest.
fn split(boot: &[u8], guest: &[u8]) -> Vec<BTreeMap<String, ByteString>> {
    let (first, rest) = guest.split_at(guest.len().min(MAX_PART - boot.len()));
    let mut parts: Vec<BTreeMap<_, _>> = std::iter::once(first)
        .chain(rest.chunks(MAX_PART))
        .enumerate()
        .map(|(number, bytes)| [(format!("guest.{number}"), ByteString(bytes.to_vec()))].into())
        .collect();
    parts[0].insert(BOOT.to_owned(), ByteString(boot.to_vec()));
    parts
}

fn hash(parts: &[BTreeMap<String, ByteString>]) -> String {
    let mut hasher = Sha256::new();
    for (name, bytes) in parts.iter().flatten() {
        hasher.update(name);
        hasher.update((bytes.0.len() as u64).to_le_bytes());
        hasher.update(&bytes.0);
    }
    HEXLOWER.encode(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::DeflateDecoder;

    use super::*;

    /// Returns bytes that do not compress.
    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        getrandom::fill(&mut bytes).unwrap();
        bytes
    }

    fn pack(boot: &[u8], guest: &[u8]) -> GuestMaps {
        GuestMaps::pack(&GuestBinaries { boot: boot.to_vec(), guest: guest.to_vec() }, "amd64").unwrap()
    }

    #[test]
    fn the_parts_are_small_enough_and_together_are_the_guest() {
        let (boot, guest) = (noise(400 << 10), noise(2 << 20));
        let maps = pack(&boot, &guest);

        let mut deflated = Vec::new();
        for (number, part) in maps.parts.iter().enumerate() {
            assert!(part.files.values().map(|bytes| bytes.0.len()).sum::<usize>() <= MAX_PART);
            deflated.extend_from_slice(&part.files[&format!("guest.{number}")].0);
        }
        let mut inflated = Vec::new();
        DeflateDecoder::new(&deflated[..]).read_to_end(&mut inflated).unwrap();
        assert!(inflated == guest);
        assert_eq!(maps.parts.len(), 3);
        assert_eq!(maps.parts[0].files[BOOT].0, boot);
    }

    #[test]
    fn another_guest_has_other_names_and_the_same_guest_the_same() {
        let names = |maps: GuestMaps| maps.names().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(names(pack(b"boot", b"guest")), names(pack(b"boot", b"guest")));
        assert_ne!(names(pack(b"boot", b"guest")), names(pack(b"boot", b"other")));
        assert_ne!(names(pack(b"boot", b"guest")), names(pack(b"toob", b"guest")));
    }

    #[test]
    fn the_same_guest_is_packed_once() {
        let last = LastPacked(Mutex::default());
        let pack = |guest: &[u8], arch| {
            last.pack(&GuestBinaries { boot: b"boot".to_vec(), guest: guest.to_vec() }, arch).unwrap()
        };
        let first = pack(b"guest", "amd64");
        assert!(Arc::ptr_eq(&first, &pack(b"guest", "amd64")));
        assert!(!Arc::ptr_eq(&first, &pack(b"guest", "arm64")));
        assert_eq!(pack(b"other", "amd64")[0].files["guest.0"].0, deflate(b"other").unwrap());
    }

    #[test]
    fn a_stub_that_fits_into_no_part_is_refused() {
        let binaries = GuestBinaries { boot: vec![0; MAX_PART + 1], guest: Vec::new() };
        let error = GuestMaps::pack(&binaries, "amd64").err().unwrap();
        assert!(error.to_string().contains("cargo xtask guest"), "{error}");
    }

    #[test]
    fn a_map_with_other_content_or_one_that_can_be_changed_is_refused() {
        let maps = pack(b"boot", b"guest");
        let part = &maps.parts[0];
        let right = ConfigMap {
            binary_data: Some(part.files.clone()),
            immutable: Some(true),
            ..ConfigMap::default()
        };
        verify(&right, part).unwrap();
        verify(&ConfigMap { immutable: None, ..right.clone() }, part).unwrap_err();
        let mut other = right.clone();
        other.binary_data.as_mut().unwrap().insert(BOOT.to_owned(), ByteString(b"evil".to_vec()));
        verify(&other, part).unwrap_err();
        let mut more = right;
        more.data = Some([("guest.1".to_owned(), "x".to_owned())].into());
        verify(&more, part).unwrap_err();
    }
}
