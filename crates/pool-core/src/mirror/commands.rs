//! Removes the pooler's own commands from mirrored traffic.

use howdah_route::RouteCommand;
use howdah_wire::{Frame, Frontend};

use crate::prepared::{names::ClientStatements, statements::sql_text};

/// A Query message without a statement, which drops the unnamed prepared statement like any other.
const EMPTY_QUERY: &[u8] = b"Q\0\0\0\x05\0";

/// Removes from a client's bytes the query strings that are the pooler's own commands, and the
/// batches that contain such commands. A query string that drops the client's unnamed statement is
/// replaced by an empty one.
pub(super) fn strip_commands(bytes: Vec<u8>, known: &ClientStatements) -> Vec<u8> {
    let is_command = |sql: &[u8]| RouteCommand::read(sql).is_some();
    let is_of_command = |kind: Option<Frontend>, body: &[u8]| match kind {
        Some(Frontend::Parse) => is_command(sql_text(after_first_string(body))),
        Some(Frontend::Bind) => {
            let statement = sql_text(after_first_string(body));
            known.named.get(statement).is_some_and(|it| is_command(sql_text(&it.text)))
        }
        _ => false,
    };
    let (mut kept, mut has_any) = (Vec::new(), false);
    let (mut rest, mut batch, mut is_own) = (&bytes[..], 0, false);
    let mut has_unnamed = false;
    while let Ok(Some((Frame { tag, body }, later))) = Frame::split(rest, u32::MAX) {
        let whole = &rest[..rest.len() - later.len()];
        rest = later;
        let kind = Frontend::from_tag(tag);
        if kind == Some(Frontend::Query) && is_command(sql_text(body)) {
            has_any = true;
            if std::mem::take(&mut has_unnamed) {
                kept.extend_from_slice(EMPTY_QUERY);
                batch = kept.len();
            }
            continue;
        }
        match kind {
            Some(Frontend::Parse) => has_unnamed |= body.first() == Some(&0),
            Some(Frontend::Query) => has_unnamed = false,
            _ => {}
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
            // COPY data belongs to the preceding query string or batch, so a later removal must not
            // include it.
            Some(Frontend::CopyData | Frontend::CopyDone | Frontend::CopyFail) if !is_own => {
                batch = kept.len();
            }
            _ => {}
        }
    }
    if has_any { kept } else { bytes }
}

pub(super) fn after_first_string(body: &[u8]) -> &[u8] {
    memchr::memchr(0, body).map_or(&[], |end| &body[end + 1..])
}

#[cfg(test)]
mod tests {
    use howdah_wire::frontend::encode;

    use super::*;

    #[test]
    fn command_drops_unnamed_statement() {
        let mut bytes = Vec::new();
        encode::parse(&mut bytes, b"", b"select 1", &[]).unwrap();
        encode::sync(&mut bytes);
        let expected = [&bytes[..], EMPTY_QUERY].concat();
        for _ in 0..2 {
            encode::query(&mut bytes, b"show shard").unwrap();
        }
        let left = strip_commands(bytes, &ClientStatements::default());
        assert!(left == expected, "{}", left.escape_ascii());
        let mut empty = Vec::new();
        encode::query(&mut empty, b"").unwrap();
        assert_eq!(empty, EMPTY_QUERY);
    }

    #[test]
    fn messages_around_a_command_are_retained() {
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
        let retained = [query(b"copy t from stdin"), rows, query(b"select 1")];
        let [copy, rows, select] = &retained;
        for messages in [
            [copy, rows, &query(b"show shard"), select],
            [copy, rows, &command, select],
            [&query(b"set server role to 'any';"), copy, rows, select],
            [copy, rows, select, &query(b"show primary reads")],
        ] {
            let bytes = messages.into_iter().flatten().copied().collect();
            let left = strip_commands(bytes, &ClientStatements::default());
            assert!(left == retained.concat(), "{}", left.escape_ascii());
        }
        let bytes = retained.concat();
        assert_eq!(strip_commands(bytes.clone(), &ClientStatements::default()), bytes);
    }
}
