//! What a client sent that the pooler answered itself.

use howdah_route::Command;
use howdah_wire::{Frame, Frontend};

use crate::{prepared::ClientStatements, statements::sql_of};

/// What a client sent without what the pooler answered: its own commands, and batches of them.
pub(super) fn without(bytes: Vec<u8>, known: &ClientStatements) -> Vec<u8> {
    let is_command = |sql: &[u8]| Command::read(sql).is_some();
    let is_of_command = |kind: Option<Frontend>, body: &[u8]| match kind {
        Some(Frontend::Query) => is_command(sql_of(body)),
        Some(Frontend::Parse) => is_command(sql_of(behind_zero(body))),
        Some(Frontend::Bind) => {
            let statement = sql_of(behind_zero(body));
            known.named.get(statement).is_some_and(|it| is_command(sql_of(&it.text)))
        }
        _ => false,
    };
    let (mut kept, mut has_any) = (Vec::new(), false);
    let (mut rest, mut batch, mut is_own) = (&bytes[..], 0, false);
    while let Ok(Some((Frame { tag, body }, behind))) = Frame::split(rest, u32::MAX) {
        let whole = &rest[..rest.len() - behind.len()];
        rest = behind;
        let kind = Frontend::from_tag(tag);
        is_own |= is_of_command(kind, body);
        kept.extend_from_slice(whole);
        if matches!(kind, Some(Frontend::Query | Frontend::Sync | Frontend::FunctionCall)) {
            if std::mem::take(&mut is_own) {
                kept.truncate(batch);
                has_any = true;
            }
            batch = kept.len();
        }
    }
    if has_any { kept } else { bytes }
}

pub(super) fn behind_zero(body: &[u8]) -> &[u8] {
    memchr::memchr(0, body).map_or(&[], |end| &body[end + 1..])
}
