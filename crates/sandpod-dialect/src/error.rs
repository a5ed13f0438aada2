//! Errors of requests to a runtime.

use sandpod_client::DialError;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

/// Why a request to a runtime failed, and whether it had an effect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RuntimeError {
    /// It was not sent: nothing was done.
    NotSent(String),
    /// It was sent, and its effect is unknown.
    NoAnswer(String),
    /// The runtime refused it.
    Refused(String),
    /// The file does not exist.
    NotFound,
    /// The sandbox is gone, with the reason.
    Gone(String),
}

impl RuntimeError {
    /// Converts the error of a probe.
    pub(crate) fn into_dial_error(self) -> DialError {
        match self {
            Self::NotSent(why) | Self::NoAnswer(why) => DialError::Unreachable(why),
            Self::Refused(why) => DialError::Denied(why),
            Self::NotFound => DialError::Denied("the runtime answers 404".to_owned()),
            Self::Gone(why) => DialError::Gone(why),
        }
    }
}

/// For calls that change nothing. For others see [`ScriptJobs`](crate::script_job::ScriptJobs).
impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let said = match error {
            RuntimeError::NotSent(why) => {
                format!("the sandbox's runtime can't be reached, so nothing was done: {why}")
            }
            RuntimeError::NoAnswer(why) => format!("the sandbox's runtime does not answer: {why}"),
            RuntimeError::Refused(why) => format!("the sandbox's runtime returned an error: {why}"),
            RuntimeError::Gone(why) => format!("the sandbox is gone: {why}"),
            RuntimeError::NotFound => return Self::new(ErrorCode::NotFound, "the file does not exist"),
        };
        Self::new(ErrorCode::Internal, said)
    }
}
