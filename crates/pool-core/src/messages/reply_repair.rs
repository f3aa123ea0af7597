//! Hides differences that a client would notice on a shared server: RESET sets parameters to the
//! server's defaults instead of the client's, and a prepared statement may have been dropped or may
//! return other columns.

use howdah_wire::{
    Backend,
    backend::{Severity, TransactionStatus, encode},
    frontend::{self, DescribeTarget},
};

use crate::{
    messages::{
        outstanding::{ReplyTarget, RequestKind, RollbackAction},
        reply::{NO_ZERO_BYTE, ReplyAction, ReplyHandler},
        write,
    },
    servers::setup,
    state::client::ClientConnection,
};

impl ReplyHandler<'_> {
    /// Restores the client's startup parameters after a RESET, which has set them to the server's
    /// defaults. If no other request is outstanding, the client gets its ReadyForQuery only when
    /// the values are restored.
    pub(crate) fn restore_startup_parameters(&mut self) -> ReplyAction {
        let server = &mut *self.server;
        let is_inside = |client: &&mut ClientConnection| client.input.is_inside_forwarded_body();
        let is_inside = server.batch.is_open || self.client.as_ref().is_some_and(is_inside);
        if is_inside || !server.restore.is_due && !server.outstanding.is_empty() {
            return ReplyAction::Forward; // More requests follow, and one of them may be the reset.
        }
        let settings = std::mem::take(&mut server.restore.parameters);
        let is_due = std::mem::take(&mut server.restore.is_due);
        let missing = server.parameters.missing_from(&settings);
        if !is_due || missing.is_empty() || server.status == TransactionStatus::Failed {
            return ReplyAction::Forward;
        }
        let is_last = server.outstanding.is_empty();
        setup::set_parameters(server, &missing, ReplyTarget::RestoreParameters, self.to_server);
        let ends_for = if is_last { ReplyTarget::Client } else { ReplyTarget::RestoreParameters };
        server.outstanding.push_for(ends_for, RequestKind::Sync);
        if is_last { ReplyAction::Swallow } else { ReplyAction::Forward }
    }

    /// Hides the replies to statements that the pooler spliced into a client's query string, and
    /// corrects error positions. Returns `None` for messages that need no special handling.
    pub(crate) fn filter_spliced_reply(
        &mut self,
        kind: Backend,
        body: &[u8],
    ) -> Option<ReplyAction> {
        let spliced = self.server.restore.spliced_query.as_mut()?;
        match kind {
            Backend::RowDescription | Backend::DataRow if spliced.is_spliced() => {
                Some(ReplyAction::Swallow)
            }
            Backend::CommandComplete => {
                let is_ours = spliced.is_spliced();
                spliced.finish_statement();
                is_ours.then_some(ReplyAction::Swallow)
            }
            Backend::ErrorResponse => {
                let moved = with_moved_position(body, |position| spliced.client_position(position));
                match self.handle_error(body, ReplyTarget::Client) {
                    ReplyAction::Forward => {
                        Some(moved.map_or(ReplyAction::Forward, ReplyAction::Replace))
                    }
                    other => Some(other),
                }
            }
            Backend::ReadyForQuery => {
                self.server.restore.spliced_query = None;
                None
            }
            _ => None,
        }
    }

    /// Handles an error that shows that the server has lost a shared statement, or that its result
    /// columns have changed. If the batch can be repeated, because nothing else in it has taken
    /// effect, prepares the statement again and repeats it. Otherwise, the error about a lost
    /// statement is returned with the client's name for it. Returns `None` for other errors, and if
    /// the server's own error must be forwarded.
    pub(crate) fn retry_outdated_statement(&mut self, body: &[u8]) -> Option<ReplyAction> {
        let server = &mut *self.server;
        let front = server.outstanding.front()?;
        let (RequestKind::Bind(id @ 1..) | RequestKind::Describe(id @ 1..)) = front.kind else {
            return None;
        };
        let is_lost = memchr::memmem::find(body, b"\0C26000\0").is_some();
        if !is_lost && memchr::memmem::find(body, b"\0C0A000\0").is_none() {
            return None;
        }
        let client = self.client.as_deref()?;
        let mut named = client.statements.named.iter();
        let (name, statement) = named.find(|(_, statement)| statement.id == id)?;
        let remaining = server.outstanding.remaining_in_last_batch();
        let is_alone =
            server.status == TransactionStatus::Idle && !client.input.is_inside_forwarded_body();
        // Parsed under other settings, the text could have a different meaning.
        let is_same = statement.settings_key == 0
            || statement.settings_key == server.parameters.parse_state.key;
        let sent = remaining
            .filter(|_| is_alone && is_same)
            .and_then(|remaining| server.batch.retry_buffer.take_from_failed(remaining));
        let Some(sent) = sent else {
            if is_lost {
                server.statements.remove(id);
                let error = missing_statement_error(name);
                self.skip_to_sync();
                return Some(ReplyAction::Replace(error));
            }
            self.statements.retire(statement);
            return None;
        };
        server.statements.insert(id);
        // The server skips to the Sync that it has already received, then runs these messages.
        let parse = RequestKind::Parse(Some(Box::new(RollbackAction::RemoveStatement(id))));
        server.outstanding.prepend_retry([RequestKind::Sync, RequestKind::Close(None), parse]);
        self.to_server.push_with(|buf| {
            frontend::encode::close(buf, DescribeTarget::Statement(&statement.name))
                .expect(NO_ZERO_BYTE);
            write::parse(buf, statement);
            buf.extend_from_slice(&sent);
            frontend::encode::sync(buf);
        });
        Some(ReplyAction::Swallow)
    }
}

/// Returns the error as a complete message, with its position in the query string replaced; `None`
/// if it has no position.
fn with_moved_position(body: &[u8], position: impl Fn(usize) -> usize) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(body, b"\0P")? + 2;
    let end = at + memchr::memchr(0, &body[at..])?;
    let old = std::str::from_utf8(&body[at..end]).ok()?.parse().ok()?;
    let new = position(old).to_string();
    let mut buf = vec![Backend::ErrorResponse.tag().0];
    let bytes = u32::try_from(body.len() - (end - at) + new.len() + 4).ok()?;
    buf.extend_from_slice(&bytes.to_be_bytes());
    [&body[..at], new.as_bytes(), &body[end..]].iter().for_each(|it| buf.extend_from_slice(it));
    Some(buf)
}

/// Returns PostgreSQL's error for a missing prepared statement, with the client's name for the
/// statement.
fn missing_statement_error(name: &[u8]) -> Vec<u8> {
    let message = [b"prepared statement \"", name, b"\" does not exist"].concat();
    let mut buf = Vec::new();
    let fields = encode::essentials(Severity::Error, b"26000", &message);
    encode::error_response(&mut buf, fields).expect(NO_ZERO_BYTE);
    buf
}
