//! The results of statements, if they are captured.

use howdah_sql::{Lexer, TokenKind};
use howdah_traffic::{Action, CapturedResult, Text};
use howdah_wire::{Backend, Frame, backend::BackendMessage as Reply};

use super::PendingRequest;

/// The rows of one reply.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedResult {
    /// The checksum; `None` if a row was too large to be read.
    checksum: Option<u64>,
    /// The body of the first row; empty if it was too large to be stored.
    first_row: Vec<u8>,
}

impl ReceivedResult {
    pub(crate) fn new(checksum: Option<u64>, first_row: &[u8]) -> Self {
        Self { checksum, first_row: first_row.to_vec() }
    }
}

impl PendingRequest {
    /// Adds the result of one statement, or `None` for one without rows.
    pub(super) fn add_result(&mut self, result: Option<ReceivedResult>) {
        let Some(event) = &mut self.event else { return };
        let generates = result.is_some() && may_generate_values(&event.action);
        let Some(wire) = &mut event.wire else { return };
        self.is_result_lost |= result.as_ref().is_some_and(|result| result.checksum.is_none());
        if self.is_result_lost {
            wire.result = None;
            return;
        }
        let sum = result.as_ref().and_then(|result| result.checksum).unwrap_or(0);
        if let Some(before) = &mut wire.result {
            before.append(sum);
        } else if let Some(result) = result {
            let first_row = generates.then(|| row_values(&result.first_row)).flatten();
            wire.result = Some(CapturedResult { checksum: sum, first_row });
        }
    }
}

/// Returns the values in the body of a row; `None` without a row.
fn row_values(body: &[u8]) -> Option<Vec<Option<Text>>> {
    match Reply::parse(Frame { tag: Backend::DataRow.tag(), body }) {
        Ok(Reply::DataRow(cells)) => Some(cells.map(|cell| cell.map(Text::from)).collect()),
        _ => None,
    }
}

/// Whether a statement may return values that it has generated, such as numbers of a sequence.
fn may_generate_values(action: &Action) -> bool {
    const GENERATORS: [&[u8]; 8] = [
        b"returning",
        b"nextval",
        b"currval",
        b"lastval",
        b"gen_random_uuid",
        b"uuidv4",
        b"uuidv7",
        b"uuid_generate_v4",
    ];
    let is_generator =
        |word: &[u8]| GENERATORS.iter().any(|known| word.eq_ignore_ascii_case(known));
    action.sql().is_some_and(|sql| {
        Lexer::new(sql.as_bytes())
            .any(|token| token.kind == TokenKind::Word && is_generator(token.text))
    })
}
