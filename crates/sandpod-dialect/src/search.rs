//! Looking for files, and for text in them: found in the sandbox, chosen here.

use std::sync::Arc;

use sandpod_protocol::v1::{
    ErrorCode, GlobRequest, GlobResponse, GrepMatch, GrepRequest, GrepResponse, TruncationReason,
};
use sandpod_protocol::{Failure, limits};

use crate::errand::{Again, Errands, script};
use crate::files::absolute;
use crate::info::{below, parse_all};
use crate::pattern::Pattern;
use crate::text::fitting;

/// How long a search looks around, in seconds.
const BUDGET: &str = "10";
/// The files whose lines are asked for at once.
const FILES_AT_ONCE: usize = 64;
/// The most that the scripts answer.
const MAX_ANSWER: usize = 8 << 20;
/// The longest line that is told whole.
const MAX_LINE: usize = 64 << 10;

/// Regular files whose paths match, sorted.
pub(crate) async fn glob(errands: &Arc<Errands>, request: GlobRequest) -> Result<GlobResponse, Failure> {
    let pattern = Pattern::new(&request.pattern)?;
    let root = if request.root.is_empty() { "/" } else { &request.root };
    let (found, mut truncated) = find(errands, root, "").await?;
    let inner = |path: &str| path[root.trim_end_matches('/').len()..].trim_start_matches('/').to_owned();
    let mut matches = parse_all(&found, root);
    matches.retain(|info| pattern.matches(&inner(&info.path)));
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
    let root = if request.root.is_empty() { working_dir } else { &request.root };
    if request.pattern.is_empty() || request.pattern.len() > limits::MAX_PATTERN_BYTES {
        return Err(Failure::new(ErrorCode::InvalidArgument, "the text to look for is empty or too long"));
    }
    let pattern =
        Some(&request.glob).filter(|glob| !glob.is_empty()).map(|glob| Pattern::new(glob)).transpose()?;
    // No line has a line end in it.
    if request.pattern.contains('\n') {
        return Ok(GrepResponse::default());
    }
    let most = match request.max_count {
        0 => limits::MAX_GREP_MATCHES,
        most => most.min(limits::MAX_GREP_MATCHES),
    };
    let (found, truncated) = find(errands, root, &request.pattern).await?;
    let names = found.lines().map(|name| name.rsplit(' ').next().filter(|last| *last == ".").unwrap_or(name));
    let names = names.filter(|name| !name.is_empty());
    let chosen =
        |name: &&str| pattern.as_ref().is_none_or(|pattern| pattern.matches(name.trim_start_matches("./")));
    let mut names: Vec<_> = names.filter(|name| *name == "." || chosen(name)).collect();
    names.sort_unstable();
    let mut response =
        GrepResponse { matches: Vec::new(), truncated: truncated != TruncationReason::Unspecified };
    for some in names.chunks(FILES_AT_ONCE) {
        let left = most - response.matches.len() as u64;
        let (found, cut) = lines(errands, root, &request.pattern, some, left).await?;
        response.matches.extend(found);
        response.truncated |= cut;
        if response.matches.len() as u64 > most {
            response.matches.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            response.truncated = true;
            break;
        }
    }
    Ok(response)
}

/// What the script found below a root, and why there may be more.
async fn find(errands: &Arc<Errands>, root: &str, text: &str) -> Result<(String, TruncationReason), Failure> {
    absolute(root)?;
    let errand = errands.errand();
    errand.say(&[root.as_bytes(), text.as_bytes()]).await?;
    let found =
        errand.run(script!("find"), &[BUDGET], Again::Yes).await.map_err(|failure| failure.at(root))?;
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
    let found = errand.run(script!("lines"), &[&count, &most], Again::Yes).await?;
    let mut path = String::new();
    let mut matches = Vec::new();
    for line in String::from_utf8_lossy(&found).lines() {
        if let Some(number) = line.strip_prefix("f ") {
            let name = number.parse::<usize>().ok().and_then(|number| names.get(number));
            path = name.map(|name| below(root, name)).unwrap_or_default();
        } else if let Some((number, text)) = line.split_once(':')
            && let Ok(line) = number.parse()
        {
            let text = fitting(text, MAX_LINE).to_owned();
            matches.push(GrepMatch { path: path.clone(), line, text });
        }
    }
    Ok((matches, found.len() >= MAX_ANSWER))
}
