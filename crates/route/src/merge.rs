//! [`Merger`]: what several shards answer to the same requests, put together as it comes.

mod aggregate;
mod columns;
mod fault;
mod float;
mod held;
mod numeric;
mod order;
mod rows;
mod value;

use std::{collections::VecDeque, sync::Arc};

use howdah_wire::{
    Frame, Header, HeaderError, Tag,
    backend::{CommandTag, ErrorField, Message, Severity, TransactionStatus, encode},
};

use self::{columns::Columns, fault::Fault, held::Held, rows::Rows};
use crate::fan::FanOut;

/// What all shards were asked, in the order in which they answer.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A Query with one read.
    Query(Arc<FanOut>),
    /// A Query with a `COPY … FROM STDIN`, whose data is sent on by row: the answer is kept until
    /// [`Asked::Commit`] is answered.
    Copy,
    /// A Query of nobody's: its answer is not passed on.
    Hidden,
    /// A Query of nobody's that makes what was copied last, or undoes it.
    Commit,
    /// A Parse.
    Parse,
    /// A Bind.
    Bind,
    /// A Close.
    Close,
    /// A Describe of a statement.
    DescribeStatement,
    /// A Describe of a portal.
    DescribePortal,
    /// A Describe of a portal that nobody asked for: ahead of every [`Asked::Execute`], for the formats of
    /// its columns.
    Look,
    /// An Execute of all rows.
    Execute(Arc<FanOut>),
    /// A Sync.
    Sync,
}

/// What is to come next of every shard.
#[derive(Debug)]
enum Expected {
    /// One message of a kind.
    One {
        tag: u8,
        is_visible: bool,
    },
    /// What rows are like.
    Description {
        is_visible: bool,
    },
    Rows(Arc<FanOut>),
    /// How many rows a COPY took.
    Copied,
    Ready {
        is_visible: bool,
    },
}

/// Puts the answers of several shards together, for a client that takes them for those of one server.
///
/// Bytes go in as each shard sends them, and come out as soon as they can. A shard that is ahead of the others
/// is not to be read from while it [is full](Merger::is_full): this bounds what is held to a message or
/// 256 KiB for each, whichever is more.
///
/// The first error of any shard is the client's; what the others answer is passed over until they are ready.
#[derive(Debug)]
pub struct Merger {
    shards: Vec<Held>,
    expected: VecDeque<Expected>,
    columns: Option<Columns>,
    rows: Option<Rows>,
    /// The answer to a COPY, until it is committed.
    copied: Option<Vec<u8>>,
    has_failed: bool,
    text_by_byte: bool,
    body_bytes_max: u32,
}

impl Merger {
    /// For so many shards. `text_by_byte`: text is in the order of its bytes on every shard, as in the
    /// collation `C`; otherwise no text is put in order. A message of more than `body_bytes_max` is refused.
    pub fn new(shards: usize, text_by_byte: bool, body_bytes_max: u32) -> Self {
        Self {
            shards: (0..shards).map(|_| Held::default()).collect(),
            expected: VecDeque::new(),
            columns: None,
            rows: None,
            copied: None,
            has_failed: false,
            text_by_byte,
            body_bytes_max,
        }
    }

    /// Every shard was sent this.
    pub fn asked(&mut self, asked: Asked) {
        let one = |tag, is_visible| Expected::One { tag, is_visible };
        let expected = &mut self.expected;
        match asked {
            Asked::Query(how) => expected.extend([
                Expected::Description { is_visible: true },
                Expected::Rows(how),
                Expected::Ready { is_visible: true },
            ]),
            Asked::Copy => expected.extend([
                one(b'G', true),
                Expected::Copied,
                Expected::Ready { is_visible: false },
            ]),
            Asked::Hidden => {
                expected.extend([one(b'C', false), Expected::Ready { is_visible: false }]);
            }
            Asked::Commit => {
                expected.extend([one(b'C', false), Expected::Ready { is_visible: true }]);
            }
            Asked::Parse => expected.push_back(one(b'1', true)),
            Asked::Bind => expected.push_back(one(b'2', true)),
            Asked::Close => expected.push_back(one(b'3', true)),
            Asked::DescribeStatement => {
                expected.extend([one(b't', true), Expected::Description { is_visible: true }]);
            }
            Asked::DescribePortal => {
                expected.push_back(Expected::Description { is_visible: true });
            }
            Asked::Look => expected.push_back(Expected::Description { is_visible: false }),
            Asked::Execute(how) => expected.push_back(Expected::Rows(how)),
            Asked::Sync => expected.push_back(Expected::Ready { is_visible: true }),
        }
        if self.has_failed {
            self.expected.retain(|expected| matches!(expected, Expected::Ready { .. }));
        }
    }

    /// Takes what a shard has sent, whole messages or not, and appends to `out` what the client gets.
    pub fn push(&mut self, shard: usize, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.shards[shard].is_lost {
            self.shards[shard].push(bytes);
            self.advance(out);
        }
    }

