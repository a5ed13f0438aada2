//! The checked-in code and the description of the wire match the .proto files.
//! `SANDPOD_UPDATE=1 cargo test -p sandpod-protocol` updates both.

mod generated;
