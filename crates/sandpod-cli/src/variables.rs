//! Environment variables on the command line.

use std::collections::BTreeMap;

use clap::{Args, ValueHint};

// Environment variables. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Variables {
    /// Environment variable; without a value, that of this shell; may be repeated
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// File with a line NAME=VALUE for each environment variable; --env has precedence
    #[arg(long, value_name = "FILE", value_parser = read_file, value_hint = ValueHint::FilePath)]
    env_file: Vec<File>,
}

/// The variables of a file.
#[derive(Clone, Debug, PartialEq)]
struct File(Vec<(String, String)>);

impl Variables {
    /// Returns the variables. Later ones override earlier ones.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        self.env_file.iter().flat_map(|file| &file.0).chain(&self.env).cloned().collect()
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None if text.is_empty() || text.starts_with('=') => {
            Err(format!("'{text}' is not a variable such as LEVEL=3"))
        }
        _ => {
            let value =
                std::env::var(text).map_err(|_| format!("{text} is not set here: write {text}=VALUE"))?;
            Ok((text.to_owned(), value))
        }
    }
}

/// Reads a file as docker does: comments begin with `#`, and quotes are part of a value.
fn read_file(path: &str) -> Result<File, String> {
    let text = std::fs::read_to_string(path).map_err(|cause| cause.to_string())?;
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(parse_variable).collect::<Result<_, _>>().map(File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_without_a_value_is_taken_from_this_shell() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(parse_variable("PATH"), Ok(("PATH".to_owned(), path)));
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_variable("NO_SUCH_VARIABLE").unwrap_err().contains("is not set"));
        for wrong in ["", "=x"] {
            assert!(parse_variable(wrong).unwrap_err().contains("LEVEL=3"), "{wrong}");
        }
    }

    #[test]
    fn a_file_has_comments_and_one_variable_per_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        std::fs::write(&path, "# note\n\nA=1\n  B=\"x y\"\n").unwrap();
        let file = read_file(path.to_str().unwrap()).unwrap();
        let given = Variables { env: vec![("A".to_owned(), "2".to_owned())], env_file: vec![file] };
        let expected =
            [("A", "2"), ("B", "\"x y\"")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(given.all(), expected.into());
    }
}
