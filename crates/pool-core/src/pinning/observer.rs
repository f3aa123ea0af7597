//! [`StatementObserver`]: recognizes what statements may leave in a session, before they are sent.

use howdah_sql::{SessionEffects, StateKinds, may_hide_ascii};

use crate::{
    pinning::{
        effects_cache::SessionEffectsCache,
        pin::{StableFunctions, is_listed},
    },
    spec::PinningSpec,
    state::server::ServerConnection,
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

impl StatementObserver<'_> {
    /// Records which session state a statement that is about to be sent may leave or remove; `None`
    /// stands for an unknown statement.
    pub(crate) fn observe(&mut self, server: &mut ServerConnection, sql: Option<&[u8]>) {
        if let Some(pin) = &mut server.pin {
            pin.retry();
        }
        let effects = match sql.filter(|sql| is_read_alike(server, sql)) {
            Some(sql) => match self.effects.effects(sql) {
                Some(effects) => effects,
                None => return,
            },
            None => SessionEffects::unknown().into(),
        };
        let Self { stable_functions, spec, follows, now, .. } = self;
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
    (is_conforming || memchr::memchr(b'\\', sql).is_none())
        && (sql.is_ascii() || !may_hide_ascii(value(b"client_encoding")))
}
