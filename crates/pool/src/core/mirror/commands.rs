//! What a client sent that the pooler answered itself.

use howdah_route::Command;
use howdah_wire::{Frame, Frontend};

use crate::{prepared::ClientStatements, statements::sql_of};

/// What a client sent without what the pooler answered: its own commands, and batches of them.
pub(super) fn without(bytes: Vec<u8>, known: &ClientStatements) -> Vec<u8> {
    let is_command = |sql: &[u8]| Command::read(sql).is_some();
    let is_of_command = |kind: Option<Frontend>, body: &[u8]| match kind {
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
        if kind == Some(Frontend::Query) && is_command(sql_of(body)) {
            has_any = true;
            continue;
        }
        is_own |= is_of_command(kind, body);
        kept.extend_from_slice(whole);
        match kind {
            Some(Frontend::Query | Frontend::Sync | Frontend::FunctionCall) => {
                if std::mem::take(&mut is_own) {
                    kept.truncate(batch);
                    has_any = true;
                }
                batch = kept.len();
            }
            // Rows of a COPY belong to the string or batch that is over.
            Some(Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail) if !is_own => {
                batch = kept.len();
            }
            _ => {}
        }
    }
    if has_any { kept } else { bytes }
}

pub(super) fn behind_zero(body: &[u8]) -> &[u8] {
    memchr::memchr(0, body).map_or(&[], |end| &body[end + 1..])
}

#[cfg(test)]
mod tests {
    use howdah_wire::frontend::encode;

    use super::*;

    #[test]
    fn what_stands_before_and_behind_a_command_is_kept() {
        let query = |sql: &[u8]| {
            let mut buf = Vec::new();
            encode::query(&mut buf, sql).unwrap();
            buf
        };
        let mut rows = Vec::new();
        encode::copy_data(&mut rows, b"1").unwrap();
        encode::copy_done(&mut rows);
        let mut command = Vec::new();
        encode::parse(&mut command, b"", b"set shard to '1'", &[]).unwrap();
        encode::execute(&mut command, b"", 0).unwrap();
        encode::sync(&mut command);
        let kept = [query(b"copy t from stdin"), rows, query(b"select 1")];
        let [copy, rows, select] = &kept;
        for said in [
            [copy, rows, &query(b"show shard"), select],
            [copy, rows, &command, select],
            [&query(b"set server role to 'any';"), copy, rows, select],
            [copy, rows, select, &query(b"show primary reads")],
        ] {
            let bytes = said.into_iter().flatten().copied().collect();
            let left = without(bytes, &ClientStatements::default());
            assert!(left == kept.concat(), "{}", left.escape_ascii());
        }
        let bytes = kept.concat();
        assert_eq!(without(bytes.clone(), &ClientStatements::default()), bytes);
    }
}
