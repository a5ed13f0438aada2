use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use prost_types::{DescriptorProto, FileDescriptorSet};

fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

const OURS: [&str; 3] = ["sandpod/v1/session.proto", "sandpod/v1/process.proto", "sandpod/v1/files.proto"];
/// The wire of another project, which makes its own promises.
const SANDBOXD: [&str; 1] = ["process/v1/process.proto"];

fn descriptors(files: &[&str]) -> FileDescriptorSet {
    protox::compile(files, [package("proto")]).expect("the .proto files are valid")
}

/// Compares a checked-in file with its expected content, or updates it if requested.
fn check(path: &str, expected: &str) {
    if std::env::var_os("SANDPOD_UPDATE").is_some() {
        fs::write(package(path), expected).expect("the checkout can be written");
    }
    let found = fs::read_to_string(package(path)).unwrap_or_default();
    assert!(found == expected, "{path} is stale: run `SANDPOD_UPDATE=1 cargo test -p sandpod-protocol`");
}

#[test]
fn checked_in_code_matches_the_proto_files() {
    let out = std::env::temp_dir().join(format!("sandpod-protocol-{}", std::process::id()));
    fs::create_dir_all(&out).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .out_dir(&out)
        .compile_fds(descriptors(&[&OURS[..], &SANDBOXD].concat()))
        .unwrap();
    let generated =
        ["sandpod.v1.rs", "process.v1.rs"].map(|name| (name, fs::read_to_string(out.join(name)).unwrap()));
    fs::remove_dir_all(&out).unwrap();
    for (name, code) in generated {
        check(&format!("src/generated/{name}"), &code);
    }
}

/// Shows every change of the wire. A change that is not additive breaks deployed clients and guests.
#[test]
fn wire_matches_version_1() {
    let mut lines = BTreeSet::new();
    for file in descriptors(&OURS).file {
        for message in &file.message_type {
            describe(message.name(), message, &mut lines);
        }
        for kind in &file.enum_type {
            let values = kind.value.iter().map(|value| format!("{} = {}", value.name(), value.number()));
            lines.extend(values);
        }
        for service in &file.service {
            lines.extend(service.method.iter().map(|method| {
                let stream = |on| if on { "stream " } else { "" };
                let (input, output) = (
                    method.input_type().replace(".sandpod.v1.", ""),
                    method.output_type().replace(".sandpod.v1.", ""),
                );
                let (sends, answers) = (stream(method.client_streaming()), stream(method.server_streaming()));
                format!("{}/{}({sends}{input}) -> {answers}{output}", service.name(), method.name())
            }));
        }
    }
    let wire: Vec<_> = lines.into_iter().collect();
    check("wire-v1.txt", &(wire.join("\n") + "\n"));
}

fn describe(name: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    for field in &message.field {
        let kind = match field.type_name() {
            "" => format!("{:?}", field.r#type()).to_lowercase(),
            named => named.replace(".sandpod.v1.", ""),
        };
        let label = format!("{:?}", field.label()).to_lowercase();
        lines.insert(format!("{name}.{} = {} {label} {kind}", field.name(), field.number()));
    }
    for nested in &message.nested_type {
        describe(&format!("{name}.{}", nested.name()), nested, lines);
    }
}
