//! [`RetryBuffer`]: retries a batch whose prepared statement the server refused to run.
//!
//! A server refuses a prepared statement whose result columns have changed since it was parsed
//! (0A000), and one that it has lost (26000: a function may deallocate it). A client that has just
//! prepared the text must not see that error: on a server without other clients it would have
//! worked. So the bytes of a small batch are buffered until it is answered, and if nothing of it
//! has run, the statement is parsed again and the batch is sent again.
//!
//! A batch that does not ask for a description of the result is not retried: the client relies on
//! an earlier description and would misread other columns.

use howdah_wire::{Frame, Frontend, Header};

use crate::core::messages::gather_buffer::GatherBuffer;

/// The bytes of the last batch, if it can be sent again.
#[derive(Debug, Default)]
pub(crate) struct RetryBuffer {
    /// Whether the batch being received is buffered; only if it arrives complete.
    is_buffering: bool,
    /// Whether the batch uses a shared statement.
    uses_shared_statement: bool,
    /// Whether the client prepared in this batch the statement it uses: it cannot know a
    /// description yet.
    has_parse: bool,
    sent: Vec<u8>,
}

/// Maximum length of a batch that is buffered.
const BUFFERED_BYTES_MAX: usize = 4096;

impl RetryBuffer {
    /// Called when more bytes arrive from the client: a batch that started in earlier ones is not
    /// buffered.
    #[inline]
    pub(crate) fn discard_incomplete(&mut self) {
        self.is_buffering = false;
    }

    /// Starts a batch; `is_first` if nothing precedes it.
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

    /// Records that the batch prepares a statement that the server already holds.
    pub(crate) fn mark_parse(&mut self) {
        self.has_parse = true;
    }

    /// Finishes the batch, whose bytes were gathered from `input`.
    #[inline]
    pub(crate) fn finish_batch(&mut self, gathered: &GatherBuffer, input: &[u8]) {
        if std::mem::take(&mut self.is_buffering) && self.uses_shared_statement {
            gathered.copy_to(input, BUFFERED_BYTES_MAX, &mut self.sent);
        }
    }

    /// Returns the bytes to send again, without the Sync, after the server refused the statement of
    /// a message that was followed by `unanswered` more before Sync. `None` unless nothing of the
    /// batch has run and the batch describes its result to the client.
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

/// Returns offsets and kinds of messages, without Flush, which has no reply.
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
