//! [`Merger`]: merges the replies of several shards to the same requests while the replies arrive.

mod aggregate;
mod columns;
mod error;
mod float;
mod numeric;
mod order;
mod reply_buffer;
mod rows;
mod value;

use std::{collections::VecDeque, sync::Arc};

use howdah_wire::{
    Frame, Header, HeaderError, Tag,
    backend::{BackendMessage, CommandTag, ErrorField, Severity, TransactionStatus, encode},
};

use self::{
    columns::ResultColumns, error::MergeError, reply_buffer::ReplyBuffer, rows::MergedRows,
};
use crate::fan_out::FanOut;

/// A request that was sent to all shards of a merger. Each shard replies to requests in the order
/// in which they were sent.
#[derive(Clone, Debug)]
pub enum ShardRequest {
    /// A Query message with one read.
    Query(Arc<FanOut>),
    /// A Query with a `COPY … FROM STDIN`, whose rows are distributed over the shards. Its
    /// CommandComplete is held until the shards have replied to [`ShardRequest::Commit`].
    Copy,
    /// A Query that the pooler sends itself: its reply is not forwarded to the client.
    HiddenQuery,
    /// A Query that the pooler sends to commit or roll back the last COPY.
    Commit,
    /// A Parse: one ParseComplete is forwarded.
    Parse,
    /// A Bind: one BindComplete is forwarded.
    Bind,
    /// A Close: one CloseComplete is forwarded.
    Close,
    /// A Describe of a statement: the shards' row descriptions must be equal.
    DescribeStatement,
    /// A Describe of a portal: the shards' row descriptions must be equal.
    DescribePortal,
    /// A Describe of a portal that the pooler sends before every [`ShardRequest::Execute`] to learn
    /// the formats of the portal's columns.
    HiddenDescribe,
    /// An Execute without a row limit.
    Execute(Arc<FanOut>),
    /// A Sync: one ReadyForQuery is forwarded, with the combined transaction status.
    Sync,
}

/// The next message, or the next rows of a result, expected from every shard.
#[derive(Debug)]
enum NextMessage {
    /// One message with this tag.
    One {
        tag: u8,
        is_visible: bool,
    },
    /// RowDescription or NoData.
    Description {
        is_visible: bool,
    },
    Rows(Arc<FanOut>),
    /// CommandComplete of a COPY, with the number of rows copied.
    CopyCount,
    Ready {
        is_visible: bool,
    },
}

/// Merges the replies of several shards into those of one server, for a client.
///
/// The caller pushes the bytes of each shard as they arrive, and gets the merged bytes as early as
/// possible. It must not read from a shard while the shard's buffer [is full](Merger::is_full):
/// this limits buffered data per shard to about one message or 256 KiB, whichever is more.
///
/// The first error of any shard is sent to the client; other replies are discarded until all shards
/// are ready.
#[derive(Debug)]
pub struct Merger {
    shards: Vec<ReplyBuffer>,
    expected: VecDeque<NextMessage>,
    columns: Option<ResultColumns>,
    rows: Option<MergedRows>,
    /// The reply to a COPY, held until the commit.
    copied: Option<Vec<u8>>,
    has_failed: bool,
    text_by_byte: bool,
    body_bytes_max: u32,
}

impl Merger {
    /// Creates a merger for `shards` shards. With `text_by_byte`, text sorts bytewise on every
    /// shard, as in the collation `C`; otherwise text is not merged in order. A message longer than
    /// `body_bytes_max` is refused.
    pub fn new(shards: usize, text_by_byte: bool, body_bytes_max: u32) -> Self {
        Self {
            shards: (0..shards).map(|_| ReplyBuffer::default()).collect(),
            expected: VecDeque::new(),
            columns: None,
            rows: None,
            copied: None,
            has_failed: false,
            text_by_byte,
            body_bytes_max,
        }
    }

