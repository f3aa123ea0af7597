//! Adaptive pooling: a client gives its server back after each transaction, as in transaction mode,
//! unless its session has state that cannot follow it to another server.
//!
//! PostgreSQL's grammar tells what a statement may leave in its session ([`effects_cache`]). If a
//! transaction may have left or removed state, the pooler asks the server before it releases it
//! ([`check_query`]): the answer counts, whatever was rolled back. Settings then follow the client,
//! as those that servers report do; with any other state the client is pinned to its server until
//! the state is gone ([`pin`]).
//!
//! ```text
//! transaction over ──► state suspected? ──no──► pinned? ──no──► release
//!                          │ yes                  │ yes
//!                          ▼                      ▼
//!                     ask the server ──► settings follow; pin or unpin ──► as above
//! ```
//!
//! The client does not wait for the answer: a request that arrives meanwhile goes to the same
//! server, after the question.

pub(crate) mod check_query;
pub(crate) mod effects_cache;
pub(crate) mod pin;

use howdah_sql::{SessionEffects, StateKinds};
use howdah_wire::{Backend, Frame, Frontend, backend::BackendMessage, frontend};

use crate::{
    call::CoreCall,
    clients::leaving,
    messages::{
        handling::PartialMessage,
        linked_pair::LinkedPair,
        outstanding::{ReplyTarget, RequestKind},
        reply::{ReplyAction, ReplyHandler},
    },
    peers::Peers,
    pinning::{
        check_query::StateRow,
        effects_cache::SessionEffectsCache,
        pin::{CheckResult, StableFunctions, is_listed},
    },
    pools::Pools,
    prepared::statements::sql_text,
    refusal::ClientRefusal,
    session::{
        parameter::SessionParameter,
        state::{SessionStateFlags, SetKind},
    },
    spec::PinningSpec,
    state::{
        ids::ServerId,
        limits::Permits,
        pool_stats::PoolStats,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// Recognizes the effects of a client's statements on its session.
pub(crate) struct StatementObserver<'a> {
    pub(crate) effects: &'a mut SessionEffectsCache,
    pub(crate) stable_functions: &'a mut StableFunctions,
    pub(crate) spec: &'a PinningSpec,
    /// State that follows the client in another way.
    pub(crate) follows: StateKinds,
    pub(crate) now: Time,
}

impl LinkedPair<'_> {
    /// Records which session state a statement that is about to be sent may leave or remove.
    #[inline]
    pub(crate) fn observe(&mut self, sql: &[u8]) {
        if self.observer.is_some() {
            self.observe_text(Some(sql));
        }
    }

    /// Like [`LinkedPair::observe`], for a message of which only the start may be known.
    pub(crate) fn observe_message(&mut self, message: PartialMessage<'_>) {
        match message.body.strip_suffix(b"\0").filter(|_| message.is_complete()) {
            Some(sql) => self.observe(sql),
            None => self.observe_unknown(),
        }
    }

    /// Like [`LinkedPair::observe`], for a message of the extended protocol if statement names are
    /// not rewritten: it is not known which statement a name means.
    pub(crate) fn observe_unrenamed(&mut self, kind: Frontend, message: PartialMessage<'_>) {
        let text = |(_, at): (&[u8], usize)| sql_text(message.body.get(at..).unwrap_or_default());
        match kind {
            Frontend::Parse if message.is_complete() => match message.string(0).map(text) {
                Some(sql) => self.observe(sql),
                None => self.observe_unknown(),
            },
            Frontend::Parse | Frontend::Bind => self.observe_unknown(),
            _ => {}
        }
    }

    /// Like [`LinkedPair::observe`], for a request whose statement is unknown.
    pub(crate) fn observe_unknown(&mut self) {
        if self.observer.is_some() {
            self.observe_text(None);
        }
    }

    fn observe_text(&mut self, sql: Option<&[u8]>) {
        let Some(observer) = &mut self.observer else { return };
        let server = &mut *self.server;
        if let Some(pin) = &mut server.pin {
            pin.retry();
        }
        let effects = match sql.filter(|sql| is_read_alike(server, sql)) {
            Some(sql) => match observer.effects.effects(sql) {
                Some(effects) => effects,
                None => return,
            },
            None => SessionEffects::unknown().into(),
        };
        let StatementObserver { stable_functions, spec, follows, now, .. } = observer;
        let parameters = &server.parameters;
        server.pin.get_or_insert_default().suspect(
            &effects,
            *follows,
            |name| parameters.reports(name.as_bytes()),
            |name| {
                is_listed(&spec.stateless_functions, name) || stable_functions.contains(name, *now)
            },
        );
    }
}

/// Whether the analysis finds the same tokens in a text as the server does.
fn is_read_alike(server: &ServerConnection, sql: &[u8]) -> bool {
    let value = |name: &[u8]| server.parameters.value(name).unwrap_or_default();
    let is_conforming = value(b"standard_conforming_strings") != b"off";
    // The encodings whose multi-byte characters may contain ASCII bytes.
    const UNSAFE: [&[u8]; 7] =
        [b"BIG5", b"GB18030", b"GBK", b"JOHAB", b"SHIFT_JIS_2004", b"SJIS", b"UHC"];
    (is_conforming || memchr::memchr(b'\\', sql).is_none())
        && (sql.is_ascii() || !UNSAFE.contains(&value(b"client_encoding")))
}

