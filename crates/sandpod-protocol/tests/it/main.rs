//! The checked-in code and the wire are what the .proto files say.
//! `SANDPOD_UPDATE=1 cargo test -p sandpod-protocol` writes both anew.

mod generated;