    /// The connection to a shard is gone. The client is told, unless nothing was asked.
    pub fn lost(&mut self, shard: usize, out: &mut Vec<u8>) {
        let held = &mut self.shards[shard];
        held.clear();
        held.is_lost = true;
        if !self.is_done() && !self.has_failed {
            self.fail(&Fault::Lost, out);
        }
        self.advance(out);
    }

    /// Tells the client what needs no answer: every shard that was to give one is gone.
    pub fn go_on(&mut self, out: &mut Vec<u8>) {
        self.advance(out);
    }

    /// Whether a shard is so far ahead of the others that it is not to be read from.
    pub fn is_full(&mut self, shard: usize) -> bool {
        self.shards[shard].is_full(self.body_bytes_max)
    }

    /// Whether everything asked has been answered.
    pub fn is_done(&self) -> bool {
        self.expected.is_empty()
    }

    /// Whether the client has been told of an error, and not yet that it may go on: what shards still do
    /// for it is in vain.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Tells the client of an error that is nobody's but the caller's: a whole ErrorResponse.
    pub fn refuse(&mut self, error: &[u8], out: &mut Vec<u8>) {
        if !self.has_failed {
            out.extend_from_slice(error);
        }
        self.stop();
        self.advance(out);
    }

    /// Whether every shard has said that it takes the rows of a COPY.
    pub fn takes_copy(&self) -> bool {
        matches!(self.expected.front(), Some(Expected::Copied))
    }