/// Whether the client of a linked server that has answered everything can leave it. Asks the server
/// first if its session may have other state than the last time; the answer calls this again.
pub(crate) fn may_release(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) -> bool {
    let Some(server) = peers.servers.get_mut(id) else { return false };
    let spec = &pools.pool(server.pool).spec;
    let is_listening = spec.listen_bytes.is_some();
    let has_connect_query = spec.connect_query.is_some();
    // The answer replaces what command tags and keywords may have told, but for LISTEN statements
    // that could not be tracked, and for the effect of the connect query.
    let not_answered = |flags: SessionStateFlags| match () {
        () if has_connect_query => flags,
        () if is_listening => flags.only(SessionStateFlags::LISTEN),
        () => SessionStateFlags::NONE,
    };
    let Some(pin) = &mut server.pin else {
        // The effects of every statement are known, and there are none.
        server.session_state = not_answered(server.session_state);
        return true;
    };
    let ServerState::Linked(client_id) = server.state else { return false };
    let Some(client) = peers.clients.get_mut(client_id) else { return false };
    if pin.has_suspicion() && !pin.gave_up() {
        let reports = |it: &&SessionParameter| !server.parameters.reports(&it.name);
        let followed: Vec<&SessionParameter> =
            client.parameters.list().iter().filter(reports).collect();
        if let Some(query) = pin.start_check(&followed, server.parameters.has_other_user()) {
            server
                .outstanding
                .push_for(ReplyTarget::SessionState, RequestKind::Query(SetKind::NotSet));
            // A query string drops the unnamed statement.
            server.statements.unnamed_is_ours = false;
            peers.to_server.push_with(|buf| {
                frontend::encode::query(buf, query.as_bytes()).expect("no name has a zero byte");
            });
            peers.flush_server(id, &[], call);
            return false;
        }
    }
    let pool = pools.pool(server.pool);
    if !pin.is_pinned() {
        if let Some(since) = pin.clear_pinned() {
            pool.stats.pinned_time.add(since, call.now);
        }
        if pin.is_clear() {
            server.pin = None;
        }
        server.session_state = not_answered(server.session_state);
        return true;
    }
    if !pin.has_permit() {
        let Some(permits) = Permits::try_acquire(&pool.spec.pinning.limits) else {
            let reasons = pin.reasons();
            let refusal = ClientRefusal::TooManyPinned { reasons };
            leaving::refuse(peers, pools, call, client_id, &refusal);
            return false;
        };
        pool.stats.pins += 1;
        pin.set_pinned(call.now, permits);
    }
    false
}

/// Ends the pin of a server that its client leaves, and counts its time. Returns whether the
/// session may have state that a reset does not remove.
pub(crate) fn end(server: &mut ServerConnection, stats: &mut PoolStats, now: Time) -> bool {
    let Some(mut pin) = server.pin.take() else { return false };
    if let Some(since) = pin.clear_pinned() {
        stats.pinned_time.add(since, now);
    }
    if pin.needs_reset() {
        server.session_state = SessionStateFlags::UNKNOWN;
    }
    pin.needs_close()
}

impl ReplyHandler<'_> {
    /// Handles a DataRow of the reply to the question about session state.
    pub(crate) fn read_session_state(&mut self, body: &[u8]) {
        let frame = Frame { tag: Backend::DataRow.tag(), body };
        if let Ok(BackendMessage::DataRow(cells)) = BackendMessage::parse(frame)
            && let Some(row) = StateRow::from_cells(cells)
            && let Some(pin) = &mut self.server.pin
        {
            pin.record_row(row);
        }
    }

    /// Handles an error of the question, which is asked again.
    pub(crate) fn session_state_failed(&mut self) -> ReplyAction {
        if let Some(pin) = &mut self.server.pin {
            pin.check_failed();
        }
        ReplyAction::Swallow
    }

    /// Handles the end of the reply to the question: the settings follow the client from now on.
    pub(crate) fn apply_session_state(&mut self) {
        let Some(result) = self.server.pin.as_mut().and_then(|pin| pin.finish_check()) else {
            return;
        };
        let CheckResult { settings, has_all_settings, stable_functions } = result;
        self.stable_functions.extend(stable_functions, self.now);
        let Some(client) = self.client.as_deref_mut() else { return };
        let parameters = &mut self.server.parameters;
        let is_asked = |name: &[u8]| settings.iter().any(|it| it.name.eq_ignore_ascii_case(name));
        let stays = |it: &&SessionParameter| {
            parameters.reports(&it.name) || !has_all_settings && !is_asked(&it.name)
        };
        let follows = |it: &&SessionParameter| {
            !(parameters.reports(&it.name) || *it.name == *b"role" && *it.value == *b"none")
        };
        let stay = client.parameters.list().iter().filter(stays);
        let set = self.parameter_sets.intern(stay.chain(settings.iter().filter(follows)).cloned());
        set.mark_accepted();
        parameters.mark_unreported(&set);
        client.parameters = set;
    }
}
