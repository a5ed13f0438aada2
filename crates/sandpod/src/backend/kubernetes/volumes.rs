//! The one rule about which volumes are durable.

use sandpod_kube::k8s_openapi::api::core::v1::Volume;

/// Whether the files on a volume survive the loss of its Pod: on a claimed volume, or on storage outside the cluster.
///
/// An `emptyDir`, an ephemeral volume and an inline CSI volume are deleted with the Pod. A `hostPath` stays on a node
/// that the next Pod need not run on. All other kinds hold objects of the API, an image or nothing of the user's.
pub(in crate::backend) fn is_durable(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some()
        || volume.nfs.is_some()
        || volume.cephfs.is_some()
        || volume.glusterfs.is_some()
        || volume.azure_file.is_some()
        || volume.iscsi.is_some()
        || volume.fc.is_some()
        || volume.rbd.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn durable(source: &str, fields: &Value) -> bool {
        is_durable(&serde_json::from_value(json!({ "name": "v", source: fields })).unwrap())
    }

    #[test]
    fn claimed_volumes_and_network_storage_are_durable() {
        assert!(durable("persistentVolumeClaim", &json!({ "claimName": "a" })));
        assert!(durable("nfs", &json!({ "server": "s", "path": "/" })));
        assert!(durable("iscsi", &json!({ "iqn": "i", "lun": 0, "targetPortal": "t" })));
    }

    #[test]
    fn volumes_that_end_with_the_pod_or_hold_no_user_files_are_not_durable() {
        for (source, fields) in [
            ("emptyDir", json!({})),
            ("ephemeral", json!({})),
            ("csi", json!({ "driver": "d" })),
            ("hostPath", json!({ "path": "/data" })),
            ("configMap", json!({ "name": "m" })),
            ("secret", json!({ "secretName": "s" })),
            ("projected", json!({})),
            ("image", json!({ "reference": "i" })),
        ] {
            assert!(!durable(source, &fields), "{source}");
        }
    }
}
