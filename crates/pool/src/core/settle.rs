//! Making a server what its next client is to find: settings before a link, a reset after one.

use std::sync::Arc;

use howdah_wire::{
    Format,
    frontend::{
        Target,
        encode::{bind, close, execute, flush, parse, sync},
    },
};

use crate::{
    client::{Client, Syncing},
    dirt::{SessionStateFlags, SetKind},
    gather::Gather,
    listen,
    owed::{ReplyTarget, Request},
    parse_settings,
    put_back::ResettingPortal,
    server::Server,
    settings::{Missing, Setting},
};

/// Name on a server of the statement that sets a setting.
const SETTER: &[u8] = b"howdah_set";
const SETTER_SQL: &[u8] = b"SELECT pg_catalog.set_config($1, $2, false)";
/// The same in the middle of a client's batch.
const RESETTER: &[u8] = b"howdah_put_back";
const RESETTER_SQL: &[u8] = b"SELECT pg_catalog.set_config($1, $2, $3)";
/// The same for what reads the settings that matter to parsing.
const READER: &[u8] = b"howdah_parse_settings";
/// What listens to the channel that stands for a statement.
const LISTENER: &[u8] = b"howdah_listen";
/// OIDs of `text` and `bool`.
const TEXT: u32 = 25;
const BOOL: u32 = 16;

/// Queues what sets the settings that a client is to find, in a batch of its own before anything of
/// the client's. Gives whether the client's messages may follow at once: settings that no server has
/// accepted yet have to be accepted first.
pub(super) fn sync_settings(client: &mut Client, server: &mut Server, to: &mut Gather) -> bool {
    let fulfilled = server.settings.fulfils.as_ref();
    if fulfilled.is_some_and(|fulfilled| Arc::ptr_eq(fulfilled, &client.wishes)) {
        return true;
    }
    let missing = server.settings.missing(&client.wishes);
    if missing.is_empty() {
        server.settings.fulfil(Arc::clone(&client.wishes));
        return true;
    }
    set(server, &missing, ReplyTarget::Settings, to);
    server.settings.sends(&missing, &client.wishes);
    server.owed.push_for(ReplyTarget::Settings, Request::Sync);
    if client.wishes.are_proven() {
        return true;
    }
    client.syncing = Syncing::Waiting;
    false
}

/// Queues a BEGIN that its client has been answered already.
pub(super) fn begin(server: &mut Server, query: &[u8], to: &mut Gather) {
    server.owed.push_for(ReplyTarget::Begin, Request::Query(SetKind::Lasting));
    let sql = query.strip_suffix(b"\0").unwrap_or(query);
    to.make(|buf| {
        howdah_wire::frontend::encode::query(buf, sql)
            .expect("a text on the wire has no zero byte");
    });
}

/// Queues what sets settings, with a Sync behind it whose entry is for the caller to queue.
pub(super) fn set(
    server: &mut Server,
    missing: &[Missing],
    audience: ReplyTarget,
    to: &mut Gather,
) {
    let owed = &mut server.owed;
    to.make(|buf| {
        if !server.settings.setter_prepared {
            owed.push_for(audience, Request::Parse(None));
            parse(buf, SETTER, SETTER_SQL, &[TEXT, TEXT]).expect(NO_ZERO_BYTE);
        }
        for Missing { name, value } in missing {
            owed.push_for(audience, Request::Bind(0));
            owed.push_for(audience, Request::Execute);
            let values = [Some(&name[..]), value.as_deref()];
            bind(buf, b"", SETTER, &[Format::Text], values, &[]).expect(NO_ZERO_BYTE);
            execute(buf, b"", 0).expect(NO_ZERO_BYTE);
        }
        sync(buf);
    });
}

/// Queues what sets the settings that a client began with, in the middle of a batch that has put them
/// back. Statement and portal are for this once: nobody knows yet what of the batch will be done.
pub(super) fn set_in_batch(server: &mut Server, noted: &ResettingPortal, to: &mut Gather) {
    set_each(server, ReplyTarget::Pooler, &noted.back, noted.is_local, to);
}

/// Queues what sets settings that matter to parsing, until the transaction ends, in the middle of a batch.
pub(super) fn set_to_parse(server: &mut Server, settings: &[Setting], to: &mut Gather) {
    set_each(server, ReplyTarget::ParseSettings, settings, true, to);
}

