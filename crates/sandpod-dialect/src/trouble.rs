//! Why a runtime gave no answer.

use sandpod_client::DialError;
use sandpod_protocol::Failure;
use sandpod_protocol::v1::ErrorCode;

/// Why a runtime gave no answer, and what that says of what was asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trouble {
    /// It was not asked: nothing was done.
    Unasked(String),
    /// It was asked, and nobody knows what it did.
    Unanswered(String),
    /// It said no.
    Refused(String),
    /// What was asked for is not there.
    Missing,
    /// The sandbox is gone, and why.
    Gone(String),
}

impl Trouble {
    /// As the way to a runtime has it.
    pub(crate) fn into_dial_error(self) -> DialError {
        match self {
            Self::Unasked(why) | Self::Unanswered(why) => DialError::Unreachable(why),
            Self::Refused(why) => DialError::Denied(why),
            Self::Missing => DialError::Denied("there is nothing of it".to_owned()),
            Self::Gone(why) => DialError::Gone(why),
        }
    }
}

/// For what changes nothing; for other calls see [`Errands`](crate::errand::Errands).
impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        let said = match trouble {
            Trouble::Unasked(why) => {
                format!("the sandbox's runtime can't be reached, so nothing was done: {why}")
            }
            Trouble::Unanswered(why) => format!("the sandbox's runtime does not answer: {why}"),
            Trouble::Refused(why) => format!("the sandbox's runtime refuses: {why}"),
            Trouble::Gone(why) => format!("the sandbox is gone: {why}"),
            Trouble::Missing => return Self::new(ErrorCode::NotFound, "it is not there"),
        };
        Self::new(ErrorCode::Internal, said)
    }
}
