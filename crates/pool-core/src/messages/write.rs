//! Messages that the pooler writes itself, or sends with a new front.

use howdah_wire::Frontend;

use crate::prepared::statements::PooledStatement;

/// Appends a Parse message for a statement, under its shared name.
pub(super) fn parse(buf: &mut Vec<u8>, statement: &PooledStatement) {
    header(buf, Frontend::Parse, statement.name.len() + 1 + statement.text.len());
    buf.extend_from_slice(&statement.name);
    buf.push(0);
    buf.extend_from_slice(&statement.text);
}

/// Appends the tag and the length field of a message whose body follows.
pub(crate) fn header(buf: &mut Vec<u8>, kind: Frontend, body_bytes: usize) {
    buf.push(kind.tag().0);
    buf.extend_from_slice(&length_field(body_bytes));
}

/// Returns the length field for a body: its length plus the field's own four bytes. It does not
/// overflow, because bodies are under 1 GiB and grow by a statement name at most.
pub(super) fn length_field(body_bytes: usize) -> [u8; 4] {
    u32::try_from(body_bytes + 4).unwrap_or(u32::MAX).to_be_bytes()
}