    /// Records a request that was sent to every shard.
    pub fn expect_replies(&mut self, request: ShardRequest) {
        let one = |tag, is_visible| NextMessage::One { tag, is_visible };
        let expected = &mut self.expected;
        match request {
            ShardRequest::Query(fan_out) => expected.extend([
                NextMessage::Description { is_visible: true },
                NextMessage::Rows(fan_out),
                NextMessage::Ready { is_visible: true },
            ]),
            ShardRequest::Copy => expected.extend([
                one(b'G', true),
                NextMessage::CopyCount,
                NextMessage::Ready { is_visible: false },
            ]),
            ShardRequest::HiddenQuery => {
                expected.extend([one(b'C', false), NextMessage::Ready { is_visible: false }]);
            }
            ShardRequest::Commit => {
                expected.extend([one(b'C', false), NextMessage::Ready { is_visible: true }]);
            }
            ShardRequest::Parse => expected.push_back(one(b'1', true)),
            ShardRequest::Bind => expected.push_back(one(b'2', true)),
            ShardRequest::Close => expected.push_back(one(b'3', true)),
            ShardRequest::DescribeStatement => {
                expected.extend([one(b't', true), NextMessage::Description { is_visible: true }]);
            }
            ShardRequest::DescribePortal => {
                expected.push_back(NextMessage::Description { is_visible: true });
            }
            ShardRequest::HiddenDescribe => {
                expected.push_back(NextMessage::Description { is_visible: false });
            }
            ShardRequest::Execute(fan_out) => expected.push_back(NextMessage::Rows(fan_out)),
            ShardRequest::Sync => expected.push_back(NextMessage::Ready { is_visible: true }),
        }
        if self.has_failed {
            self.expected.retain(|expected| matches!(expected, NextMessage::Ready { .. }));
        }
    }

    /// Handles bytes from a shard, which may end within a message, and appends the client's
    /// messages to `out`.
    pub fn push(&mut self, shard: usize, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.shards[shard].is_lost {
            self.shards[shard].push(bytes);
            self.advance(out);
        }
    }

    /// Handles the loss of a shard's connection. The client gets an error if a request is pending
    /// and no error was sent for it yet.
    pub fn on_disconnect(&mut self, shard: usize, out: &mut Vec<u8>) {
        let buffer = &mut self.shards[shard];
        buffer.clear();
        buffer.is_lost = true;
        if !self.is_done() && !self.has_failed {
            self.fail(&MergeError::Lost, out);
        }
        self.advance(out);
    }

    /// Completes requests that get no more replies, because every shard that had to reply has
    /// disconnected.
    pub fn finish_disconnected(&mut self, out: &mut Vec<u8>) {
        self.advance(out);
    }

    /// Whether a shard is so far ahead of the others that the caller must stop reading from it.
    pub fn is_full(&mut self, shard: usize) -> bool {
        self.shards[shard].is_full(self.body_bytes_max)
    }

    /// Whether the replies to all requests are complete.
    pub fn is_done(&self) -> bool {
        self.expected.is_empty()
    }

    /// Whether an error was sent to the client and its ReadyForQuery is pending. Any further work
    /// of the shards for this request is useless then.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Sends the client an error on behalf of the caller; `error` is a complete ErrorResponse.
    pub fn refuse(&mut self, error: &[u8], out: &mut Vec<u8>) {
        if !self.has_failed {
            out.extend_from_slice(error);
        }
        self.stop();
        self.advance(out);
    }

    /// Whether every shard has sent CopyInResponse, so that it accepts data.
    pub fn accepts_copy(&self) -> bool {
        matches!(self.expected.front(), Some(NextMessage::CopyCount))
    }

