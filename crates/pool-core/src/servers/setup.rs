//! Prepares a server for its next client: sets parameters when it is linked, and resets session
//! state after it is released.

use std::sync::Arc;

use howdah_wire::{
    ValueFormat,
    frontend::{
        DescribeTarget,
        encode::{bind, close, execute, flush, parse, sync},
    },
};

use crate::{
    listen::channels as listen,
    messages::{
        gather_buffer::GatherBuffer,
        outstanding::{ReplyTarget, RequestKind},
    },
    prepared::parse_settings,
    session::{
        parameter::SessionParameter,
        parameters::MissingParameter,
        restore::ResettingPortal,
        state::{SessionStateFlags, SetKind},
    },
    state::{
        client::{ClientConnection, InputHold},
        server::ServerConnection,
    },
};

/// Name of a server's prepared statement that sets one parameter.
const SET_STATEMENT: &[u8] = b"howdah_set";
const SET_SQL: &[u8] = b"SELECT pg_catalog.set_config($1, $2, false)";
/// Name of the prepared statement, and portal, that sets one parameter within a client's batch,
/// either for the session or until the end of the transaction.
const RESTORE_STATEMENT: &[u8] = b"howdah_restore";
const RESTORE_SQL: &[u8] = b"SELECT pg_catalog.set_config($1, $2, $3)";
/// Name of the prepared statement, and portal, that reads the parse settings.
const READ_STATEMENT: &[u8] = b"howdah_parse_settings";
/// Name of the prepared statement, and portal, that listens to a marker channel.
const LISTEN_STATEMENT: &[u8] = b"howdah_listen";
/// Type OIDs of the statements' parameters, from `pg_type`.
const TEXT_OID: u32 = 25;
const BOOL_OID: u32 = 16;

/// Queues the statements that set a client's parameters, as a separate batch before any message of
/// the client. Returns whether the client's messages may follow at once. They must wait if no
/// server is known to have accepted these values.
pub(crate) fn apply_parameters(
    client: &mut ClientConnection,
    server: &mut ServerConnection,
    to: &mut GatherBuffer,
) -> bool {
    let applied = server.parameters.applied.as_ref();
    if applied.is_some_and(|applied| Arc::ptr_eq(applied, &client.parameters)) {
        return true;
    }
    let missing = server.parameters.missing(&client.parameters);
    if missing.is_empty() {
        server.parameters.mark_applied(Arc::clone(&client.parameters));
        return true;
    }
    set_parameters(server, &missing, ReplyTarget::Parameters, to);
    server.parameters.mark_sent(&missing, &client.parameters);
    server.outstanding.push_for(ReplyTarget::Parameters, RequestKind::Sync);
    if client.parameters.is_accepted() {
        return true;
    }
    client.input_hold = InputHold::ApplyingParameters;
    false
}

/// Queues a BEGIN to which the pooler has already replied.
pub(crate) fn send_deferred_begin(
    server: &mut ServerConnection,
    query: &[u8],
    to: &mut GatherBuffer,
) {
    server.outstanding.push_for(ReplyTarget::Begin, RequestKind::Query(SetKind::NeedsReset));
    let sql = query.strip_suffix(b"\0").unwrap_or(query);
    to.push_with(|buf| {
        howdah_wire::frontend::encode::query(buf, sql)
            .expect("a string on the wire has no zero byte");
    });
}

/// Queues the statements that set parameters, then a Sync. The caller must add the Sync to the
/// outstanding requests.
pub(crate) fn set_parameters(
    server: &mut ServerConnection,
    missing: &[MissingParameter],
    target: ReplyTarget,
    to: &mut GatherBuffer,
) {
    let owed = &mut server.outstanding;
    to.push_with(|buf| {
        if !server.parameters.is_setter_prepared {
            owed.push_for(target, RequestKind::Parse(None));
            parse(buf, SET_STATEMENT, SET_SQL, &[TEXT_OID, TEXT_OID]).expect(NO_ZERO_BYTE);
        }
        for MissingParameter { name, value } in missing {
            owed.push_for(target, RequestKind::Bind(0));
            owed.push_for(target, RequestKind::Execute);
            let values = [Some(&name[..]), value.as_deref()];
            bind(buf, b"", SET_STATEMENT, &[ValueFormat::Text], values, &[]).expect(NO_ZERO_BYTE);
            execute(buf, b"", 0).expect(NO_ZERO_BYTE);
        }
        sync(buf);
    });
}

/// Queues the statements that restore a client's startup values, within the batch that has reset
/// them. Statement and portal are prepared anew each time, because the server may execute only part
/// of the batch.
pub(crate) fn restore_in_batch(
    server: &mut ServerConnection,
    resetting: &ResettingPortal,
    to: &mut GatherBuffer,
) {
    set_in_open_batch(server, ReplyTarget::Pooler, &resetting.parameters, resetting.is_local, to);
}

