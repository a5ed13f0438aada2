//! The texts that an agent's tools return for errors.
//!
//! They equal the texts of Deep Agents' own sandboxes: models are trained on these texts, and its middleware compares
//! some of them. Some texts differ between Python and JavaScript.

use std::borrow::Cow;

use sandpod_client::{Error, Retry, errors};

/// The exit code of a command that never started.
const NEVER_STARTED: i32 = 125;

/// The language of the Deep Agents package that receives the texts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Surface {
    /// `deepagents` of Python.
    Python,
    /// `deepagents` of JavaScript.
    JavaScript,
}

use self::Surface::{JavaScript, Python};

/// The error of a tool's call: its code and its message.
#[derive(Clone, Debug)]
pub struct ToolError<'a> {
    surface: Surface,
    code: Cow<'a, str>,
    message: Cow<'a, str>,
}

impl<'a> ToolError<'a> {
    /// Creates an error with the code and the message of a binding's exception.
    pub fn new(surface: Surface, code: impl Into<Cow<'a, str>>, message: impl Into<Cow<'a, str>>) -> Self {
        Self { surface, code: code.into(), message: message.into() }
    }

    /// Creates the error of a call.
    #[must_use]
    pub fn of(surface: Surface, error: &Error) -> Self {
        Self::new(surface, error.code(), error.to_string())
    }

