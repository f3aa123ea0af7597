//! [`WriteDetection`]: detects from command tags whether a client's transaction has written.
//!
//! A tag names the command, but does not show the effects of functions that a statement calls. With
//! the role `primary`, a SELECT counts as a write, since a client that only reads could have
//! requested another role. With other roles it does not, since a function that writes would fail
//! whenever the statement ran on a standby. A false positive only sends some reads to the primary.

use crate::cluster::TargetRole;

/// The state of write detection for the client that a server is linked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteDetection {
    /// Not tracked: the client does not read its own writes.
    #[default]
    Disabled,
    /// No write was detected since the server was linked to its client.
    NotWritten,
    /// A statement wrote, or may have written.
    Written,
}

impl WriteDetection {
    /// Returns the initial state for a client. `minds` tells whether the client reads its own
    /// writes.
    pub(crate) fn enabled_if(minds: bool) -> Self {
        if minds { Self::NotWritten } else { Self::Disabled }
    }

    #[inline]
    pub(crate) fn is_enabled(self) -> bool {
        self != Self::Disabled
    }

    /// Handles the command tag of a completed statement; `role` is the server role that the client
    /// uses.
    pub(crate) fn record_tag(&mut self, tag: &[u8], role: TargetRole) {
        if !only_reads(tag) && (role == TargetRole::Primary || !may_only_read(tag)) {
            *self = Self::Written;
        }
    }

    /// Handles PortalSuspended, which has no command tag.
    pub(crate) fn record_suspended(&mut self, role: TargetRole) {
        if role == TargetRole::Primary {
            *self = Self::Written;
        }
    }
}

/// Whether a statement with this tag never writes data that other sessions can see.
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

/// Whether a statement with this tag only reads, unless it calls a function that writes.
fn may_only_read(tag: &[u8]) -> bool {
    let word = tag.split(|byte| *byte == b' ').next();
    matches!(word, Some(b"SELECT" | b"FETCH" | b"MOVE")) && tag != b"SELECT INTO"
}

#[test]
fn ambiguous_tags_count_as_writes() {
    let of = |tag: &str, role| {
        let mut detection = WriteDetection::enabled_if(true);
        detection.record_tag(tag.as_bytes(), role);
        detection == WriteDetection::Written
    };
    for tag in ["INSERT 0 1", "UPDATE 0", "MERGE 3", "COPY 7", "CALL", "DO", "CREATE TABLE"] {
        assert!(of(tag, TargetRole::Primary) && of(tag, TargetRole::Any), "{tag}");
    }
    for tag in ["EXPLAIN", "VACUUM", "COMMIT PREPARED", "PREPARE TRANSACTION", "SELECT INTO"] {
        assert!(of(tag, TargetRole::Any), "{tag}");
    }
    for tag in ["SELECT 1", "FETCH 10", "MOVE 1"] {
        assert!(of(tag, TargetRole::Primary) && !of(tag, TargetRole::Any), "{tag}");
    }
    for tag in ["BEGIN", "COMMIT", "ROLLBACK", "SET", "SHOW", "CLOSE CURSOR", "NOTIFY"] {
        assert!(!of(tag, TargetRole::Primary), "{tag}");
    }
}