/// Queues the statements that change parse settings until the end of the transaction, within the
/// open batch.
pub(crate) fn set_parse_settings(
    server: &mut ServerConnection,
    settings: &[SessionParameter],
    to: &mut GatherBuffer,
) {
    set_in_open_batch(server, ReplyTarget::ParseSettings, settings, true, to);
}

fn set_in_open_batch(
    server: &mut ServerConnection,
    target: ReplyTarget,
    settings: &[SessionParameter],
    is_local: bool,
    to: &mut GatherBuffer,
) {
    let mut push = |request| server.outstanding.push_for(target, request);
    to.push_with(|buf| {
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Statement(RESTORE_STATEMENT)).expect(NO_ZERO_BYTE);
        push(RequestKind::Parse(None));
        parse(buf, RESTORE_STATEMENT, RESTORE_SQL, &[TEXT_OID, TEXT_OID, BOOL_OID])
            .expect(NO_ZERO_BYTE);
        for SessionParameter { name, value } in settings {
            let is_local = if is_local { b"t" } else { b"f" };
            let values = [Some(&name[..]), Some(&value[..]), Some(&is_local[..])];
            push(RequestKind::Bind(0));
            bind(buf, RESTORE_STATEMENT, RESTORE_STATEMENT, &[ValueFormat::Text], values, &[])
                .expect(NO_ZERO_BYTE);
            push(RequestKind::Execute);
            execute(buf, RESTORE_STATEMENT, 0).expect(NO_ZERO_BYTE);
            push(RequestKind::Close(None));
            close(buf, DescribeTarget::Portal(RESTORE_STATEMENT)).expect(NO_ZERO_BYTE);
        }
    });
}

/// Queues the query for the current parse settings: in the open batch, followed by a Flush, or in a
/// separate batch if none is open.
pub(crate) fn query_parse_settings(server: &mut ServerConnection, to: &mut GatherBuffer) {
    let is_own = !server.batch.is_open;
    server.parameters.parse_state.is_querying = true;
    let mut push = |request| server.outstanding.push_for(ReplyTarget::ParseSettings, request);
    to.push_with(|buf| {
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Statement(READ_STATEMENT)).expect(NO_ZERO_BYTE);
        push(RequestKind::Parse(None));
        parse(buf, READ_STATEMENT, parse_settings::query().as_bytes(), &[]).expect(NO_ZERO_BYTE);
        push(RequestKind::Bind(0));
        bind(buf, READ_STATEMENT, READ_STATEMENT, &[], [], &[ValueFormat::Text])
            .expect(NO_ZERO_BYTE);
        push(RequestKind::Execute);
        execute(buf, READ_STATEMENT, 0).expect(NO_ZERO_BYTE);
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Portal(READ_STATEMENT)).expect(NO_ZERO_BYTE);
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Statement(READ_STATEMENT)).expect(NO_ZERO_BYTE);
        if is_own {
            push(RequestKind::Sync);
            sync(buf);
        } else {
            flush(buf);
        }
    });
}

/// Queues a LISTEN to the marker channel of the statement with this number, within the client's
/// batch.
pub(crate) fn mark_listen_in_batch(
    server: &mut ServerConnection,
    number: u32,
    to: &mut GatherBuffer,
) {
    let mut push = |request| server.outstanding.push_for(ReplyTarget::Pooler, request);
    let sql = format!("LISTEN \"{}\"", listen::marker_channel(number));
    to.push_with(|buf| {
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Statement(LISTEN_STATEMENT)).expect(NO_ZERO_BYTE);
        push(RequestKind::Parse(None));
        parse(buf, LISTEN_STATEMENT, sql.as_bytes(), &[]).expect(NO_ZERO_BYTE);
        push(RequestKind::Bind(0));
        bind(buf, LISTEN_STATEMENT, LISTEN_STATEMENT, &[], [], &[]).expect(NO_ZERO_BYTE);
        push(RequestKind::Execute);
        execute(buf, LISTEN_STATEMENT, 0).expect(NO_ZERO_BYTE);
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Portal(LISTEN_STATEMENT)).expect(NO_ZERO_BYTE);
        push(RequestKind::Close(None));
        close(buf, DescribeTarget::Statement(LISTEN_STATEMENT)).expect(NO_ZERO_BYTE);
    });
}

/// The reason why encoding cannot fail: names come from startup packets, servers or the pooler
/// itself, and values are length-prefixed.
const NO_ZERO_BYTE: &str = "names have no zero byte, and values are short";

/// Returns the query string that resets the changed session state, and records that state as reset.
/// If the query fails, the server is closed.
pub(crate) fn take_reset_query(server: &mut ServerConnection) -> Vec<u8> {
    let flags = std::mem::take(&mut server.session_state);
    if flags.has(SessionStateFlags::SETTINGS) {
        server.parameters.handle_reset();
    }
    if flags.has(SessionStateFlags::PREPARED) {
        server.statements.clear();
        server.parameters.is_setter_prepared = false;
    }
    flags.reset()
}