    fn advance(&mut self, out: &mut Vec<u8>) {
        loop {
            match self.step(out) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fault) => self.fail(&fault, out),
            }
        }
    }

    fn fail(&mut self, fault: &Fault, out: &mut Vec<u8>) {
        if !self.has_failed {
            fault.write(out);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.has_failed = true;
        self.rows = None;
        self.copied = None;
        self.expected.retain(|expected| matches!(expected, Expected::Ready { .. }));
    }

    /// The tag of the next message of a shard that is an answer; others are dealt with. `None`: it has to
    /// come first.
    fn next(&mut self, shard: usize, out: &mut Vec<u8>) -> Result<Option<u8>, Fault> {
        loop {
            let held = &mut self.shards[shard];
            let tag = match held.peek(self.body_bytes_max) {
                Ok(Some(Tag(tag))) => tag,
                Ok(None) => return Ok(None),
                Err(error) => {
                    // Nothing that follows can be found any more.
                    held.clear();
                    held.is_lost = true;
                    return Err(match error {
                        HeaderError::TooLong { body_bytes, body_bytes_max, .. } => {
                            Fault::Long(body_bytes, body_bytes_max)
                        }
                        other => Fault::Protocol(other.to_string()),
                    });
                }
            };
            match tag {
                b'N' | b'A' => out.extend_from_slice(held.front()),
                // Settings are the same everywhere.
                b'S' => {
                    if shard == 0 {
                        out.extend_from_slice(held.front());
                    }
                }
                b'E' => {
                    if !self.has_failed {
                        write_error(held.front(), out)?;
                    }
                    self.shards[shard].pass();
                    self.stop();
                    continue;
                }
                tag => return Ok(Some(tag)),
            }
            self.shards[shard].pass();
        }
    }

    /// Goes one step; gives whether there was one to go.
    fn step(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let had_failed = self.has_failed;
        if let Some(Expected::Rows(how)) = self.expected.front() {
            let how = Arc::clone(how);
            return self.rows(&how, out);
        }
        let Some(tag) = self.all(out)? else {
            // An error has come in between: from now on, something else is waited for.
            return Ok(self.has_failed && !had_failed);
        };
        let Some(expected) = self.expected.front() else {
            return Err(Fault::Protocol(format!("message {:?} unasked", char::from(tag))));
        };
        match *expected {
            Expected::One { tag: wanted, is_visible } if tag == wanted => {
                if is_visible {
                    out.extend_from_slice(self.first());
                }
            }
            Expected::Description { is_visible } if matches!(tag, b'T' | b'n') => {
                self.describe()?;
                if is_visible {
                    out.extend_from_slice(self.first());
                }
            }
            Expected::Copied if tag == b'C' => {
                let mut total = 0;
                for held in self.shards.iter().filter(|held| !held.is_lost) {
                    total += command_tag(held.front())?.rows().unwrap_or_default();
                }
                let mut tag = Vec::new();
                write_tag(&format!("COPY {total}"), &mut tag);
                self.copied = Some(tag);
            }
            Expected::Ready { is_visible } if tag == b'Z' => {
                if is_visible {
                    out.extend(self.copied.take().unwrap_or_default());
                    let status = self.status();
                    encode::ready_for_query(out, status);
                    self.has_failed = false;
                }
            }
            _ => return Err(Fault::Different),
        }
        self.expected.pop_front();
        self.pass_all();
        Ok(true)
    }

    /// The tag of the next message of all shards, once each has one.
    /// After an error, what comes before the shards are ready is passed over.
    fn all(&mut self, out: &mut Vec<u8>) -> Result<Option<u8>, Fault> {
        let had_failed = self.has_failed;
        let mut first = None;
        let mut are_all_there = true;
        for shard in 0..self.shards.len() {
            if self.shards[shard].is_lost {
                continue;
            }
            let mut tag = self.next(shard, out)?;
            while self.has_failed && tag.is_some_and(|tag| tag != b'Z') {
                self.shards[shard].pass();
                tag = self.next(shard, out)?;
            }
            if self.has_failed && !had_failed {
                return Ok(None);
            }
            match (tag, first) {
                (None, _) => are_all_there = false,
                (Some(tag), Some(first)) if tag != first => return Err(Fault::Different),
                (Some(tag), _) => first = Some(tag),
            }
        }
        if self.shards.iter().all(|held| held.is_lost) {
            // There is nobody left to wait for.
            return Ok((!self.expected.is_empty()).then_some(b'Z'));
        }
        Ok(first.filter(|_| are_all_there))
    }

    /// The message of the first shard that is there.
    fn first(&self) -> &[u8] {
        self.shards.iter().find(|held| !held.is_lost).map_or(&[], Held::front)
    }

    fn pass_all(&mut self) {
        self.shards.iter_mut().for_each(Held::pass);
    }

    /// What the shards say about their transactions: none is open unless one of them has one.
    fn status(&self) -> TransactionStatus {
        let status =
            |held: &Held| held.front().last().copied().and_then(TransactionStatus::from_byte);
        let known = self.shards.iter().filter(|held| !held.is_lost).filter_map(status);
        known
            .max_by_key(|status| match status {
                TransactionStatus::Idle => 0,
                TransactionStatus::InTransaction => 1,
                TransactionStatus::Failed => 2,
            })
            .unwrap_or(TransactionStatus::Idle)
    }

    fn describe(&mut self) -> Result<(), Fault> {
        let mut known: Option<Columns> = None;
        for held in self.shards.iter().filter(|held| !held.is_lost) {
            let columns = match message(held.front())? {
                Message::RowDescription(columns) => Columns::new(columns),
                _ => return Ok(()),
            };
            match &known {
                Some(known) if *known != columns => return Err(Fault::Different),
                Some(_) => {}
                None => known = Some(columns),
            }
        }
        self.columns = known;
        Ok(())
    }

    /// Takes rows for as long as it can.
    fn rows(&mut self, how: &FanOut, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let mut rows = match self.rows.take() {
            Some(rows) => rows,
            None => {
                let are_over = self.shards.iter().map(|held| held.is_lost).collect();
                Rows::new(how, self.columns.as_ref(), are_over, self.text_by_byte)?
            }
        };
        let mut waits = false;
        for shard in 0..self.shards.len() {
            loop {
                if rows.is_over[shard] || rows.has_key(shard) {
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
                    rows.is_over[shard] = true;
                    self.shards[shard].pass();
                } else if rows.take(
                    shard,
                    self.shards[shard].front(),
                    self.columns.as_ref(),
                    out,
                )? {
                    self.shards[shard].pass();
                }
            }
        }
        if waits {
            self.rows = Some(rows);
            return Ok(false);
        }
        if let Some(shard) = rows.least() {
            // Each that has more has said which is its next.
            if rows.takes_another() {
                out.extend_from_slice(self.shards[shard].front());
            }
            self.shards[shard].pass();
            self.rows = Some(rows);
            return Ok(true);
        }
        let count = rows.end(out)?;
        write_tag(&format!("SELECT {count}"), out);
        self.expected.pop_front();
        Ok(true)
    }
}

fn message(bytes: &[u8]) -> Result<Message<'_>, Fault> {
    let tag = Tag(bytes[0]);
    Message::parse(Frame { tag, body: &bytes[Header::BYTES..] })
        .map_err(|error| Fault::Protocol(error.to_string()))
}

fn command_tag(bytes: &[u8]) -> Result<CommandTag<'_>, Fault> {
    match message(bytes)? {
        Message::CommandComplete(tag) => Ok(tag),
        _ => Err(Fault::Different),
    }
}

fn write_tag(tag: &str, out: &mut Vec<u8>) {
    // It has no zero byte.
    let _ = encode::command_complete(out, tag.as_bytes());
}

/// Passes an error on. What ends a shard's session does not end the client's.
fn write_error(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let Message::ErrorResponse(error) = message(bytes)? else { return Err(Fault::Different) };
    let severity = [ErrorField::LocalizedSeverity.code(), ErrorField::Severity.code()];
    let fields = error.fields().map(|(code, text)| match code {
        code if severity.contains(&code) => (code, Severity::Error.as_str().as_bytes()),
        _ => (code, text),
    });
    encode::error_response(out, fields).map_err(|error| Fault::Protocol(error.to_string()))
}

#[cfg(test)]
mod tests;
