//! [`Owed`]: what a server has been asked and has not answered, in order.
//!
//! Replies carry no numbers; which request one belongs to follows from its place alone. Entries whose
//! reply is for nobody were added by the pooler, and their replies are swallowed.

use std::collections::VecDeque;

/// A request that a server has yet to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Answered by anything, then ReadyForQuery.
    Query,
    /// Answered by FunctionCallResponse or an error, then ReadyForQuery.
    Function,
    /// Answered by ReadyForQuery.
    Sync,
    /// Answered by ParseComplete.
    Parse,
    /// Answered by BindComplete.
    Bind,
    /// Answered by RowDescription or NoData, after ParameterDescription for a statement.
    Describe,
    /// Answered by rows, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Answered by CloseComplete.
    Close,
    /// CopyDone or CopyFail: not answered, but it ends the time in which Sync is not answered either.
    CopyEnd,
}

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    /// Whether the reply is for the pooler alone.
    pub(crate) swallow: bool,
}

/// Requests in order, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    entries: VecDeque<Entry>,
}

impl Owed {
    #[inline]
    pub(crate) fn push(&mut self, request: Request) {
        self.entries.push_back(Entry { request, swallow: false });
    }

    pub(crate) fn push_swallowed(&mut self, request: Request) {
        self.entries.push_back(Entry { request, swallow: true });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Takes the oldest, and the ends of COPY behind it, which nothing answers.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front();
        while self.front().is_some_and(|entry| entry.request == Request::CopyEnd) {
            self.entries.pop_front();
        }
        entry
    }

    /// Takes back what a server in a failed batch does not look at: all before the next Sync. Gives
    /// whether there is one.
    pub(crate) fn skip_to_sync(&mut self) -> bool {
        while let Some(entry) = self.front() {
            if entry.request == Request::Sync {
                return true;
            }
            self.entries.pop_front();
        }
        false
    }

    /// Takes back the Syncs that a server swallows because it waits for COPY data: those behind the
    /// oldest request, up to the end of the COPY. Gives whether that end was sent already.
    pub(crate) fn drop_syncs_in_copy(&mut self) -> bool {
        while let Some(entry) = self.entries.get(1) {
            match entry.request {
                Request::CopyEnd => return true,
                Request::Sync => {
                    self.entries.remove(1);
                }
                _ => return false,
            }
        }
        false
    }
}
