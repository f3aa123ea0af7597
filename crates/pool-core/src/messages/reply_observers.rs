//! Records replies for captures and mirrors.

use howdah_wire::Backend;

use crate::{
    capture::capture_messages,
    messages::reply::{ReplyAction, ReplyHandler},
    mirror::target::parse_sqlstate,
    state::client::ClientKind,
};

impl ReplyHandler<'_> {
    /// Captures a server's message that is forwarded to the client.
    #[inline]
    pub(crate) fn capture_reply(&mut self, kind: Backend, body: &[u8]) {
        if let (Some(capture), Some(client)) = (&mut self.capture, &mut self.client) {
            capture.record_backend(&mut client.capture_mark, kind, body, self.now.0);
        }
    }

    /// Captures messages that the pooler sends to the client in place of the server's.
    pub(crate) fn capture_generated_reply(&mut self, made: &[u8]) {
        if let (Some(capture), Some(client)) = (&mut self.capture, &mut self.client) {
            capture_messages(capture, client, made, self.now);
        }
    }

    /// Records the first error that a client or a mirror client receives in a transaction, to
    /// compare the results.
    pub(crate) fn record_error(&mut self, body: &[u8], reply: &ReplyAction) {
        let Some(client) = self.client.as_deref_mut() else { return };
        if !matches!(reply, ReplyAction::Forward | ReplyAction::Replace(_)) {
            return;
        }
        match &mut client.kind {
            ClientKind::Mirrored(mirrored) => {
                if let Some(open) = &mut mirrored.open {
                    open.error.get_or_insert_with(|| parse_sqlstate(body));
                }
            }
            ClientKind::Internal(internal) => internal.on_error(body),
            ClientKind::Plain => {}
        }
    }
}
