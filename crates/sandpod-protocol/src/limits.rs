//! Limits of both ends. An error of a call beyond a limit names the limit.

use std::time::Duration;

/// Maximum size of a gRPC message; larger contents use Upload and Download.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Maximum content of a Write.
pub const MAX_INLINE_BYTES: usize = 1 << 20;
/// Size of a chunk of Upload and Download.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Maximum length of a path in the kernel.
pub const MAX_PATH_BYTES: usize = 4096;
/// Maximum length of a command line, or of all words of an argv.
pub const MAX_COMMAND_BYTES: usize = 4 << 20;
/// Maximum length of a pattern of Glob and Grep.
pub const MAX_PATTERN_BYTES: usize = 64 << 10;
/// Default limit on the kept output of a command.
pub const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;
/// Highest limit on the kept output of a command: an answer must fit into one message.
pub const MAX_OUTPUT_BYTES: u64 = 7 << 20;
/// Default size of a page of text, or of a binary file, that Read returns.
pub const DEFAULT_READ_BYTES: u64 = 512_000;
/// Maximum number of matches that Glob returns.
pub const MAX_GLOB_MATCHES: usize = 10_000;
/// Maximum number of matches that Grep returns; also the default.
pub const MAX_GREP_MATCHES: u64 = 10_000;
/// Time limit of Glob and Grep.
pub const SEARCH_BUDGET: Duration = Duration::from_secs(10);
/// Maximum number of files that `ApplyEdits` changes.
pub const MAX_CHANGES: usize = 256;
/// Maximum number of sessions that a guest keeps records of; it drops the least recently active one.
pub const MAX_SESSIONS: usize = 64;
/// Maximum number of results that a guest keeps per session.
pub const MAX_RECORDS: usize = 1024;
/// Maximum size of the results that a guest keeps per session.
pub const MAX_RECORD_BYTES: usize = 16 << 20;
/// Maximum number of waiting calls that an operation lists.
pub const MAX_WAITING: usize = 256;
/// Maximum number of running processes in a guest.
pub const MAX_PROCESSES: usize = 512;
/// Maximum data of one Input.
pub const MAX_INPUT_BYTES: usize = 1 << 20;
/// Maximum number of shell sessions that a guest keeps; it drops the least recently used one.
pub const MAX_SHELL_SESSIONS: usize = 32;
/// Maximum state of one shell session: directory, variables, functions. If a line leaves more, the session keeps its earlier
/// state.
pub const MAX_SHELL_STATE_BYTES: usize = 256 << 10;
/// Maximum number of paths in each list of a policy.
pub const MAX_POLICY_PATHS: usize = 256;
/// Maximum number of ports in each list of a policy.
pub const MAX_POLICY_PORTS: usize = 256;
/// Maximum size of the bounds of one call, which are sent among its headers.
pub const MAX_BOUNDS_BYTES: usize = 8 * 1024;
/// Maximum number of files that Bind writes.
pub const MAX_BOUND_FILES: usize = 256;
/// Time that a command keeps running without a client that waits for it.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(60);
/// Time to wait for output when a command has ended but a child still holds its pipe.
pub const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// Maximum number of calls on one stream. HTTP/2 blocks further calls, so the limit exceeds what a client needs at once:
/// every process can be followed, awaited and written to.
pub const MAX_CALLS: u32 = 2048;
/// HTTP/2 flow-control window of one transfer.
pub const STREAM_WINDOW: u32 = 4 << 20;
/// HTTP/2 flow-control window of the answers of other calls. Unread answers must leave room for the others on their stream.
pub const ANSWER_WINDOW: u32 = 256 << 10;
/// HTTP/2 flow-control window of all calls on one stream.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// Maximum size of an HTTP/2 frame. The default of 16 KiB splits transfers into small pieces.
pub const FRAME_BYTES: u32 = 256 << 10;
/// Interval of pings on an idle stream.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time without an answer to a ping after which a stream is lost.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(40);
