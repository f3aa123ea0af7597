//! Closes connections, and cleans servers that clients have released.

use howdah_wire::{
    backend::{Severity, TransactionStatus},
    frontend::{
        self,
        encode::{bind, execute, parse, sync},
    },
};

use super::{Core, server_setup};
use crate::{
    CoreIo,
    messages::{
        gather_buffer::GatherBuffer,
        outstanding::{ReplyTarget, RequestKind},
    },
    refusal::ClientRefusal,
    session::state::{SessionStateFlags, SetKind},
    spec::PoolingMode,
    state::{
        client::{ClientConnection, ClientKind, ClientState, InputHold},
        ids::{ClientId, PeerId, ServerId},
        pool::PoolState,
        server::{ServerConnection, ServerState},
    },
};

impl Core {
    /// Removes a client that has disconnected: ends its LISTEN and its sub-requests, cancels its
    /// running request, and starts cleaning its server.
    pub(super) fn handle_client_disconnect(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.remove_client(id) else { return };
        if client.channels.is_some() {
            io.unlisten(id, client.owner_pool, None);
        }
        self.drop_sub_requests(&client, io);
        if let Some(id) = client.server() {
            let has_request =
                self.servers.get(id).is_some_and(|server| server.outstanding.is_for_client());
            if has_request && client.input.is_at_boundary() {
                self.request_cancel(id, io); // The reply is not needed any more.
            }
            self.start_cleaning(id, client.input.padding_bytes(), io);
        }
    }

    /// Handles Terminate. As in PostgreSQL, the client's earlier requests are still executed.
    pub(super) fn terminate_client(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.remove_client(id) else { return };
        if client.channels.is_some() {
            io.unlisten(id, client.owner_pool, None);
        }
        io.close(PeerId::Client(id));
        self.drop_sub_requests(&client, io);
        if let Some(server) = client.server() {
            self.start_cleaning(server, client.input.padding_bytes(), io);
        }
    }

    /// Starts cleaning a released server: waits for running requests, then rolls back an open
    /// transaction and resets session state. If the client disconnected in the middle of a message,
    /// `padding` more bytes complete that message, and the server rejects it; with `None`, the
    /// message cannot be completed and the connection is closed. So are connections of pools whose
    /// servers are used by one client only.
    fn start_cleaning(&mut self, id: ServerId, padding: Option<usize>, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.state = ServerState::Cleaning;
        server.state_since = self.now;
        let spec =
            &self.pools[server.pool.index()].as_ref().expect("a pool with servers exists").spec;
        let is_session = spec.mode == PoolingMode::Session;
        // In session mode, a configured reset query, such as DISCARD ALL, is trusted to reset
        // everything. Without one, any kind of session state may have changed and is reset.
        match &spec.reset {
            Some(_) if is_session => {
                (server.is_reset_due, server.session_state) = (true, SessionStateFlags::NONE);
            }
            Some(reset) => server.is_reset_due = reset.is_always,
            None if is_session => server.session_state = SessionStateFlags::UNKNOWN,
            None => {}
        }
        let Some(padding) = padding.filter(|_| !spec.is_single_use) else {
            return self.close_server(id, io);
        };
        self.to_server.push_with(|buf| buf.resize(buf.len() + padding, PADDING));
        self.flush_server(id, &[], io);
        self.update_pause(PeerId::Server(id), io);
        self.continue_cleaning(id, io);
    }

