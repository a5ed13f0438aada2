//! The words of a command line that clap cannot parse: one with an error, or one that is being completed.

use clap::Command;

use crate::command_line;

/// Returns the words that are neither options nor values of options: the command, then its arguments.
pub(crate) fn positionals(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut line = command_line();
    // Adds the arguments of the commands, which are deferred, and the global options to each command.
    line.build();
    let (mut command, mut found, mut words) = (&line, Vec::new(), words.into_iter());
    while let Some(word) = words.next() {
        if word == "--" {
            found.extend(words.by_ref());
        } else if word.len() > 1 && word.starts_with('-') {
            if takes_next(command, &word) {
                words.next();
            }
        } else {
            if found.is_empty() {
                command = line.find_subcommand(&word).unwrap_or(&line);
            }
            found.push(word);
        }
    }
    found
}

/// Reports whether the word after this option is its value.
fn takes_next(command: &Command, option: &str) -> bool {
    let is_meant = |argument: &&clap::Arg| match option.strip_prefix("--") {
        Some(long) => {
            argument.get_long() == Some(long)
                || argument.get_all_aliases().is_some_and(|names| names.contains(&long))
        }
        None => argument.get_short().is_some_and(|short| option.chars().skip(1).eq([short])),
    };
    let takes_value = |argument: &clap::Arg| {
        argument.get_action().takes_values()
            && argument.get_num_args().is_none_or(|values| values.min_values() > 0)
    };
    command.get_arguments().find(is_meant).is_some_and(takes_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_options_are_no_positional_words() {
        let found = |line: &str| positionals(line.split(' ').map(str::to_owned)).join(" ");
        assert_eq!(found("--mode raw ls --namespace exec -n x -q work dir"), "ls work dir");
        assert_eq!(found("exec --env A=1 -e B=2 --timeout=5s -d work ls"), "exec work ls");
        assert_eq!(found("run --network --name web -m 1g --backend local -- ls -l"), "run ls -l");
        assert_eq!(found("cp - work:"), "cp - work:");
    }
}
