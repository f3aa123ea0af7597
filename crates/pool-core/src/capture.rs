//! Captures client traffic.
//!
//! Client bytes are captured as they arrive, before the core processes them. The pooler's own
//! requests to servers, and their replies, are not part of a capture. While no capture runs, the
//! cost is one comparison for each read and each message.

use howdah_capture::live::{CaptureBuffer, SessionStart};
use howdah_wire::{Backend, Frame, backend::TransactionStatus};

use crate::{
    clients::Clients,
    state::{
        client::{ClientConnection, ClientState, InputHold},
        ids::{ClientId, ServerId},
        server::ServerConnection,
        slab::Slab,
    },
    time::Time,
};

/// The running capture of a worker, if any.
#[derive(Debug, Default)]
pub struct RunningCapture {
    buffer: Option<Box<CaptureBuffer>>,
}

impl RunningCapture {
    /// Starts a capture, after stopping one that is running: new clients are captured from their
    /// login, existing ones from their next transaction.
    pub fn start(&mut self, buffer: CaptureBuffer) {
        self.stop();
        self.buffer = Some(Box::new(buffer));
    }

    /// Stops the running capture, if any, and passes its remaining events to the writer.
    pub fn stop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            buffer.finish();
        }
    }

    /// Returns when [`RunningCapture::flush`] is due; [`Time::NEVER`] if no capture runs or its
    /// buffer is empty.
    pub(crate) fn deadline(&self) -> Time {
        self.buffer.as_ref().and_then(|buffer| buffer.flush_deadline()).map_or(Time::NEVER, Time)
    }

    /// Passes the buffer to the writer if its oldest event is old enough.
    pub(crate) fn flush(&mut self, now: Time) {
        if let Some(buffer) = &mut self.buffer
            && buffer.flush_deadline().is_some_and(|due| due <= now.0)
        {
            buffer.flush();
        }
    }

    /// Whether a capture runs.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns the buffer for the messages of a client, if it is captured.
    #[inline]
    pub(crate) fn of_client(
        &mut self,
        client: Option<&ClientConnection>,
    ) -> Option<&mut CaptureBuffer> {
        let buffer = self.buffer.as_deref_mut()?;
        client.is_some_and(|client| buffer.is_recording(&client.capture_mark)).then_some(buffer)
    }

    /// Captures bytes that a client sent.
    pub(crate) fn client_bytes(
        &mut self,
        client: &mut ClientConnection,
        servers: &Slab<ServerId, ServerConnection>,
        bytes: &[u8],
        now: Time,
    ) {
        let Some(buffer) = &mut self.buffer else { return };
        if !client.is_external() {
            return; // This request was captured when the external client sent it.
        }
        if buffer.is_closed() {
            return self.stop();
        }
        if !buffer.is_recording(&client.capture_mark) {
            if !is_between_transactions(client, servers) {
                return buffer.count_skipped(&client.capture_mark, bytes.len());
            }
            if !buffer.has_room(bytes.len()) {
                return;
            }
            start_session(buffer, client, false, now);
        }
        buffer.record_frontend(&mut client.capture_mark, bytes, now.0);
    }

    /// Captures the end of a client's login, and the bytes that the client has sent before it,
    /// which are still buffered.
    pub(crate) fn login(&mut self, client: &mut ClientConnection, now: Time) {
        let Some(buffer) = &mut self.buffer else { return };
        if !buffer.is_recording(&client.capture_mark)
            && buffer.has_room(client.input.buffered.len())
        {
            start_session(buffer, client, true, now);
            buffer.record_frontend(&mut client.capture_mark, &client.input.buffered, now.0);
        }
    }

    /// Captures the assignment of a server to a waiting client.
    pub(crate) fn server_assigned(&mut self, client: &ClientConnection, now: Time) {
        if let Some(buffer) = self.of_client(Some(client)) {
            buffer.record_server_assigned(&client.capture_mark, now.0);
        }
    }

    /// Captures the cancellation of a client's statement.
    pub(crate) fn cancel(&mut self, client: &ClientConnection, now: Time) {
        if let Some(buffer) = self.of_client(Some(client)) {
            buffer.record_cancel(&client.capture_mark, now.0);
        }
    }

    /// Captures the end of a client's connection.
    pub(crate) fn disconnect(&mut self, client: &ClientConnection, now: Time) {
        if let Some(buffer) = &mut self.buffer {
            buffer.record_disconnect(&client.capture_mark, now.0);
        }
    }

    /// Captures `messages` of the pooler that are about to be sent to a client.
    #[inline]
    pub(crate) fn generated(
        &mut self,
        clients: &mut Clients,
        id: ClientId,
        messages: &[u8],
        now: Time,
    ) {
        if let Some(buffer) = &mut self.buffer
            && let Some(client) = clients.get_mut(id)
            && buffer.is_recording(&client.capture_mark)
        {
            capture_messages(buffer, client, messages, now);
        }
    }
}

/// Captures messages that the pooler has generated for a client.
pub(crate) fn capture_messages(
    capture: &mut CaptureBuffer,
    client: &mut ClientConnection,
    mut made: &[u8],
    now: Time,
) {
    while let Ok(Some((Frame { tag, body }, rest))) = Frame::split(made, u32::MAX) {
        if let Some(kind) = Backend::from_tag(tag) {
            capture.record_backend(&mut client.capture_mark, kind, body, now.0);
        }
        made = rest;
    }
}

/// Whether the client's next bytes start a transaction: no request is outstanding, and no
/// transaction is open on a server or begun by a deferred BEGIN.
pub(crate) fn is_between_transactions(
    client: &ClientConnection,
    servers: &Slab<ServerId, ServerConnection>,
) -> bool {
    let is_quiet = |server: &ServerConnection| {
        server.outstanding.is_empty()
            && server.status == TransactionStatus::Idle
            && !server.batch.is_open
            && !server.batch.is_skipping
            && !server.input.is_inside_forwarded_body()
    };
    let stands = match client.state {
        ClientState::Idle => true,
        ClientState::Linked(server) => servers.get(server).is_some_and(is_quiet),
        ClientState::Welcome | ClientState::Waiting | ClientState::FanOut => false,
    };
    stands
        && !client.has_deferred_begin()
        && client.input.buffered.is_empty()
        && client.input.is_at_boundary()
        && client.input_hold == InputHold::None
}

fn start_session(
    capture: &mut CaptureBuffer,
    client: &mut ClientConnection,
    is_new: bool,
    now: Time,
) {
    let entry = SessionStart {
        is_new,
        pool: u32::try_from(client.owner_pool.index()).unwrap_or(u32::MAX),
        settings: client.parameters.list().iter().map(|setting| (&*setting.name, &*setting.value)),
        statements: client.statements.named.iter().map(|(name, it)| (&**name, it.id, &*it.text)),
        unnamed: &client.statements.unnamed,
    };
    capture.start_session(&mut client.capture_mark, entry, now.0);
}
