//! Why a request to a runtime failed.

use sandpod_client::DialError;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

/// Why a request to a runtime failed, and what that says about its effect.
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
    /// The sandbox is gone, and why.
    Gone(String),
}

impl RuntimeError {
    /// The same error of a connection attempt.
    pub(crate) fn into_dial_error(self) -> DialError {
        match self {
            Self::NotSent(why) | Self::NoAnswer(why) => DialError::Unreachable(why),
            Self::Refused(why) => DialError::Denied(why),
            Self::NotFound => DialError::Denied("it answers 404".to_owned()),
            Self::Gone(why) => DialError::Gone(why),
        }
    }
}

/// For calls that change nothing; for others see [`ScriptJobs`](crate::script_job::ScriptJobs).
impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let said = match error {
            RuntimeError::NotSent(why) => {
                format!("the sandbox's runtime can't be reached, so nothing was done: {why}")
            }
            RuntimeError::NoAnswer(why) => format!("the sandbox's runtime does not answer: {why}"),
            RuntimeError::Refused(why) => format!("the sandbox's runtime refuses: {why}"),
            RuntimeError::Gone(why) => format!("the sandbox is gone: {why}"),
            RuntimeError::NotFound => return Self::new(ErrorCode::NotFound, "it is not there"),
        };
        Self::new(ErrorCode::Internal, said)
    }
}
