//! Determines the privileges of the connection's role, and the grants that are missing.

use std::borrow::Cow;

use howdah_connect::Client;

use crate::{CollectError, ServerVersion, prepared_query::OWN_COMMENT};

/// Privileges of a role on this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Name of the role.
    pub role: String,
    /// Whether the role is a superuser.
    pub is_superuser: bool,
    /// Whether the role can read the activity of other roles' sessions.
    pub can_read_all_stats: bool,
    /// Whether the role can read all settings.
    pub can_read_all_settings: bool,
    /// Whether the role may list the temporary files, as members of `pg_monitor` may (since
    /// PostgreSQL 12).
    pub can_list_temp_files: bool,
    /// Whether the role may cancel and terminate sessions of roles other than superusers.
    pub can_signal_backends: bool,
}

/// Information or an action that a role lacks the privilege for, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPrivilege {
    /// The hidden information or the forbidden action, as a phrase.
    pub what: Cow<'static, str>,
    /// The statement for a superuser to run.
    pub remedy: String,
}

impl MissingPrivilege {
    /// Value of [`MissingPrivilege::what`] for hidden sessions of other roles.
    pub const SESSIONS: &str =
        "statements, states and waits of other roles' sessions; sizes of databases";
}

impl Privileges {
    pub(crate) fn read(client: &mut Client, version: ServerVersion) -> Result<Self, CollectError> {
        // The predefined roles have existed since version 10; before that, only superusers saw
        // everything.
        let roles = match version.major() {
            10.. => {
                "pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
                 pg_has_role(current_user, 'pg_read_all_settings', 'USAGE'), \
                 pg_has_role(current_user, 'pg_signal_backend', 'USAGE')"
            }
            _ => "rolsuper, rolsuper, rolsuper",
        };
        let temp_files = match version.major() {
            12.. => "has_function_privilege('pg_ls_tmpdir()', 'EXECUTE')",
            _ => "false",
        };
        let sql = format!(
            "SELECT current_user, rolsuper, {roles}, {temp_files} \
             FROM pg_roles WHERE rolname = current_user{OWN_COMMENT}"
        );
        let what = "the role's privileges";
        let results = client.query(&sql).map_err(CollectError::query(what))?;
        let row = results.first().and_then(|result| result.rows.first());
        let row = row.ok_or(CollectError::NotPostgres { what: "row for the current role" })?;
        let holds = |at| row.bytes(at) == Some(b"t");
        Ok(Self {
            role: row.text(0).unwrap_or_default().into_owned(),
            is_superuser: holds(1),
            can_read_all_stats: holds(2),
            can_read_all_settings: holds(3),
            can_signal_backends: holds(4),
            can_list_temp_files: holds(5),
        })
    }

    /// Returns the privileges that the role lacks, each with its remedy; empty for a superuser.
    pub fn missing(&self, version: ServerVersion) -> Vec<MissingPrivilege> {
        if self.is_superuser {
            return Vec::new();
        }
        let role = self.role.replace('"', "\"\"");
        let grant = |granted: &str| match version.major() {
            10.. => format!("GRANT {granted} TO \"{role}\""),
            _ => format!("ALTER ROLE \"{role}\" SUPERUSER"),
        };
        let table = [
            (self.can_read_all_stats, MissingPrivilege::SESSIONS, "pg_monitor"),
            (self.can_read_all_settings, "settings such as data_directory", "pg_monitor"),
            (
                self.can_signal_backends,
                "cancelling and terminating other roles' sessions",
                "pg_signal_backend",
            ),
        ];
        let lacking = table.into_iter().filter(|(has, ..)| !has);
        lacking
            .map(|(_, what, role)| MissingPrivilege { what: what.into(), remedy: grant(role) })
            .collect()
    }
}

#[test]
fn missing_privilege_names_the_grant() {
    let plain = Privileges { role: "mon\"itor".to_owned(), ..Privileges::default() };
    let missing = plain.missing(ServerVersion::from_major(15));
    assert_eq!(missing.len(), 3);
    assert_eq!(missing[0].remedy, "GRANT pg_monitor TO \"mon\"\"itor\"");
    let all = Privileges { is_superuser: true, ..plain };
    assert_eq!(all.missing(ServerVersion::from_major(15)), []);
}
