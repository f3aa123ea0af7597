//! Refuses servers that may be in production: a rehearsal executes captured statements.

use howdah_dataset::CapturedServer;
use howdah_report::rehearsal::{RehearsalSide, ServerFacts};

/// The reason why a server may be in production.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The server is the one that was captured.
    #[error(
        "the {side} server is the one that was captured: its system identifier is {system_identifier}"
    )]
    CapturedServer {
        /// The refused server.
        side: RehearsalSide,
        /// The system identifier of its cluster.
        system_identifier: String,
        /// The database that the user must name to allow the server anyway.
        database: String,
    },
    /// Other clients use the server.
    #[error("{clients} other clients were active on the {side} server within the last minute")]
    ActiveClients {
        /// The refused server.
        side: RehearsalSide,
        /// Number of sessions of other clients.
        clients: u64,
        /// The database that the user must name to allow the server anyway.
        database: String,
    },
}

impl GuardError {
    /// Returns advice for the user.
    pub fn hint(&self) -> String {
        let (Self::CapturedServer { database, .. } | Self::ActiveClients { database, .. }) = self;
        format!(
            "captured statements are executed: name a copy, or add --allow-production {database} \
             if this server may be written to"
        )
    }
}

/// Checks one server.
///
/// A server with the captured system identifier may be a physical copy. It counts as the captured
/// server unless its timeline or its address differs: a copy has a new timeline after promotion, or
/// another address if restored elsewhere.
///
/// # Errors
///
/// The server may be in production, and `allowed` is not the name of its database.
pub(crate) fn check(
    side: RehearsalSide,
    facts: &ServerFacts,
    address: &str,
    captured: Option<&CapturedServer>,
    allowed: Option<&str>,
) -> Result<(), GuardError> {
    if allowed == Some(facts.database.as_str()) {
        return Ok(());
    }
    if let Some(captured) = captured
        && facts.system_identifier.as_ref() == Some(&captured.system_identifier)
        && !differ(facts.timeline.as_ref(), captured.timeline.as_ref())
        && !differ(Some(&address.to_owned()), captured.address.as_ref())
    {
        return Err(GuardError::CapturedServer {
            side,
            system_identifier: captured.system_identifier.clone(),
            database: facts.database.clone(),
        });
    }
    match facts.active_clients {
        0 => Ok(()),
        clients => {
            Err(GuardError::ActiveClients { side, clients, database: facts.database.clone() })
        }
    }
}

/// Whether two values are known to differ.
fn differ<T: PartialEq>(left: Option<&T>, right: Option<&T>) -> bool {
    matches!((left, right), (Some(left), Some(right)) if left != right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ServerFacts {
        ServerFacts {
            database: "shop".to_owned(),
            system_identifier: Some("7".to_owned()),
            timeline: Some(1),
            ..ServerFacts::default()
        }
    }

    fn captured() -> CapturedServer {
        CapturedServer {
            system_identifier: "7".to_owned(),
            timeline: Some(1),
            address: Some("db:5432".to_owned()),
        }
    }

    fn check_base(
        facts: &ServerFacts,
        address: &str,
        captured: &CapturedServer,
        allowed: Option<&str>,
    ) -> Result<(), GuardError> {
        check(RehearsalSide::Base, facts, address, Some(captured), allowed)
    }

    #[test]
    fn captured_server_is_refused() {
        let error = check_base(&facts(), "db:5432", &captured(), None).unwrap_err();
        assert!(error.hint().contains("--allow-production shop"), "{}", error.hint());
        let unknown = CapturedServer { timeline: None, address: None, ..captured() };
        assert!(check_base(&facts(), "db:5432", &unknown, None).is_err());
        assert!(check_base(&facts(), "db:5432", &captured(), Some("other")).is_err());
        assert_eq!(check_base(&facts(), "db:5432", &captured(), Some("shop")), Ok(()));
    }

    #[test]
    fn copy_of_captured_server_is_accepted() {
        assert_eq!(check_base(&facts(), "copy:5432", &captured(), None), Ok(()));
        let promoted = ServerFacts { timeline: Some(2), ..facts() };
        assert_eq!(check_base(&promoted, "db:5432", &captured(), None), Ok(()));
        let other = ServerFacts { system_identifier: Some("8".to_owned()), ..facts() };
        assert_eq!(check_base(&other, "db:5432", &captured(), None), Ok(()));
        let unknown = ServerFacts { system_identifier: None, ..facts() };
        assert_eq!(check_base(&unknown, "db:5432", &captured(), None), Ok(()));
    }

    #[test]
    fn server_with_active_clients_is_refused() {
        let busy = ServerFacts { active_clients: 3, ..facts() };
        let error = check(RehearsalSide::Change, &busy, "copy:5432", None, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "3 other clients were active on the change server within the last minute"
        );
        assert_eq!(check(RehearsalSide::Change, &busy, "copy:5432", None, Some("shop")), Ok(()));
    }
}