    fn advance(&mut self, out: &mut Vec<u8>) {
        loop {
            match self.step(out) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.fail(&error, out),
            }
        }
    }

    fn fail(&mut self, error: &MergeError, out: &mut Vec<u8>) {
        if !self.has_failed {
            error.write(out);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.has_failed = true;
        self.rows = None;
        self.copied = None;
        self.expected.retain(|expected| matches!(expected, NextMessage::Ready { .. }));
    }

    /// Returns the tag of the next reply message of a shard, or `None` if it has not arrived.
    /// Errors and asynchronous messages are handled here.
    fn next(&mut self, shard: usize, out: &mut Vec<u8>) -> Result<Option<u8>, MergeError> {
        loop {
            let buffer = &mut self.shards[shard];
            let tag = match buffer.peek(self.body_bytes_max) {
                Ok(Some(Tag(tag))) => tag,
                Ok(None) => return Ok(None),
                Err(error) => {
                    // The start of the next message is unknown, so the connection is useless.
                    buffer.clear();
                    buffer.is_lost = true;
                    return Err(match error {
                        HeaderError::TooLong { body_bytes, body_bytes_max, .. } => {
                            MergeError::MessageTooLong(body_bytes, body_bytes_max)
                        }
                        other => MergeError::Protocol(other.to_string()),
                    });
                }
            };
            match tag {
                b'N' | b'A' => out.extend_from_slice(buffer.front()),
                // Session parameters are the same on all shards, so the client gets only the
                // reports of one.
                b'S' => {
                    if shard == 0 {
                        out.extend_from_slice(buffer.front());
                    }
                }
                b'E' => {
                    if !self.has_failed {
                        write_error(buffer.front(), out)?;
                    }
                    self.shards[shard].pop();
                    self.stop();
                    continue;
                }
                tag => return Ok(Some(tag)),
            }
            self.shards[shard].pop();
        }
    }

    /// Processes the next message of all shards, or rows. Returns whether there was anything to
    /// process.
    fn step(&mut self, out: &mut Vec<u8>) -> Result<bool, MergeError> {
        let had_failed = self.has_failed;
        // Only rows differ in number between shards; all other messages are processed for all
        // shards at once.
        if let Some(NextMessage::Rows(fan_out)) = self.expected.front() {
            let fan_out = Arc::clone(fan_out);
            return self.rows(&fan_out, out);
        }
        let Some(tag) = self.all(out)? else {
            // If an error has just arrived, the next expected message has changed.
            return Ok(self.has_failed && !had_failed);
        };
        let Some(expected) = self.expected.front() else {
            return Err(MergeError::Protocol(format!("unexpected message {:?}", char::from(tag))));
        };
        match *expected {
            NextMessage::One { tag: expected, is_visible } if tag == expected => {
                if is_visible {
                    out.extend_from_slice(self.first());
                }
            }
            NextMessage::Description { is_visible } if matches!(tag, b'T' | b'n') => {
                self.describe()?;
                if is_visible {
                    out.extend_from_slice(self.first());
                }
            }
            // The client sent one COPY, so it gets one count: the sum of all shards.
            NextMessage::CopyCount if tag == b'C' => {
                let mut total = 0;
                for buffer in self.shards.iter().filter(|buffer| !buffer.is_lost) {
                    total += command_tag(buffer.front())?.rows().unwrap_or_default();
                }
                let mut tag = Vec::new();
                write_tag(&format!("COPY {total}"), &mut tag);
                self.copied = Some(tag);
            }
            NextMessage::Ready { is_visible } if tag == b'Z' => {
                // The COPY's CommandComplete is sent only once every shard is ready, because a
                // shard that fails late must turn the whole COPY into an error.
                if is_visible {
                    out.extend(self.copied.take().unwrap_or_default());
                    let status = self.status();
                    encode::ready_for_query(out, status);
                    self.has_failed = false;
                }
            }
            _ => return Err(MergeError::Different),
        }
        self.expected.pop_front();
        self.pop_all();
        Ok(true)
    }

    /// Returns the tag of the next message of all shards, once each has one. After an error,
    /// messages before ReadyForQuery are discarded.
    fn all(&mut self, out: &mut Vec<u8>) -> Result<Option<u8>, MergeError> {
        let had_failed = self.has_failed;
        let mut first = None;
        let mut are_all_there = true;
        for shard in 0..self.shards.len() {
            if self.shards[shard].is_lost {
                continue;
            }
            let mut tag = self.next(shard, out)?;
            while self.has_failed && tag.is_some_and(|tag| tag != b'Z') {
                self.shards[shard].pop();
                tag = self.next(shard, out)?;
            }
            if self.has_failed && !had_failed {
                return Ok(None);
            }
            match (tag, first) {
                (None, _) => are_all_there = false,
                (Some(tag), Some(first)) if tag != first => return Err(MergeError::Different),
                (Some(tag), _) => first = Some(tag),
            }
        }
        if self.shards.iter().all(|buffer| buffer.is_lost) {
            // All shards are disconnected, so every reply counts as complete.
            return Ok((!self.expected.is_empty()).then_some(b'Z'));
        }
        Ok(first.filter(|_| are_all_there))
    }

    /// Returns the message of the first connected shard.
    fn first(&self) -> &[u8] {
        self.shards.iter().find(|buffer| !buffer.is_lost).map_or(&[], ReplyBuffer::front)
    }

    fn pop_all(&mut self) {
        self.shards.iter_mut().for_each(ReplyBuffer::pop);
    }

    /// Returns the combined transaction status of the shards: failed if any has failed, else in a
    /// transaction if any is, else idle.
    fn status(&self) -> TransactionStatus {
        let status = |buffer: &ReplyBuffer| {
            buffer.front().last().copied().and_then(TransactionStatus::from_byte)
        };
        let statuses = self.shards.iter().filter(|buffer| !buffer.is_lost).filter_map(status);
        statuses
            .max_by_key(|status| match status {
                TransactionStatus::Idle => 0,
                TransactionStatus::InTransaction => 1,
                TransactionStatus::Failed => 2,
            })
            .unwrap_or(TransactionStatus::Idle)
    }

    fn describe(&mut self) -> Result<(), MergeError> {
        let mut first: Option<ResultColumns> = None;
        for buffer in self.shards.iter().filter(|buffer| !buffer.is_lost) {
            let columns = match message(buffer.front())? {
                BackendMessage::RowDescription(columns) => ResultColumns::new(columns),
                _ => return Ok(()),
            };
            match &first {
                Some(first) if *first != columns => return Err(MergeError::Different),
                Some(_) => {}
                None => first = Some(columns),
            }
        }
        self.columns = first;
        Ok(())
    }

    /// Merges the rows received so far, as far as their order is known.
    fn rows(&mut self, fan_out: &FanOut, out: &mut Vec<u8>) -> Result<bool, MergeError> {
        let mut rows = match self.rows.take() {
            Some(rows) => rows,
            None => {
                let finished = self.shards.iter().map(|buffer| buffer.is_lost).collect();
                MergedRows::new(fan_out, self.columns.as_ref(), finished, self.text_by_byte)?
            }
        };
        // The first row in order is known only when the next row of every unfinished shard has
        // arrived.
        let mut waits = false;
        for shard in 0..self.shards.len() {
            loop {
                if rows.is_finished[shard] || rows.has_key(shard) {
                    break;
                }
                let tag = self.next(shard, out)?;
                if self.has_failed {
                    return Ok(true);
                }
                let Some(tag) = tag else {
                    waits = true;
                    break;
                };
                let is_over = tag != b'D';
                if is_over {
                    command_tag(self.shards[shard].front())?;
                    rows.is_finished[shard] = true;
                    self.shards[shard].pop();
                } else if rows.accept(
                    shard,
                    self.shards[shard].front(),
                    self.columns.as_ref(),
                    out,
                )? {
                    self.shards[shard].pop();
                }
            }
        }
        if waits {
            self.rows = Some(rows);
            return Ok(false);
        }
        if let Some(shard) = rows.next_shard() {
            // The next row of each unfinished shard is buffered now.
            if rows.has_capacity() {
                out.extend_from_slice(self.shards[shard].front());
            }
            self.shards[shard].pop();
            self.rows = Some(rows);
            return Ok(true);
        }
        let count = rows.finish(out)?;
        write_tag(&format!("SELECT {count}"), out);
        self.expected.pop_front();
        Ok(true)
    }
}

