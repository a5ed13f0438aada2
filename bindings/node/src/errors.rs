//! Converts failures to JavaScript errors. `ts/src/errors.ts` defines the classes.

use serde_json::json;

use crate::options::in_typescript;

/// A failed call: the class of its error, its code and its message. They are passed to JavaScript as JSON in the
/// message of a Node-API error, because such an error has no code of its own.
pub(crate) struct Failed {
    class: &'static str,
    code: String,
    message: String,
}

impl Failed {
    pub(crate) fn cancelled() -> Self {
        Self::new("AbortError", "cancelled", "The call was cancelled.")
    }

    pub(crate) fn panicked() -> Self {
        Self::new("SandboxError", "internal", "A call failed by a bug of sandpod. Report it.")
    }

    /// An invalid argument.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new("TypeError", "invalid_input", message)
    }

    pub(crate) fn new(class: &'static str, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class, code: code.into(), message: message.into() }
    }
}

impl From<Failed> for napi::Error {
    fn from(Failed { class, code, message }: Failed) -> Self {
        Self::from_reason(json!({ "class": class, "code": code, "message": message }).to_string())
    }
}

impl From<sandpod_client::Error> for Failed {
    fn from(error: sandpod_client::Error) -> Self {
        Self::new(error.row().javascript, error.code(), error.to_string())
    }
}

impl From<sandpod::Error> for Failed {
    fn from(error: sandpod::Error) -> Self {
        let message = in_typescript(&error.to_string());
        Self::new(error.javascript_class(), error.code(), message)
    }
}