    /// Returns the exit code of a command without a result. None if the command may have run.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        let may_have_run = errors::of_code(&self.code).is_some_and(|row| row.retry == Retry::CheckFirst);
        (!may_have_run).then_some(NEVER_STARTED)
    }

    /// Returns the text for a failed read, which shows binary files of at most `max_binary_bytes`.
    #[must_use]
    pub fn read(&self, path: &str, max_binary_bytes: u64) -> String {
        let reason = match (&*self.code, self.surface) {
            _ if self.is_refusal() => return self.message(),
            ("not_found" | "not_a_directory", Python) => "file_not_found",
            ("not_found" | "not_a_directory", JavaScript) => return format!("File '{path}' not found"),
            ("permission_denied", Python) => "permission_denied",
            ("permission_denied", JavaScript) => "permission denied",
            ("is_directory" | "not_a_file", Python) => "not_a_file",
            ("is_directory", JavaScript) => return format!("File '{path}' is a directory"),
            ("not_a_file", JavaScript) => return format!("File '{path}' is not a regular file"),
            ("too_large", Python) => {
                return format!(
                    "File '{path}': Binary file exceeds maximum preview size of {max_binary_bytes} bytes"
                );
            }
            ("too_large", JavaScript) => {
                return format!(
                    "File '{path}': binary file exceeds the maximum preview size of {max_binary_bytes} bytes"
                );
            }
            _ => &self.message,
        };
        format!("File '{path}': {reason}")
    }

    /// Returns the text for a failed write.
    #[must_use]
    pub fn write(&self, path: &str) -> String {
        match self.surface {
            _ if self.is_refusal() => self.message(),
            Python => format!("Failed to write file '{path}': {}", self.file_code()),
            JavaScript => format!("Failed to write to {path}: {}", self.file_code()),
        }
    }

    /// Returns the text for a failed edit, which searched for the text `old`.
    #[must_use]
    pub fn edit(&self, path: &str, old: &str) -> String {
        match (&*self.code, self.surface) {
            ("invalid_argument", Python) if old.is_empty() => {
                "Error: old_string cannot be empty. Provide the exact text to replace.".to_owned()
            }
            ("invalid_argument", JavaScript) if old.is_empty() => {
                "oldString must not be empty unless the file is empty".to_owned()
            }
            ("not_found" | "not_a_directory", _) => format!("Error: File '{path}' not found"),
            ("permission_denied", _) => format!("Error: Permission denied editing file '{path}'"),
            ("is_directory" | "not_a_file", _) => format!("Error: '{path}' is not a regular file"),
            ("not_text", _) => format!("Error: File '{path}' is not a text file"),
            ("no_match", Python) => format!("Error: String not found in file: '{old}'"),
            ("no_match", JavaScript) => format!("String not found in file '{path}'"),
            ("many_matches", Python) => format!(
                "Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
            ),
            ("many_matches", JavaScript) => {
                format!("Multiple occurrences found in '{path}'. Use replaceAll=true to replace all.")
            }
            _ if self.is_refusal() => self.message(),
            _ => format!("Error editing file '{path}': {}", self.message),
        }
    }

    /// Returns the text for a failed deletion.
    #[must_use]
    pub fn delete(&self, path: &str) -> String {
        match &*self.code {
            "not_found" => format!("Error: '{path}' not found"),
            _ if self.is_refusal() => self.message(),
            _ => format!("Error deleting file '{path}': {}", self.file_code()),
        }
    }

    /// Returns the text for a failed list of a directory, or for a failed text search below `path`.
    #[must_use]
    pub fn list(&self, path: &str) -> String {
        self.below(path).unwrap_or_else(|| format!("Path '{path}': {}", self.message))
    }

    /// Returns the text for a failed search for names below `root`.
    #[must_use]
    pub fn glob(&self, root: &str) -> String {
        let reason = match (&*self.code, self.surface) {
            ("invalid_argument", Python) => "invalid_pattern".into(),
            ("too_large", Python) => "pattern_too_broad".into(),
            (_, Python) => format!("internal_error: {}", self.message),
            (_, JavaScript) => self.message(),
        };
        self.below(root).unwrap_or_else(|| format!("Path '{root}': {reason}"))
    }

    /// Returns the error of one transferred file: one of Deep Agents' codes if one fits.
    #[must_use]
    pub fn transfer(&self) -> String {
        match (&*self.code, self.surface) {
            ("policy", Python) => "policy_denied".to_owned(),
            ("policy", JavaScript) => "permission_denied".to_owned(),
            _ => self.file_code(),
        }
    }

    /// Returns the text for a failed call below a path, if there is a specific text.
    fn below(&self, path: &str) -> Option<String> {
        Some(match (&*self.code, self.surface) {
            ("path_escapes" | "replaced", _) => self.message(),
            ("not_found", Python) => format!("Path '{path}': path_not_found"),
            ("not_found", JavaScript) => format!("Path '{path}' not found"),
            ("not_a_directory", Python) => format!("Path '{path}': not_a_directory"),
            ("not_a_directory", JavaScript) => format!("Path '{path}' is not a directory"),
            ("permission_denied" | "policy", Python) => format!("Path '{path}': permission_denied"),
            ("permission_denied" | "policy", JavaScript) => format!("Path '{path}': permission denied"),
            _ => return None,
        })
    }

    /// Returns Deep Agents' code for a file error, or else the message.
    fn file_code(&self) -> String {
        match &*self.code {
            "not_found" => "file_not_found",
            "permission_denied" => "permission_denied",
            "is_directory" => "is_directory",
            "invalid_argument" | "not_a_directory" | "not_a_file" | "path_escapes" => "invalid_path",
            _ => &self.message,
        }
        .to_owned()
    }

    /// Returns whether the message is a complete sentence: nothing was done because of a policy or a loss of all
    /// files.
    fn is_refusal(&self) -> bool {
        matches!(&*self.code, "policy" | "path_escapes" | "replaced")
    }

    fn message(&self) -> String {
        self.message.clone().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(code: &'static str) -> ToolError<'static> {
        ToolError::new(Python, code, "why")
    }

    #[test]
    fn missing_file_has_the_text_of_each_deep_agents_tool() {
        let error = python("not_found");
        assert_eq!(error.read("/f", 1), "File '/f': file_not_found");
        assert_eq!(error.write("/f"), "Failed to write file '/f': file_not_found");
        assert_eq!(error.edit("/f", "old"), "Error: File '/f' not found");
        assert_eq!(error.delete("/f"), "Error: '/f' not found");
        assert_eq!(error.list("/f"), "Path '/f': path_not_found");
        assert_eq!(error.glob("/f"), "Path '/f': path_not_found");
        assert_eq!(error.transfer(), "file_not_found");
        assert_eq!(ToolError::new(JavaScript, "not_found", "why").read("/f", 1), "File '/f' not found");
    }

    #[test]
    fn refusal_is_the_message_alone() {
        for code in ["policy", "path_escapes", "replaced"] {
            let error = python(code);
            let texts = [error.read("/f", 1), error.write("/f"), error.edit("/f", "x"), error.delete("/f")];
            assert_eq!(texts, ["why"; 4], "{code}");
        }
        assert_eq!(python("policy").transfer(), "policy_denied");
        assert_eq!(python("path_escapes").transfer(), "invalid_path");
    }

    #[test]
    fn unknown_error_keeps_its_message() {
        let error = python("corrupt");
        assert_eq!(error.glob("/"), "Path '/': internal_error: why");
        assert_eq!(error.edit("/f", "x"), "Error editing file '/f': why");
        assert_eq!(error.transfer(), "why");
    }

    #[test]
    fn command_that_may_have_run_has_no_exit_code() {
        for code in ["deadline_exceeded", "gone", "lost", "outcome_unknown", "protocol", "stalled"] {
            assert_eq!(python(code).exit_code(), None, "{code}");
        }
        for code in ["unreachable", "replaced", "invalid_argument", "no_thread"] {
            assert_eq!(python(code).exit_code(), Some(125), "{code}");
        }
    }
}
