//! Operations on single files.

use bytes::Bytes;
use sandpod_protocol::limits;
use sandpod_protocol::v1::{
    self, ByteRange, DeleteRequest, EditRequest, ListRequest, MoveRequest, ReadRequest, StatRequest,
    WriteRequest, read_response::Content,
};

use super::Sandbox;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// Metadata of a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileInfo {
    /// The path as the guest sent it. Check it before using it on this machine.
    pub path: String,
    /// Type of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time in nanoseconds since 1970.
    pub modified_ns: i64,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Target of a symbolic link, with invalid UTF-8 replaced.
    pub link_target: Option<String>,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a device or a pipe.
    Other,
}

impl From<v1::FileInfo> for FileInfo {
    fn from(info: v1::FileInfo) -> Self {
        let kind = match info.kind() {
            v1::FileKind::File => FileKind::File,
            v1::FileKind::Directory => FileKind::Directory,
            v1::FileKind::Link => FileKind::Link,
            v1::FileKind::Other | v1::FileKind::Unspecified => FileKind::Other,
        };
        Self {
            path: info.path,
            kind,
            size: info.size,
            mode: info.mode & 0o7777,
            modified_ns: info.modified_ns,
            uid: info.uid,
            gid: info.gid,
            link_target: (kind == FileKind::Link).then_some(info.link_target),
        }
    }
}

/// Which part of a file to read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// First line, counted from 0.
    pub line_offset: u64,
    /// Number of lines.
    pub line_limit: u64,
    /// Maximum size of a page of text or of a binary file. Default: the guest's.
    pub max_bytes: Option<u64>,
    /// Return the bytes without checking for text.
    pub binary: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { line_offset: 0, line_limit: 2000, max_bytes: None, binary: false }
    }
}

/// Content that was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Page {
    /// Lines.
    Text(TextPage),
    /// A whole binary file.
    Binary(Bytes),
}

/// Lines of a text file, with `\n` line endings whatever the file has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextPage {
    /// The lines.
    pub content: String,
    /// Number of the first line on the page, counted from 1; 0 if the page is empty.
    pub start_line: u64,
    /// Number of the last line on the page, counted from 1; 0 if the page is empty.
    pub end_line: u64,
    /// Number of lines in the file, if it was read to its end.
    pub total_lines: Option<u64>,
    /// The file continues after the page.
    pub more: bool,
    /// The last line is cut, because the page is full.
    pub truncated: bool,
    /// The file is empty.
    pub empty_file: bool,
}

/// Result of a write or a move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Written {
    /// False if the file could only be written in place, or copied and removed.
    pub atomic: bool,
}

/// Result of an edit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Edited {
    /// Number of replacements.
    pub occurrences: u64,
    /// False if the file could only be written in place.
    pub atomic: bool,
}