fn set_each(
    server: &mut Server,
    audience: ReplyTarget,
    settings: &[Setting],
    is_local: bool,
    to: &mut Gather,
) {
    let mut ask = |request| server.owed.push_for(audience, request);
    to.make(|buf| {
        ask(Request::Close(None));
        close(buf, Target::Statement(RESETTER)).expect(NO_ZERO_BYTE);
        ask(Request::Parse(None));
        parse(buf, RESETTER, RESETTER_SQL, &[TEXT, TEXT, BOOL]).expect(NO_ZERO_BYTE);
        for Setting { name, value } in settings {
            let is_local = if is_local { b"t" } else { b"f" };
            let values = [Some(&name[..]), Some(&value[..]), Some(&is_local[..])];
            ask(Request::Bind(0));
            bind(buf, RESETTER, RESETTER, &[Format::Text], values, &[]).expect(NO_ZERO_BYTE);
            ask(Request::Execute);
            execute(buf, RESETTER, 0).expect(NO_ZERO_BYTE);
            ask(Request::Close(None));
            close(buf, Target::Portal(RESETTER)).expect(NO_ZERO_BYTE);
        }
    });
}

/// Queues the query for the settings in force that matter to parsing: in the batch that is open or, if there
/// is none, in one of its own.
pub(super) fn query_parse_settings(server: &mut Server, to: &mut Gather) {
    let is_own = !server.batch_open;
    server.settings.parsing.awaits_answer = true;
    let mut ask = |request| server.owed.push_for(ReplyTarget::ParseSettings, request);
    to.make(|buf| {
        ask(Request::Close(None));
        close(buf, Target::Statement(READER)).expect(NO_ZERO_BYTE);
        ask(Request::Parse(None));
        parse(buf, READER, parse_settings::query().as_bytes(), &[]).expect(NO_ZERO_BYTE);
        ask(Request::Bind(0));
        bind(buf, READER, READER, &[], [], &[Format::Text]).expect(NO_ZERO_BYTE);
        ask(Request::Execute);
        execute(buf, READER, 0).expect(NO_ZERO_BYTE);
        ask(Request::Close(None));
        close(buf, Target::Portal(READER)).expect(NO_ZERO_BYTE);
        ask(Request::Close(None));
        close(buf, Target::Statement(READER)).expect(NO_ZERO_BYTE);
        if is_own {
            ask(Request::Sync);
            sync(buf);
        } else {
            flush(buf);
        }
    });
}

/// Queues a LISTEN to the channel that stands for a statement, in the client's batch.
pub(super) fn listen_in_batch(server: &mut Server, number: u32, to: &mut Gather) {
    let mut ask = |request| server.owed.push_for(ReplyTarget::Pooler, request);
    let sql = format!("LISTEN \"{}\"", listen::token(number));
    to.make(|buf| {
        ask(Request::Close(None));
        close(buf, Target::Statement(LISTENER)).expect(NO_ZERO_BYTE);
        ask(Request::Parse(None));
        parse(buf, LISTENER, sql.as_bytes(), &[]).expect(NO_ZERO_BYTE);
        ask(Request::Bind(0));
        bind(buf, LISTENER, LISTENER, &[], [], &[]).expect(NO_ZERO_BYTE);
        ask(Request::Execute);
        execute(buf, LISTENER, 0).expect(NO_ZERO_BYTE);
        ask(Request::Close(None));
        close(buf, Target::Portal(LISTENER)).expect(NO_ZERO_BYTE);
        ask(Request::Close(None));
        close(buf, Target::Statement(LISTENER)).expect(NO_ZERO_BYTE);
    });
}

/// Names are the pooler's own, and values may hold any byte.
const NO_ZERO_BYTE: &str = "no name holds a zero byte, and the values are short";

/// The query string that undoes what was left behind. It counts as done: if it fails, the server is
/// closed.
pub(super) fn begin_reset(server: &mut Server) -> Vec<u8> {
    let dirt = std::mem::take(&mut server.dirt);
    if dirt.has(SessionStateFlags::SETTINGS) {
        server.settings.was_reset();
    }
    if dirt.has(SessionStateFlags::PREPARED) {
        server.statements.clear();
        server.settings.setter_prepared = false;
    }
    dirt.reset()
}
