//! Searches for files and text: scripts find candidates in the sandbox, and this process selects the matches.

use std::path::Path;
use std::sync::Arc;

use sandpod_protocol::v1::{
    GlobRequest, GlobResponse, GrepMatch, GrepRequest, GrepResponse, TruncationReason,
};
use sandpod_protocol::{Failure, limits};
use sandpod_text::Pattern;
use sandpod_text::grep::{self, check, shown};

use crate::files::absolute;
use crate::info::{below, parse_all};
use crate::policy::{Purpose, Rules};
use crate::script_job::{ScriptJobs, script};

/// Time limit of a search, in seconds.
const BUDGET: &str = "10";
/// Number of files whose lines one request returns.
const FILES_AT_ONCE: usize = 64;
/// Maximum size of an answer of the scripts.
const MAX_ANSWER: usize = 8 << 20;

/// Finds regular files whose paths match, sorted.
pub(crate) async fn glob(
    jobs: &Arc<ScriptJobs>,
    rules: &Rules,
    request: GlobRequest,
) -> Result<GlobResponse, Failure> {
    let pattern = Pattern::new(&request.pattern)?;
    let root = if request.root.is_empty() { "/" } else { &request.root };
    let Found { text, real_root, mut truncated } = find(jobs, rules, root, None).await?;
    let inner = |path: &str| path[root.trim_end_matches('/').len()..].trim_start_matches('/').to_owned();
    let mut matches = parse_all(&text, root);
    matches.retain(|info| {
        let inner = inner(&info.path);
        pattern.matches(Path::new(&inner)) && rules.allow_below(&real_root, &inner)
    });
    matches.sort_by(|one, other| one.path.cmp(&other.path));
    if matches.len() > limits::MAX_GLOB_MATCHES {
        matches.truncate(limits::MAX_GLOB_MATCHES);
        truncated = TruncationReason::Budget;
    }
    Ok(GlobResponse { matches, truncated: truncated.into() })
}

/// Finds the lines that contain a literal text.
pub(crate) async fn grep(
    jobs: &Arc<ScriptJobs>,
    rules: &Rules,
    request: GrepRequest,
    working_dir: &str,
) -> Result<GrepResponse, Failure> {
    check(&request)?;
    let root = if request.root.is_empty() { working_dir } else { &request.root };
    let pattern =
        Some(&request.glob).filter(|glob| !glob.is_empty()).map(|glob| Pattern::new(glob)).transpose()?;
    let Found { text, real_root, truncated } = find(jobs, rules, root, Some(&request.pattern)).await?;
    let chosen = |name: &&str| {
        // A root that is a file has only its own name.
        let path = if *name == "." { root.rsplit('/').next().unwrap_or(root) } else { name };
        pattern.as_ref().is_none_or(|pattern| pattern.matches(Path::new(path.trim_start_matches("./"))))
    };
    let allowed = |name: &&str| rules.allow_below(&real_root, name);
    let names = text.lines().filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.filter(chosen).filter(allowed).collect();
    names.sort_unstable();
    let mut all = grep::Found::nothing(&request);
    let mut truncated = truncated != TruncationReason::Unspecified;
    for some in names.chunks(FILES_AT_ONCE) {
        let (found, cut) = lines(jobs, root, &request.pattern, some, all.left()).await?;
        for line in found {
            all.add(line);
        }
        truncated |= cut;
        if all.full {
            break;
        }
    }
    Ok(GrepResponse { truncated: truncated || all.full, matches: all.matches })
}

/// The files that the script found below a root.
struct Found {
    text: String,
    /// The resolved root, if there are rules.
    real_root: Vec<u8>,
    /// Why files may be missing.
    truncated: TruncationReason,
}

/// Finds files below a root, or those that contain a text. Links are omitted if there are rules.
async fn find(
    jobs: &Arc<ScriptJobs>,
    rules: &Rules,
    root: &str,
    text: Option<&str>,
) -> Result<Found, Failure> {
    absolute(root)?;
    let job = jobs.job();
    let kind = if text.is_some() { "text" } else { "names" };
    let words = [root, kind, text.unwrap_or_default()].map(str::as_bytes);
    let real_root = rules.admit(&job, &words, &[(root, Purpose::SEARCH)]).await?.pop().unwrap_or_default();
    let links = if rules.are_none() { "links" } else { "" };
    let found = job.run(script!("find"), &[BUDGET, links]).await.map_err(|failure| failure.at(root))?;
    let mut text = String::from_utf8_lossy(&found).into_owned();
    let mut truncated = TruncationReason::Unspecified;
    for (word, reason) in
        [("\nunreadable\n", TruncationReason::Unreadable), ("\nbudget\n", TruncationReason::Budget)]
    {
        if let Some(rest) = text.strip_suffix(word) {
            (text, truncated) = (rest.to_owned(), reason);
        }
    }
    Ok(Found { text, real_root, truncated })
}

/// Returns the matching lines of some files, up to one more than requested, and whether some did not fit into the answer.
async fn lines(
    jobs: &Arc<ScriptJobs>,
    root: &str,
    text: &str,
    names: &[&str],
    most: u64,
) -> Result<(Vec<GrepMatch>, bool), Failure> {
    let job = jobs.job();
    let words = [root, text].into_iter().chain(names.iter().copied()).map(str::as_bytes);
    job.put_words(&words.collect::<Vec<_>>()).await?;
    let (count, most) = (names.len().to_string(), (most + 1).to_string());
    let found = job.run(script!("lines"), &[&count, &most]).await?;
    let mut path = String::new();
    let mut matches = Vec::new();
    for line in found.split(|byte| *byte == b'\n') {
        let head = line.iter().position(|byte| *byte == b':').map_or(line, |end| &line[..end]);
        let (text, head) = (line.get(head.len() + 1..), String::from_utf8_lossy(head));
        if let Some(number) = head.strip_prefix("f ") {
            let name = number.parse::<usize>().ok().and_then(|number| names.get(number));
            path = name.map(|name| below(root, name)).unwrap_or_default();
        } else if let (Ok(line), Some(text)) = (head.parse(), text) {
            matches.push(GrepMatch { path: path.clone(), line, text: shown(text) });
        }
    }
    Ok((matches, found.len() >= MAX_ANSWER))
}
