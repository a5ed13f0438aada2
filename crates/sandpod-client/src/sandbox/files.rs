//! Files, one at a time.

use bytes::Bytes;
use sandpod_protocol::limits;
use sandpod_protocol::v1::{
    self, ByteRange, DeleteRequest, EditRequest, ListRequest, MoveRequest, ReadRequest, StatRequest,
    WriteRequest, read_response::Content,
};

use super::Sandbox;
use crate::connection::{Attempts, Channel};
use crate::error::Error;

/// A file, directory or something else with a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileInfo {
    /// As the guest says it: not to be used as a path on this machine without a look at it.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// In bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// Since 1970, in nanoseconds.
    pub modified_ns: i64,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// Where a link leads, as far as it is text.
    pub link_target: Option<String>,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a device, a pipe.
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
    /// The first line wanted, counted from 0.
    pub line_offset: u64,
    /// How many lines.
    pub line_limit: u64,
    /// What a page of text or a binary file may hold, if not the default.
    pub max_bytes: Option<u64>,
    /// Do not look for text in it.
    pub binary: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { line_offset: 0, line_limit: 2000, max_bytes: None, binary: false }
    }
}

/// What was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Page {
    /// Lines.
    Text(TextPage),
    /// A whole file that is no text.
    Binary(Bytes),
}

/// Lines of a text file, with `\n` endings whatever the file has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextPage {
    /// The lines.
    pub content: String,
    /// Of the first line on the page, counted from 1; 0 if there is none.
    pub start_line: u64,
    /// Of the last line on the page, counted from 1; 0 if there is none.
    pub end_line: u64,
    /// If the file was read to its end.
    pub total_lines: Option<u64>,
    /// The page ends before the file does.
    pub more: bool,
    /// The last line is cut, because the page is full.
    pub truncated: bool,
    /// There is nothing in the file.
    pub empty_file: bool,
}

/// How a file was written or moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Written {
    /// False where it could only be written in place, or copied and removed.
    pub atomic: bool,
}

/// How a file was edited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Edited {
    /// How often the text was replaced.
    pub occurrences: u64,
    /// False where the file could only be written in place.
    pub atomic: bool,
}

impl Sandbox {
    /// What is at a path; of a link what it leads to if `follow`.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileInfo, Error> {
        let request = StatRequest { path: path.to_owned(), follow };
        let send = |channel: Channel, request| async move { channel.files().stat(request).await };
        let response = self.connection.ask(self.asks("a look at", path), request, send).await?;
        let info = response.info.ok_or_else(|| Error::Protocol("it said nothing about a file".to_owned()))?;
        Ok(info.into())
    }

    /// The entries of a directory, in no order.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>, Error> {
        let request = ListRequest { path: path.to_owned() };
        let send = |channel: Channel, request| async move { channel.files().list(request).await };
        let response = self.connection.ask(self.asks("listing", path), request, send).await?;
        Ok(response.entries.into_iter().map(FileInfo::from).collect())
    }

    /// A page of a text file, or a whole small binary one.
    pub async fn read(&self, path: &str, options: ReadOptions) -> Result<Page, Error> {
        Ok(self.read_with_info(path, options).await?.0)
    }

    /// [`read`](Self::read), with what the file was when it was read, if the guest says it.
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
            None => return Err(Error::Protocol("it read a file and returned nothing".to_owned())),
        };
        Ok((page, response.info.map(FileInfo::from)))
    }

    /// Bytes of a file from an offset on: as many as are asked for and there, but no more than fit into one
    /// answer.
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
            _ => Err(Error::Protocol("it read bytes and returned something else".to_owned())),
        }
    }

    async fn ask_read(&self, request: ReadRequest) -> Result<v1::ReadResponse, Error> {
        let attempts = self.asks("reading", &request.path);
        let send = |channel: Channel, request| async move { channel.files().read(request).await };
        self.connection.ask(attempts, request, send).await
    }

    /// Creates or replaces a file, with the directories above it, whatever the size.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<Written, Error> {
        let content = content.into();
        if content.len() <= limits::MAX_INLINE_BYTES {
            return self.write_inline(path, content).await;
        }
        self.write_in_chunks(path, content).await
    }

    /// [`write`](Self::write) of what fits into one message.
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

    /// Replaces text in a file, all of its occurrences or the only one.
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

    /// Removes a file, a link, or a directory with all in it.
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

    /// Gives a file, a link or a directory another path, with the directories above it. What is there already
    /// is replaced only if `replace`.
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
