//! [`RetryBuffer`]: the bytes of a batch, which is sent again if the server refuses to run its
//! prepared statement.
//!
//! A server refuses to run a prepared statement whose result columns have changed since it was
//! parsed (0A000), or that no longer exists because, for example, a function has deallocated it
//! (26000). A client that has just prepared the text must not see that error: on a server of its
//! own, the batch would have worked.
//!
//! So the bytes of a small batch are buffered until it is answered. If none of its statements has
//! run, the statement is parsed again and the batch is sent again.
//!
//! A batch is not retried if it neither describes the result nor prepares the statement: the client
//! relies on an earlier description and would misread changed columns.

use howdah_wire::{Frame, Frontend, Header};

use crate::messages::gather_buffer::GatherBuffer;

/// A buffer for the bytes of the last batch, with the properties of the batch that decide whether
/// it can be sent again.
#[derive(Debug, Default)]
pub(crate) struct RetryBuffer {
    /// Whether the batch being received may be buffered: only while all of it has arrived in one
    /// read.
    is_buffering: bool,
    /// Whether the batch uses a shared statement.
    uses_shared_statement: bool,
    /// Whether the client prepares the statement within this batch, and so cannot rely on an
    /// earlier description of its result.
    has_parse: bool,
    sent: Vec<u8>,
}

/// Maximum length, in bytes, of a batch that is buffered.
const BUFFERED_BYTES_MAX: usize = 4096;

impl RetryBuffer {
    /// Called when more bytes arrive from the client: a batch that started in earlier bytes is not
    /// buffered.
    #[inline]
    pub(crate) fn discard_incomplete(&mut self) {
        self.is_buffering = false;
    }

    /// Starts a batch. It is buffered only if `is_first`: no other request is outstanding and no
    /// transaction is open.
    #[inline]
    pub(crate) fn start_batch(&mut self, is_first: bool) {
        *self = Self {
            is_buffering: is_first,
            sent: std::mem::take(&mut self.sent),
            ..Self::default()
        };
        self.sent.clear();
    }

    /// Records that the batch uses a shared statement.
    #[inline]
    pub(crate) fn mark_shared_statement(&mut self) {
        self.uses_shared_statement = true;
    }

    /// Records that the batch contains a Parse that the pooler answers, because the server already
    /// has the statement.
    pub(crate) fn mark_parse(&mut self) {
        self.has_parse = true;
    }

    /// Called at the Sync of the batch: copies its gathered bytes, if it may be retried. `input`
    /// holds the client's bytes to which `gathered` refers.
    #[inline]
    pub(crate) fn finish_batch(&mut self, gathered: &GatherBuffer, input: &[u8]) {
        if std::mem::take(&mut self.is_buffering) && self.uses_shared_statement {
            gathered.copy_to(input, BUFFERED_BYTES_MAX, &mut self.sent);
        }
    }

    /// Returns the bytes to send again, from the refused message up to but not including Sync.
    /// `unanswered` is the number of messages between the two. Returns `None` if the batch is not
    /// buffered, if a statement of it has run, or if the client may rely on an earlier description
    /// of the result.
    pub(crate) fn take_from_failed(&mut self, unanswered: usize) -> Option<Vec<u8>> {
        let sent = std::mem::take(&mut self.sent);
        let messages = messages(&sent)?;
        let failed = messages.len().checked_sub(unanswered + 1)?;
        let (done, rest) = messages.split_at(failed);
        let is_lasting = |(_, kind): &(usize, _)| matches!(kind, Frontend::Parse | Frontend::Close);
        let is_described = match *rest {
            [(_, Frontend::Describe), ..] | [_, (_, Frontend::Describe), ..] => true,
            _ => self.has_parse,
        };
        let (start, _) = *rest.first()?;
        (done.iter().all(is_lasting) && is_described).then(|| sent[start..].to_vec())
    }
}

/// Returns the offset and kind of each message except Flush, which has no reply; `None` if the
/// bytes are not complete, valid messages.
fn messages(sent: &[u8]) -> Option<Vec<(usize, Frontend)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((frame, _)) = Frame::split(&sent[at..], u32::MAX).ok()? {
        let kind = Frontend::from_tag(frame.tag)?;
        if kind != Frontend::Flush {
            found.push((at, kind));
        }
        at += Header::BYTES + frame.body.len();
    }
    (at == sent.len()).then_some(found)
}
