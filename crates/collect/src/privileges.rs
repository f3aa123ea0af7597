//! What the role of a connection may read and do, and which grant would let it do more.

use std::borrow::Cow;

use howdah_connect::Client;

use crate::{CollectError, Version};

/// What a role may do here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Name of the role.
    pub role: String,
    /// It may do all.
    pub is_superuser: bool,
    /// It sees what the sessions of other roles do.
    pub reads_all_stats: bool,
    /// It sees all settings.
    pub reads_all_settings: bool,
    /// It may end statements and sessions of others than superusers.
    pub signals_backends: bool,
}

/// Something that a role cannot see or do, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What is not there.
    pub what: Cow<'static, str>,
    /// The statement that a superuser could run.
    pub remedy: String,
}

impl Missing {
    /// [`Missing::what`] where other roles' sessions are hidden.
    pub const SESSIONS: &str =
        "statements, states and waits of other roles' sessions; sizes of databases";
}

impl Privileges {
    pub(crate) fn read(client: &mut Client, version: Version) -> Result<Self, CollectError> {
        // Before version 10 there were no such roles, and only superusers saw all.
        let sql = if version.major() >= 10 {
            "SELECT current_user, rolsuper, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
             pg_has_role(current_user, 'pg_read_all_settings', 'USAGE'), \
             pg_has_role(current_user, 'pg_signal_backend', 'USAGE') \
             FROM pg_roles WHERE rolname = current_user"
        } else {
            "SELECT current_user, rolsuper, rolsuper, rolsuper, rolsuper \
             FROM pg_roles WHERE rolname = current_user"
        };
        let what = "what its role may read";
        let results = client.query(sql).map_err(CollectError::query(what))?;
        let row = results.first().and_then(|result| result.rows.first());
        let row = row.ok_or(CollectError::NotPostgres { what: "roles" })?;
        let holds = |at| row.bytes(at) == Some(b"t");
        Ok(Self {
            role: row.text(0).unwrap_or_default().into_owned(),
            is_superuser: holds(1),
            reads_all_stats: holds(2),
            reads_all_settings: holds(3),
            signals_backends: holds(4),
        })
    }

    /// What it cannot see or do, with what would help.
    pub fn missing(&self, version: Version) -> Vec<Missing> {
        if self.is_superuser {
            return Vec::new();
        }
        let role = self.role.replace('"', "\"\"");
        let grant = |granted: &str| match version.major() {
            10.. => format!("GRANT {granted} TO \"{role}\""),
            _ => format!("ALTER ROLE \"{role}\" SUPERUSER"),
        };
        let table = [
            (self.reads_all_stats, Missing::SESSIONS, "pg_monitor"),
            (self.reads_all_settings, "settings such as data_directory", "pg_monitor"),
            (
                self.signals_backends,
                "cancelling and terminating other roles' sessions",
                "pg_signal_backend",
            ),
        ];
        let lacking = table.into_iter().filter(|(has, ..)| !has);
        lacking.map(|(_, what, role)| Missing { what: what.into(), remedy: grant(role) }).collect()
    }
}

#[test]
fn a_grant_is_named_for_what_is_missing() {
    let plain = Privileges { role: "mon\"itor".to_owned(), ..Privileges::default() };
    let missing = plain.missing(Version::of_major(15));
    assert_eq!(missing.len(), 3);
    assert_eq!(missing[0].remedy, "GRANT pg_monitor TO \"mon\"\"itor\"");
    let all = Privileges { is_superuser: true, ..plain };
    assert_eq!(all.missing(Version::of_major(15)), []);
}
