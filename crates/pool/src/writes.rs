//! [`Writes`]: whether a client's transaction wrote, by what the server says of it.
//!
//! A tag says what was done. One of a statement that may call functions says nothing of what these did: with the
//! role `primary` it counts as a write, since whoever only reads could have said so. With another role, whoever
//! wrote by a function would have failed at the next standby. In doubt, it wrote: what that costs is some reads at
//! the primary.

use crate::cluster::ServerRole;

/// What is seen of writes on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Nobody wants to know.
    #[default]
    Unwatched,
    /// None were seen since it was linked to its client.
    Unseen,
    /// Something was written, or may have been.
    Seen,
}

impl Writes {
    /// Of a server that is linked to a client which minds, or does not.
    pub(crate) fn watched_if(minds: bool) -> Self {
        if minds { Self::Unseen } else { Self::Unwatched }
    }

    #[inline]
    pub(crate) fn is_watched(self) -> bool {
        self != Self::Unwatched
    }

    /// Takes that a statement has ended with a tag.
    pub(crate) fn note(&mut self, tag: &[u8], role: ServerRole) {
        if !only_reads(tag) && (role == ServerRole::Primary || !may_only_read(tag)) {
            *self = Self::Seen;
        }
    }

    /// Takes that a statement's rows were sent, and more may come: there is no tag.
    pub(crate) fn note_suspended(&mut self, role: ServerRole) {
        if role == ServerRole::Primary {
            *self = Self::Seen;
        }
    }
}

/// Tags of statements that write nothing that others see.
fn only_reads(tag: &[u8]) -> bool {
    matches!(
        tag,
        b"BEGIN"
            | b"START TRANSACTION"
            | b"COMMIT"
            | b"ROLLBACK"
            | b"SAVEPOINT"
            | b"RELEASE"
            | b"SET"
            | b"RESET"
            | b"SHOW"
            | b"SET CONSTRAINTS"
            | b"PREPARE"
            | b"DEALLOCATE"
            | b"DEALLOCATE ALL"
            | b"DISCARD ALL"
            | b"DISCARD PLANS"
            | b"DISCARD SEQUENCES"
            | b"DISCARD TEMP"
            | b"DECLARE CURSOR"
            | b"CLOSE CURSOR"
            | b"CLOSE CURSOR ALL"
            | b"LISTEN"
            | b"UNLISTEN"
            | b"NOTIFY"
            | b"LOCK TABLE"
    )
}

/// Tags of statements that only read unless they call what writes.
fn may_only_read(tag: &[u8]) -> bool {
    let word = tag.split(|byte| *byte == b' ').next();
    matches!(word, Some(b"SELECT" | b"FETCH" | b"MOVE")) && tag != b"SELECT INTO"
}

#[test]
fn in_doubt_it_wrote() {
    let of = |tag: &str, role| {
        let mut writes = Writes::watched_if(true);
        writes.note(tag.as_bytes(), role);
        writes == Writes::Seen
    };
    for tag in ["INSERT 0 1", "UPDATE 0", "MERGE 3", "COPY 7", "CALL", "DO", "CREATE TABLE"] {
        assert!(of(tag, ServerRole::Primary) && of(tag, ServerRole::Any), "{tag}");
    }
    for tag in ["EXPLAIN", "VACUUM", "COMMIT PREPARED", "PREPARE TRANSACTION", "SELECT INTO"] {
        assert!(of(tag, ServerRole::Any), "{tag}");
    }
    for tag in ["SELECT 1", "FETCH 10", "MOVE 1"] {
        assert!(of(tag, ServerRole::Primary) && !of(tag, ServerRole::Any), "{tag}");
    }
    for tag in ["BEGIN", "COMMIT", "ROLLBACK", "SET", "SHOW", "CLOSE CURSOR", "NOTIFY"] {
        assert!(!of(tag, ServerRole::Primary), "{tag}");
    }
}
