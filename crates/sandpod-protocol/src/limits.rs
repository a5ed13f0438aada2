//! The bounds that both ends keep to. A caller that goes past one gets an error that names it.

use std::time::Duration;

/// The largest gRPC message; larger contents go by Upload and Download.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// The content that Write takes in one message.
pub const MAX_INLINE_BYTES: usize = 1 << 20;
/// A chunk of Upload and Download.
pub const CHUNK_BYTES: usize = 256 << 10;
/// A path, as the kernel has it.
pub const MAX_PATH_BYTES: usize = 4096;
/// A command line or the words of an argv together.
pub const MAX_COMMAND_BYTES: usize = 4 << 20;
/// A pattern of Glob and Grep.
pub const MAX_PATTERN_BYTES: usize = 64 << 10;
/// The output that is kept of a command by default.
pub const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;
/// The most output that a caller may ask to keep: an answer must fit into one message.
pub const MAX_OUTPUT_BYTES: u64 = 7 << 20;
/// A page of text, or a binary file, that Read returns by default.
pub const DEFAULT_READ_BYTES: u64 = 512_000;
/// The matches that Glob returns.
pub const MAX_GLOB_MATCHES: usize = 10_000;
/// The matches that Grep returns by default and at most.
pub const MAX_GREP_MATCHES: u64 = 10_000;
/// How long Glob and Grep look around.
pub const SEARCH_BUDGET: Duration = Duration::from_secs(10);
/// The files that `ApplyEdits` changes at once.
pub const MAX_CHANGES: usize = 256;
/// The sessions that a guest keeps records of; the one that was silent longest goes first.
pub const MAX_SESSIONS: usize = 64;
/// The results that a guest keeps for one session, by number and by size.
pub const MAX_RECORDS: usize = 1024;
/// See [`MAX_RECORDS`].
pub const MAX_RECORD_BYTES: usize = 16 << 20;
/// The calls of a session that a client says it waits for.
pub const MAX_WAITING: usize = 256;
/// The processes that a guest runs at once.
pub const MAX_PROCESSES: usize = 512;
/// The data of one Input.
pub const MAX_INPUT_BYTES: usize = 1 << 20;
/// The shell sessions that a guest keeps; the one that was used longest ago goes first.
pub const MAX_SHELL_SESSIONS: usize = 32;
/// What a guest keeps of one shell session: directory, variables, functions. Where a line leaves more,
/// the session stays as it was before.
pub const MAX_SHELL_STATE_BYTES: usize = 256 << 10;
/// The paths in each list of a policy.
pub const MAX_POLICY_PATHS: usize = 256;
/// The ports in each list of a policy.
pub const MAX_POLICY_PORTS: usize = 256;
/// What the bounds of one call may take: they travel among its headers.
pub const MAX_BOUNDS_BYTES: usize = 8 * 1024;
/// The files that Bind writes.
pub const MAX_BOUND_FILES: usize = 256;
/// How long a command lives on without a client that waits for it.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(60);
/// How long output is waited for when a command has ended but a child of it holds the pipe.
pub const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// The calls on one stream. HTTP/2 holds back all others behind one more, so it is more than anybody needs at once: the
/// processes can all be followed, waited for and written to.
pub const MAX_CALLS: u32 = 2048;
/// HTTP/2 flow-control window of one transfer.
pub const STREAM_WINDOW: u32 = 4 << 20;
/// The same for answers of other calls. Those that nobody reads for a while must leave room for the rest on their stream.
pub const ANSWER_WINDOW: u32 = 256 << 10;
/// HTTP/2 flow-control window of all calls on one stream.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// The largest HTTP/2 frame. The default of 16 KiB makes a transfer one of small pieces.
pub const FRAME_BYTES: u32 = 256 << 10;
/// How often an idle end asks whether the other is there.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// When a silent other end is dead.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(40);
