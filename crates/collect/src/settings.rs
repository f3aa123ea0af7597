//! Reads a server's settings, and the different values that are set for roles and databases. Any
//! role may read both, except for a few settings that require `pg_read_all_settings`.

use std::collections::BTreeMap;

use howdah_connect::{Client, QueryError, ResultRow};

/// A setting of a role, a database, or a role in a database; of all roles if neither is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleSetting {
    /// The database; `None` if the setting applies to all databases.
    pub database: Option<String>,
    /// The role; `None` if the setting applies to all roles.
    pub role: Option<String>,
    /// Name of the setting, such as `work_mem`.
    pub name: String,
    /// The value, as in `ALTER ROLE … SET`.
    pub value: String,
}

/// Reads the values of the named settings, and of all settings whose names start with one of the
/// prefixes. Settings that the server does not have or that the role may not read are missing from
/// the result.
///
/// # Errors
///
/// The statement or the connection failed.
pub fn installed(
    client: &mut Client,
    names: &[&str],
    prefixes: &[&str],
) -> Result<BTreeMap<String, String>, QueryError> {
    let by_prefix = prefixes.iter().map(|prefix| format!(" or name like '{prefix}%'"));
    let results = client.query(&format!(
        "select name, setting from pg_catalog.pg_settings where name in ({}){}",
        quoted(names),
        by_prefix.collect::<String>()
    ))?;
    let rows = results.into_iter().flat_map(|result| result.rows);
    let pair = |row: ResultRow| Some((row.text(0)?.into(), row.text(1)?.into()));
    Ok(rows.filter_map(pair).collect())
}

/// Reads the values of the named settings that are set for roles and databases, ordered by
/// database, role and name.
///
/// # Errors
///
/// The statement or the connection failed.
pub fn role_settings(client: &mut Client, names: &[&str]) -> Result<Vec<RoleSetting>, QueryError> {
    let results = client.query(&format!(
        "select d.datname, r.rolname, c.setting \
         from pg_catalog.pg_db_role_setting s \
         left join pg_catalog.pg_database d on d.oid = s.setdatabase \
         left join pg_catalog.pg_roles r on r.oid = s.setrole, \
         pg_catalog.unnest(s.setconfig) as c(setting) \
         where pg_catalog.split_part(c.setting, '=', 1) in ({}) order by 1, 2, 3",
        quoted(names)
    ))?;
    let rows = results.into_iter().flat_map(|result| result.rows);
    let setting = |row: ResultRow| {
        let text = row.text(2)?;
        let (name, value) = text.split_once('=')?;
        Some(RoleSetting {
            database: row.text(0).map(Into::into),
            role: row.text(1).map(Into::into),
            name: name.to_owned(),
            value: value.to_owned(),
        })
    };
    Ok(rows.filter_map(setting).collect())
}

/// Returns names as a list of SQL literals. The names must not contain quotes.
fn quoted(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
    names.join(", ")
}