    /// Takes the next step of cleaning a server. The steps are: end a COPY, end the batch, wait for
    /// outstanding replies, roll back, reset session state, return the server to its pool.
    pub(super) fn continue_cleaning(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state != ServerState::Cleaning {
            return;
        }
        if server.is_copying_in {
            server.is_copying_in = false;
            server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::CopyEnd);
            self.to_server.push_with(write_copy_fail);
            self.flush_server(id, &[], io);
            return self.continue_cleaning(id, io);
        }
        if server.has_open_batch || server.is_skipping {
            abort_batch(server, &mut self.to_server);
            return self.flush_server(id, &[], io);
        }
        if !server.outstanding.is_empty() {
            return;
        }
        let pool = self.pools[server.pool.index()].as_ref();
        // Each step sends its request and returns; the reply calls this function again.
        let (step, resets) = if server.status != TransactionStatus::Idle {
            (b"ROLLBACK".to_vec(), false)
        } else if std::mem::take(&mut server.is_reset_due)
            && let Some(reset) = pool.and_then(reset_query)
        {
            (reset, true)
        } else if server.session_state.is_none() {
            return self.return_to_pool(id, io);
        } else {
            (server_setup::take_reset_query(server), true)
        };
        let connect_query = pool.and_then(|pool| pool.spec.connect_query.as_ref());
        let connect_query = connect_query.filter(|_| resets);
        // The reset would undo the connect query, and this query cannot be repeated.
        if connect_query.is_some_and(|query| !query.is_repeatable) {
            return self.close_server(id, io);
        }
        // Send both together, so that no other statement runs between a reset and the connect
        // query.
        let steps = [Some(&*step), connect_query.map(|query| &*query.query)];
        for step in steps.into_iter().flatten() {
            server
                .outstanding
                .push_for(ReplyTarget::Cleaning, RequestKind::Query(SetKind::NeedsReset));
            self.to_server.push_with(|buf| {
                frontend::encode::query(buf, step).expect("the text has no zero byte");
            });
        }
        self.flush_server(id, &[], io);
    }

    /// Removes a server whose connection has ended, whatever its state was. If it has a client, the
    /// client is disconnected with an error.
    pub(super) fn handle_server_disconnect(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.remove(id) else { return };
        let pool_id = server.pool;
        let pool = self.pool(pool_id);
        pool.servers -= 1;
        pool.checking -= u32::from(server.is_in_check);
        match server.state {
            ServerState::Opening => pool.opening -= 1,
            ServerState::Idle => pool.idle.retain(|idle| *idle != id),
            ServerState::Cleaning => {}
            ServerState::Linked(client) => {
                // Unlink it first: disconnecting the client must find no server.
                if let Some(client) = self.clients.get_mut(client) {
                    client.state = ClientState::Idle;
                    client.input_hold = InputHold::None;
                    client.has_partial_message = server.input.is_inside_forwarded_body();
                }
                self.refuse(client, &ClientRefusal::ServerLost, io);
            }
        }
        // Release its permits before looking for pools that can use them.
        drop(server);
        self.open_for_starved(io);
        self.open_for_waiting(pool_id, io);
    }

    /// Closes a server that is not linked to a client.
    pub(super) fn close_server(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get(id) else { return };
        if server.input.is_at_boundary() && server.outstanding.is_empty() {
            self.to_server.push_with(frontend::encode::terminate);
            self.flush_server(id, &[], io);
        }
        io.close(PeerId::Server(id));
        self.handle_server_disconnect(id, io);
    }

    /// Disconnects a client with an error, and reports the error for the log. The client does not
    /// get the error if it has received only part of a message.
    pub(super) fn refuse(&mut self, id: ClientId, refusal: &ClientRefusal, io: &mut dyn CoreIo) {
        // A client gets only the first error of its sub-requests.
        let sub_request = self.clients.get(id).and_then(ClientConnection::sub_request);
        if let Some(sub_request) =
            sub_request.filter(|sub_request| !self.has_fan_out_failed(sub_request.parent))
        {
            io.request_failed(sub_request.parent, refusal);
        }
        let Some(client) = self.clients.get(id) else { return };
        let server = client.server().and_then(|server| self.servers.get(server));
        if !client.has_partial_message
            && !server.is_some_and(|server| server.input.is_inside_forwarded_body())
        {
            self.to_client.push_with(|buf| refusal.write(buf, Severity::Fatal));
            self.flush_client(id, &[], io);
        }
        match self.clients.get(id).map(|client| &client.kind) {
            Some(ClientKind::Plain | ClientKind::Mirrored(_)) => io.client_refused(id, refusal),
            Some(ClientKind::MirrorClient(mirror_client)) => {
                let queue = mirror_client.queue;
                self.mirror_client_refused(queue, refusal);
            }
            Some(ClientKind::SubRequest(_)) | None => {}
        }
        self.close_client(id, io);
    }

    /// Closes a client's connection, without sending an error.
    pub(super) fn close_client(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        if let Some(client) = self.clients.get(id) {
            if client.is_external() {
                io.close(PeerId::Client(id));
            }
            self.handle_client_disconnect(id, io);
        }
    }
}

/// The byte that pads an unfinished message. It is not zero, so that it cannot terminate a string
/// within the message.
const PADDING: u8 = 1;

fn write_copy_fail(buf: &mut Vec<u8>) {
    frontend::encode::copy_fail(buf, b"client disconnected").expect("the text has no zero byte");
}

/// Ends a batch whose client disconnected before its Sync. PostgreSQL would not commit such a
/// batch, so a ROLLBACK precedes the Sync that would commit it.
fn abort_batch(server: &mut ServerConnection, to: &mut GatherBuffer) {
    if !std::mem::take(&mut server.is_skipping) {
        // An Execute without a reply yet may be a COPY, which a message other than CopyFail would
        // violate. Outside COPY, the server ignores CopyFail.
        if !server.outstanding.is_empty() {
            server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::CopyEnd);
            to.push_with(write_copy_fail);
        }
        for request in [RequestKind::Parse(None), RequestKind::Bind(0), RequestKind::Execute] {
            server.outstanding.push_for(ReplyTarget::Pooler, request);
        }
        to.push_with(|buf| {
            parse(buf, b"", b"ROLLBACK", &[]).expect("the text has no zero byte");
            bind(buf, b"", b"", &[], [], &[]).expect("the text has no zero byte");
            execute(buf, b"", 0).expect("the text has no zero byte");
        });
    }
    server.has_open_batch = false;
    server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::Sync);
    to.push_with(sync);
}

/// Returns the pool's reset query, which runs before another client gets the server; `None` if
/// there is none or it is empty.
fn reset_query(pool: &PoolState) -> Option<Vec<u8>> {
    let query = &pool.spec.reset.as_ref()?.query;
    (!query.is_empty()).then(|| query.to_vec())
}
