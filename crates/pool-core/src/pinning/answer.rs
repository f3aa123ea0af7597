//! Reads the server's answer to the question for session state.

use howdah_wire::{Backend, Frame, backend::BackendMessage};

use crate::{
    pinning::{
        check_query::StateRow,
        pin::{CheckResult, StableFunctions},
    },
    session::{parameter::SessionParameter, parameters::ParameterSets},
    state::{client::ClientConnection, server::ServerConnection},
    time::Time,
};

/// Reads a DataRow of the answer.
pub(crate) fn read_row(server: &mut ServerConnection, body: &[u8]) {
    let frame = Frame { tag: Backend::DataRow.tag(), body };
    if let Ok(BackendMessage::DataRow(cells)) = BackendMessage::parse(frame)
        && let Some(row) = StateRow::from_cells(cells)
        && let Some(pin) = &mut server.pin
    {
        pin.record_row(row);
    }
}

/// Handles the end of the answer: the settings follow the client from now on.
pub(crate) fn apply(
    server: &mut ServerConnection,
    client: Option<&mut ClientConnection>,
    sets: &mut ParameterSets,
    functions: &mut StableFunctions,
    now: Time,
) {
    let Some(result) = server.pin.as_mut().and_then(|pin| pin.finish_check()) else { return };
    let CheckResult { settings, has_all_settings, stable_functions } = result;
    functions.extend(stable_functions, now);
    let Some(client) = client else { return };
    let parameters = &mut server.parameters;
    let is_asked = |name: &[u8]| settings.iter().any(|it| it.name.eq_ignore_ascii_case(name));
    let stays = |it: &&SessionParameter| {
        parameters.reports(&it.name) || !has_all_settings && !is_asked(&it.name)
    };
    let follows = |it: &&SessionParameter| {
        !(parameters.reports(&it.name) || *it.name == *b"role" && *it.value == *b"none")
    };
    let stay = client.parameters.list().iter().filter(stays);
    let set = sets.intern(stay.chain(settings.iter().filter(follows)).cloned());
    set.mark_accepted();
    parameters.mark_unreported(&set);
    client.parameters = set;
}
