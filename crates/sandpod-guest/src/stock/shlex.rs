//! Splits a command line like Python's `shlex.split`: words and quotes, without any other shell syntax.

use std::iter::Peekable;
use std::str::Chars;

/// Splits a line into words.
pub(super) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut chars = line.chars().peekable();
    let mut words = Vec::new();
    loop {
        while chars.next_if(|char| is_space(*char)).is_some() {}
        if chars.peek().is_none() {
            return Ok(words);
        }
        words.push(word(&mut chars)?);
    }
}

fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\r' | '\n')
}

fn word(chars: &mut Peekable<Chars<'_>>) -> Result<String, &'static str> {
    let mut word = String::new();
    while let Some(char) = chars.next_if(|char| !is_space(*char)) {
        match char {
            '\'' | '"' => quoted(char, chars, &mut word)?,
            '\\' => word.push(chars.next().ok_or("No escaped character")?),
            char => word.push(char),
        }
    }
    Ok(word)
}

/// Reads a quoted string. In double quotes a backslash is literal unless a quote or a backslash follows.
fn quoted(quote: char, chars: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), &'static str> {
    loop {
        match chars.next().ok_or("No closing quotation")? {
            char if char == quote => return Ok(()),
            '\\' if quote == '"' => {
                let escaped = chars.next_if(|char| matches!(char, '"' | '\\'));
                word.push(escaped.unwrap_or('\\'));
            }
            char => word.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_python_does() {
        let cases: [(&str, &[&str]); 9] = [
            ("", &[]),
            (" echo  hello\tworld\n", &["echo", "hello", "world"]),
            ("sh -c 'echo $HOME && ls | wc'", &["sh", "-c", "echo $HOME && ls | wc"]),
            (r#"a"b c"'d e'f"#, &["ab cd ef"]),
            (r#""a\"b\\c\n""#, &[r#"a"b\c\n"#]),
            (r"a\ b \'c", &["a b", "'c"]),
            (r"'a\'", &[r"a\"]),
            ("'' \"\"", &["", ""]),
            ("echo # no comment", &["echo", "#", "no", "comment"]),
        ];
        for (line, words) in cases {
            assert_eq!(split(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn unclosed_quotes_and_escapes_are_refused() {
        assert_eq!(split("echo 'a"), Err("No closing quotation"));
        assert_eq!(split("echo \"a\\"), Err("No closing quotation"));
        assert_eq!(split("echo \\"), Err("No escaped character"));
    }
}
