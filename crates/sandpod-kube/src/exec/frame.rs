//! The messages of an exec stream: the channel's byte, followed by its data.

use bytes::{BufMut, Bytes, BytesMut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::End;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// Ends stdin. Only in v5.channel.k8s.io.
pub(super) const CLOSE_STDIN: Bytes = Bytes::from_static(&[CLOSE, STDIN]);

/// A message from the server.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    Stdout(Bytes),
    Stderr(Bytes),
    Status(Bytes),
    /// An unknown channel, of a newer server.
    Other,
}

pub(super) fn decode(mut message: Bytes) -> Frame {
    if message.is_empty() {
        return Frame::Other;
    }
    let data = message.split_off(1);
    match message[0] {
        STDOUT => Frame::Stdout(data),
        STDERR => Frame::Stderr(data),
        STATUS => Frame::Status(data),
        _ => Frame::Other,
    }
}

pub(super) fn stdin(data: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(1 + data.len());
    message.put_u8(STDIN);
    message.put_slice(data);
    message.freeze()
}

/// Returns how the command ended, or `None` while `json` is incomplete.
pub(super) fn end(json: &[u8]) -> Option<End> {
    let status: Status = serde_json::from_slice(json).ok()?;
    if status.status.as_deref() == Some("Success") {
        return Some(End::Exited(0));
    }
    Some(exit_code(&status).map_or_else(|| End::NotRun(reason(status)), End::Exited))
}

fn exit_code(status: &Status) -> Option<i32> {
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let cause = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
    cause.message.as_ref()?.parse().ok()
}

fn reason(status: Status) -> String {
    status.message.or(status.reason).unwrap_or_else(|| "the cluster gives no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_of_a_message_names_its_channel() {
        assert_eq!(decode(Bytes::from_static(b"\x01out")), Frame::Stdout(Bytes::from_static(b"out")));
        assert_eq!(decode(Bytes::from_static(b"\x02err")), Frame::Stderr(Bytes::from_static(b"err")));
        assert_eq!(decode(Bytes::from_static(b"\x03{}")), Frame::Status(Bytes::from_static(b"{}")));
        assert_eq!(decode(Bytes::from_static(b"\x01")), Frame::Stdout(Bytes::new()));
        assert_eq!(stdin(b"in"), b"\x00in"[..]);
    }

    #[test]
    fn unknown_channels_and_empty_messages_are_no_output() {
        assert_eq!(decode(Bytes::from_static(b"\xff\x01")), Frame::Other);
        assert_eq!(decode(Bytes::from_static(b"\x09x")), Frame::Other);
        assert_eq!(decode(Bytes::new()), Frame::Other);
    }

    #[test]
    fn success_is_exit_code_zero() {
        assert_eq!(end(br#"{"metadata":{},"status":"Success"}"#), Some(End::Exited(0)));
    }

    #[test]
    fn a_nonzero_exit_code_is_the_cause_of_the_failure() {
        let status = br#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode",
            "message":"command terminated with non-zero exit code: exit status 3",
            "details":{"causes":[{"reason":"Other","message":"9"},{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(end(status), Some(End::Exited(3)));
    }

    #[test]
    fn a_command_that_was_not_run_has_a_reason_and_no_exit_code() {
        let status = br#"{"status":"Failure","reason":"InternalError","code":500,
            "message":"exec: \"nosuch\": executable file not found in $PATH"}"#;
        let message = "exec: \"nosuch\": executable file not found in $PATH".to_owned();
        assert_eq!(end(status), Some(End::NotRun(message)));

        let garbled = br#"{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}"#;
        assert_eq!(end(garbled), Some(End::NotRun("the cluster gives no reason".to_owned())));
    }

    #[test]
    fn half_a_status_is_no_status_yet() {
        assert_eq!(end(br#"{"status":"Suc"#), None);
        assert_eq!(end(b""), None);
    }
}
