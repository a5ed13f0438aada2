//! Looking for files, and for text in them: found in the sandbox, chosen here.

use std::path::Path;
use std::sync::Arc;

use sandpod_protocol::v1::{
    GlobRequest, GlobResponse, GrepMatch, GrepRequest, GrepResponse, TruncationReason,
};
use sandpod_protocol::{Failure, limits};
use sandpod_text::Pattern;
use sandpod_text::grep::{Found, check, shown};

use crate::errand::{Errands, script};
use crate::files::absolute;
use crate::info::{below, parse_all};

/// How long a search looks around, in seconds.
const BUDGET: &str = "10";
/// The files whose lines are asked for at once.
const FILES_AT_ONCE: usize = 64;
/// The most that the scripts answer.
const MAX_ANSWER: usize = 8 << 20;

/// Regular files whose paths match, sorted.
pub(crate) async fn glob(errands: &Arc<Errands>, request: GlobRequest) -> Result<GlobResponse, Failure> {
    let pattern = Pattern::new(&request.pattern)?;
    let root = if request.root.is_empty() { "/" } else { &request.root };
    let (found, mut truncated) = find(errands, root, None).await?;
    let inner = |path: &str| path[root.trim_end_matches('/').len()..].trim_start_matches('/').to_owned();
    let mut matches = parse_all(&found, root);
    matches.retain(|info| pattern.matches(Path::new(&inner(&info.path))));
    matches.sort_by(|one, other| one.path.cmp(&other.path));
    if matches.len() > limits::MAX_GLOB_MATCHES {
        matches.truncate(limits::MAX_GLOB_MATCHES);
        truncated = TruncationReason::Budget;
    }
    Ok(GlobResponse { matches, truncated: truncated.into() })
}

/// Lines that hold a text as it is.
pub(crate) async fn grep(
    errands: &Arc<Errands>,
    request: GrepRequest,
    working_dir: &str,
) -> Result<GrepResponse, Failure> {
    check(&request)?;
    let root = if request.root.is_empty() { working_dir } else { &request.root };
    let pattern =
        Some(&request.glob).filter(|glob| !glob.is_empty()).map(|glob| Pattern::new(glob)).transpose()?;
    let (found, truncated) = find(errands, root, Some(&request.pattern)).await?;
    let chosen = |name: &&str| {
        // A root that is a file has only its own name.
        let path = if *name == "." { root.rsplit('/').next().unwrap_or(root) } else { name };
        pattern.as_ref().is_none_or(|pattern| pattern.matches(Path::new(path.trim_start_matches("./"))))
    };
    let mut names: Vec<_> = found.lines().filter(|name| !name.is_empty()).filter(chosen).collect();
    names.sort_unstable();
    let mut all = Found::nothing(&request);
    let mut truncated = truncated != TruncationReason::Unspecified;
    for some in names.chunks(FILES_AT_ONCE) {
        let (found, cut) = lines(errands, root, &request.pattern, some, all.left()).await?;
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

/// What the script found below a root, and why there may be more. With a text: the files that hold it.
async fn find(
    errands: &Arc<Errands>,
    root: &str,
    text: Option<&str>,
) -> Result<(String, TruncationReason), Failure> {
    absolute(root)?;
    let errand = errands.errand();
    let kind = if text.is_some() { "text" } else { "names" };
    errand.say(&[root, kind, text.unwrap_or_default()].map(str::as_bytes)).await?;
    let found = errand.run(script!("find"), &[BUDGET]).await.map_err(|failure| failure.at(root))?;
    let mut found = String::from_utf8_lossy(&found).into_owned();
    let mut why = TruncationReason::Unspecified;
    for (word, reason) in
        [("\nunreadable\n", TruncationReason::Unreadable), ("\nbudget\n", TruncationReason::Budget)]
    {
        if let Some(rest) = found.strip_suffix(word) {
            (found, why) = (rest.to_owned(), reason);
        }
    }
    Ok((found, why))
}

/// The lines of some files, one more than wanted if there are, and whether some did not fit into the answer.
async fn lines(
    errands: &Arc<Errands>,
    root: &str,
    text: &str,
    names: &[&str],
    most: u64,
) -> Result<(Vec<GrepMatch>, bool), Failure> {
    let errand = errands.errand();
    let words = [root, text].into_iter().chain(names.iter().copied()).map(str::as_bytes);
    errand.say(&words.collect::<Vec<_>>()).await?;
    let (count, most) = (names.len().to_string(), (most + 1).to_string());
    let found = errand.run(script!("lines"), &[&count, &most]).await?;
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
