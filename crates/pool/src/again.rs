//! [`RetryBuffer`]: doing a batch again whose prepared statement the server will not run any more.
//!
//! A server refuses a prepared statement whose result has other columns now than when it was parsed
//! (0A000), and one that it has lost (26000: a function may deallocate). A client that prepared the
//! text just now must not hear of it: on a server of its own it would have worked. So the bytes of a
//! small batch are kept until it is answered, and if nothing of it has run, the statement is parsed
//! anew and the batch sent again.
//!
//! That is not done for a client that does not ask for a description of the result in the same batch:
//! it goes by one it was given before, and other columns would be taken for those.

use howdah_wire::{Frame, Frontend, Header};

use crate::gather::Gather;

/// What was sent of the last batch, if it can be sent again.
#[derive(Debug, Default)]
pub(crate) struct RetryBuffer {
    /// The batch that is being received is kept, if all of it is there at once.
    keeps: bool,
    /// It uses a shared statement.
    refers: bool,
    /// The client prepared in it what it uses: it cannot know a description yet.
    parses: bool,
    sent: Vec<u8>,
}

/// Batches longer than this are not kept.
const KEPT_BYTES_MAX: usize = 4096;

impl RetryBuffer {
    /// More of the client's bytes have come: what began in earlier ones is not kept.
    #[inline]
    pub(crate) fn forget_open(&mut self) {
        self.keeps = false;
    }

    /// A batch begins; whether nothing comes before it.
    #[inline]
    pub(crate) fn begin(&mut self, is_first: bool) {
        *self = Self { keeps: is_first, sent: std::mem::take(&mut self.sent), ..Self::default() };
        self.sent.clear();
    }

    /// The batch uses a shared statement.
    #[inline]
    pub(crate) fn refers(&mut self) {
        self.refers = true;
    }

    /// The batch prepares what the server holds already.
    pub(crate) fn parses(&mut self) {
        self.parses = true;
    }

    /// The batch ends: it is what was gathered of `input`.
    #[inline]
    pub(crate) fn end(&mut self, gathered: &Gather, input: &[u8]) {
        if std::mem::take(&mut self.keeps) && self.refers {
            gathered.copy(input, KEPT_BYTES_MAX, &mut self.sent);
        }
    }

    /// What is to be sent again, without its Sync, if the server has refused the statement of a
    /// message behind which `unanswered` more were sent before Sync. Nothing of it may have run, and
    /// the client has to be told what the result looks like.
    pub(crate) fn take(&mut self, unanswered: usize) -> Option<Vec<u8>> {
        let sent = std::mem::take(&mut self.sent);
        let messages = messages(&sent)?;
        let failed = messages.len().checked_sub(unanswered + 1)?;
        let (done, rest) = messages.split_at(failed);
        let lasts = |(_, kind): &(usize, _)| matches!(kind, Frontend::Parse | Frontend::Close);
        let told = match *rest {
            [(_, Frontend::Describe), ..] | [_, (_, Frontend::Describe), ..] => true,
            _ => self.parses,
        };
        let (start, _) = *rest.first()?;
        (done.iter().all(lasts) && told).then(|| sent[start..].to_vec())
    }
}

/// Where messages begin, and their kinds; without Flush, which is not answered.
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
