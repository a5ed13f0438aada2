//! Dynamic completion: ids of sandboxes, paths in them, and names of started commands.
//!
//! The shell runs this program for each completion. The functions here list what exists within [`LIMIT`]; without an
//! answer they complete nothing.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use sandpod::{FileKind, Sandbox, Status};

use crate::files::absolute;
use crate::line::positionals;
use crate::target::{Lifetime, Options, Target, ids};

/// The time after which a completion gives up.
const LIMIT: Duration = Duration::from_secs(2);

/// Completes the id of a sandbox.
pub(crate) fn sandboxes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        answer(async |target| complete_ids(&target, text(current), "").await)
    })
}

/// Completes the name of a command that was started in the sandbox of the line.
pub(crate) fn processes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        answer(async |target| complete_processes(&target, text(current)).await)
    })
}

/// Completes a path in the sandbox of the line.
pub(crate) fn remote_paths() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        answer(async |target| {
            let sandbox = sandbox(&target, &typed_id()?).await?;
            complete_path(&target, &sandbox, "", text(current)).await
        })
    })
}

/// Completes a path of a copy: a local path, an id with a colon, or a path in a sandbox.
pub(crate) fn copy_paths() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let typed = text(current);
        if let Some(id) = id_before_colon() {
            return answer(async |target| {
                let sandbox = sandbox(&target, &id).await?;
                complete_path(&target, &sandbox, "", typed).await
            });
        }
        let Some((id, path)) = typed.split_once(':') else {
            let local = clap_complete::PathCompleter::any();
            let mut found = clap_complete::engine::ValueCompleter::complete(&local, current);
            found.extend(answer(async |target| complete_ids(&target, typed, ":").await));
            return found;
        };
        answer(async |target| {
            let sandbox = sandbox(&target, id).await?;
            complete_path(&target, &sandbox, &format!("{id}:"), path).await
        })
    })
}

type Candidates = Option<Vec<CompletionCandidate>>;

fn text(current: &OsStr) -> &str {
    current.to_str().unwrap_or_default()
}

/// Runs a completion. Returns nothing if it fails.
fn answer(find: impl AsyncFnOnce(Target) -> Candidates) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(runtime), Ok(target)) = (runtime, Target::new(options(&words()))) else { return Vec::new() };
    let found = runtime.block_on(async { tokio::time::timeout(LIMIT, find(target)).await });
    runtime.shutdown_background();
    found.ok().flatten().unwrap_or_default()
}

async fn complete_ids(target: &Target, typed: &str, suffix: &str) -> Candidates {
    let provider = target.provider(Lifetime::Persistent).await.ok()?;
    let ids = ids(&provider).await.unwrap_or_default().into_iter().filter(|id| id.starts_with(typed));
    Some(ids.map(|id| CompletionCandidate::new(format!("{id}{suffix}"))).collect())
}

async fn complete_processes(target: &Target, typed: &str) -> Candidates {
    let all = sandbox(target, &typed_id()?).await?.processes().await.ok()?;
    let named = all.iter().filter(|info| info.process.name().starts_with(typed));
    Some(
        named
            .map(|info| {
                let help = info.command.lines().next().unwrap_or_default().to_owned();
                CompletionCandidate::new(info.process.name()).help(Some(help.into()))
            })
            .collect(),
    )
}

async fn complete_path(target: &Target, sandbox: &Sandbox, before: &str, typed: &str) -> Candidates {
    let (dir, name) = typed.rsplit_once('/').map_or(("", typed), |(dir, name)| (&typed[..=dir.len()], name));
    let entries = sandbox.list(&absolute(target, dir).ok()?).await.ok()?;
    let matching = entries.iter().filter_map(|entry| {
        let entry_name = entry.path.rsplit('/').next()?;
        let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
        let is_meant = entry_name.starts_with(name) && !entry_name.contains(char::is_control);
        is_meant.then(|| CompletionCandidate::new(format!("{before}{dir}{entry_name}{slash}")))
    });
    Some(matching.collect())
}

/// Connects to a running sandbox. A completion must not start the guest of another one.
async fn sandbox(target: &Target, id: &str) -> Option<Sandbox> {
    let provider = target.provider(Lifetime::Persistent).await.ok()?;
    let info = target.info(&provider, id).await.ok()?;
    if info.status != Status::Running {
        return None;
    }
    Some(provider.reconnect(info.id.as_str()).await.ok()?.sandbox)
}

/// The id before the completed word, where the shell splits words at colons, as bash does.
fn id_before_colon() -> Option<String> {
    let index: usize = std::env::var("_CLAP_COMPLETE_INDEX").ok()?.parse().ok()?;
    let words = words();
    // The words here are without the program.
    let [id, colon] = words.get(index.checked_sub(3)?..index.checked_sub(1)?)? else { return None };
    (colon == ":").then(|| id.to_string_lossy().into_owned())
}

/// The words of the line that is being completed, after the program.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(2).collect()
}

/// The options of the line that select the sandboxes.
fn options(words: &[OsString]) -> Options {
    let mut options = Options::default();
    for (at, word) in words.iter().enumerate() {
        let word = word.to_string_lossy();
        let (name, attached) =
            word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
        let next = words.get(at + 1).map(|next| next.to_string_lossy().into_owned());
        let Some(value) = attached.map(str::to_owned).or(next) else { continue };
        match name {
            "--mode" => options.mode = crate::target::parse_mode(&value).ok(),
            "--config" => options.config = Some(PathBuf::from(value)),
            "--namespace" | "-n" => options.namespace = Some(value),
            "--context" => options.context = Some(value),
            "--kubeconfig" => options.kubeconfig = Some(PathBuf::from(value)),
            _ => {}
        }
    }
    options
}

/// The id on the line: the first argument of the command.
fn typed_id() -> Option<String> {
    let words = words();
    positionals(words.iter().map(|word| word.to_string_lossy().into_owned())).into_iter().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_before_the_completed_word_select_the_sandboxes() {
        let words: Vec<OsString> =
            ["--mode=raw", "exec", "-n", "agents", ""].iter().map(OsString::from).collect();
        let options = options(&words);
        assert_eq!(options.mode, Some(sandpod::Mode::Raw));
        assert_eq!(options.namespace.as_deref(), Some("agents"));
    }
}