impl Sandbox {
    /// Returns the metadata of a path. If `follow`, of a link's target instead of the link.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileInfo, Error> {
        let request = StatRequest { path: path.to_owned(), follow };
        let send = |channel: Channel, request| async move { channel.files().stat(request).await };
        let response = self.connection.ask(self.asks("reading the metadata of", path), request, send).await?;
        let info = response.info.ok_or_else(|| Error::Protocol("the metadata is missing".to_owned()))?;
        Ok(info.into())
    }

    /// Lists a directory, unsorted.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>, Error> {
        let request = ListRequest { path: path.to_owned() };
        let send = |channel: Channel, request| async move { channel.files().list(request).await };
        let response = self.connection.ask(self.asks("listing", path), request, send).await?;
        Ok(response.entries.into_iter().map(FileInfo::from).collect())
    }

    /// Reads a page of a text file, or a whole small binary file.
    pub async fn read(&self, path: &str, options: ReadOptions) -> Result<Page, Error> {
        Ok(self.read_with_info(path, options).await?.0)
    }

    /// Like [`read`](Self::read), with the file's metadata at that time if the guest sends it.
    pub async fn read_with_info(
        &self,
        path: &str,
        options: ReadOptions,
    ) -> Result<(Page, Option<FileInfo>), Error> {
        let request = ReadRequest {
            path: path.to_owned(),
            line_offset: options.line_offset,
            line_limit: options.line_limit,
            max_bytes: options.max_bytes.unwrap_or_default(),
            binary: options.binary,
            range: None,
        };
        let response = self.ask_read(request).await?;
        let page = match response.content {
            Some(Content::Text(page)) => Page::Text(page.into()),
            Some(Content::Binary(content)) => Page::Binary(content),
            None => return Err(Error::Protocol("the content of a file is missing".to_owned())),
        };
        Ok((page, response.info.map(FileInfo::from)))
    }

    /// Reads up to `length` bytes from an offset on. Returns fewer at the end of the file, or if they do not fit into one answer.
    pub async fn read_range(&self, path: &str, offset: u64, length: u64) -> Result<Bytes, Error> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let length = length.min(limits::MAX_OUTPUT_BYTES);
        let range = Some(ByteRange { offset, length });
        let request =
            ReadRequest { path: path.to_owned(), range, max_bytes: length, ..ReadRequest::default() };
        match self.ask_read(request).await?.content {
            Some(Content::Binary(content)) if content.len() as u64 <= length => Ok(content),
            _ => Err(Error::Protocol("invalid answer to a read of bytes".to_owned())),
        }
    }

    async fn ask_read(&self, request: ReadRequest) -> Result<v1::ReadResponse, Error> {
        let attempts = self.asks("reading", &request.path);
        let send = |channel: Channel, request| async move { channel.files().read(request).await };
        self.connection.ask(attempts, request, send).await
    }

    /// Creates or replaces a file of any size. Creates missing parent directories.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<Written, Error> {
        let content = content.into();
        if content.len() <= limits::MAX_INLINE_BYTES {
            return self.write_inline(path, content).await;
        }
        self.write_in_chunks(path, content).await
    }

    /// [`write`](Self::write) of a content that fits into one message.
    pub(super) async fn write_inline(&self, path: &str, content: Bytes) -> Result<Written, Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| WriteRequest {
            operation: Some(operation),
            path: path.to_owned(),
            content: content.clone(),
        };
        let send = |channel: Channel, request| async move { channel.files().write(request).await };
        let attempts = self.changes("writing", path);
        let (response, _) = self.connection.change(attempts, &operation, request, send).await?;
        Ok(Written { atomic: response.atomic })
    }

    /// Replaces a text in a file: its only occurrence, or all if `replace_all`.
    pub async fn edit(
        &self,
        path: &str,
        old_text: &str,
        new_text: &str,
        replace_all: bool,
    ) -> Result<Edited, Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| EditRequest {
            operation: Some(operation),
            path: path.to_owned(),
            old_text: old_text.to_owned(),
            new_text: new_text.to_owned(),
            replace_all,
        };
        let send = |channel: Channel, request| async move { channel.files().edit(request).await };
        let attempts = self.changes("editing", path);
        let (response, _) = self.connection.change(attempts, &operation, request, send).await?;
        Ok(Edited { occurrences: response.occurrences, atomic: response.atomic })
    }

    /// Deletes a file, a link, or a directory with its content.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| DeleteRequest {
            operation: Some(operation),
            path: path.to_owned(),
            only_empty: false,
        };
        let send = |channel: Channel, request| async move { channel.files().delete(request).await };
        self.connection.change(self.changes("deleting", path), &operation, request, send).await?;
        Ok(())
    }

    /// Moves a file, a link or a directory. Creates missing parent directories. An existing target is replaced only if
    /// `replace`.
    pub async fn move_path(&self, from: &str, to: &str, replace: bool) -> Result<Written, Error> {
        let operation = self.connection.begin_operation();
        let request = |operation| MoveRequest {
            operation: Some(operation),
            from: from.to_owned(),
            to: to.to_owned(),
            replace,
        };
        let send = |channel: Channel, request| async move { channel.files().r#move(request).await };
        let attempts = self.changes("moving", from);
        let (response, _) = self.connection.change(attempts, &operation, request, send).await?;
        Ok(Written { atomic: response.atomic })
    }

    pub(super) fn asks(&self, verb: &str, path: &str) -> Attempts {
        Attempts::ask(&self.connection, format!("{verb} {path}")).within(self.bounds.clone())
    }

    pub(super) fn changes(&self, verb: &str, path: &str) -> Attempts {
        Attempts::change(&self.connection, format!("{verb} {path}")).within(self.bounds.clone())
    }
}

impl From<v1::TextPage> for TextPage {
    fn from(page: v1::TextPage) -> Self {
        Self {
            content: page.content,
            start_line: page.start_line,
            end_line: page.end_line,
            total_lines: page.total_lines,
            more: page.more,
            truncated: page.truncated,
            empty_file: page.empty_file,
        }
    }
}