fn message(bytes: &[u8]) -> Result<BackendMessage<'_>, MergeError> {
    let tag = Tag(bytes[0]);
    BackendMessage::parse(Frame { tag, body: &bytes[Header::BYTES..] })
        .map_err(|error| MergeError::Protocol(error.to_string()))
}

fn command_tag(bytes: &[u8]) -> Result<CommandTag<'_>, MergeError> {
    match message(bytes)? {
        BackendMessage::CommandComplete(tag) => Ok(tag),
        _ => Err(MergeError::Different),
    }
}

fn write_tag(tag: &str, out: &mut Vec<u8>) {
    // This cannot fail, because the tag contains no zero byte.
    let _ = encode::command_complete(out, tag.as_bytes());
}

/// Forwards an error with severity ERROR: even one that ends a shard's session does not end the
/// client's.
fn write_error(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), MergeError> {
    let BackendMessage::ErrorResponse(error) = message(bytes)? else {
        return Err(MergeError::Different);
    };
    let severity = [ErrorField::LocalizedSeverity.code(), ErrorField::Severity.code()];
    let fields = error.fields().map(|(code, text)| match code {
        code if severity.contains(&code) => (code, Severity::Error.as_str().as_bytes()),
        _ => (code, text),
    });
    encode::error_response(out, fields).map_err(|error| MergeError::Protocol(error.to_string()))
}

#[cfg(test)]
mod tests;
