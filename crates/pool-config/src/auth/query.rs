//! [`AuthQuery`]: the query that reads the secret of an unlisted user from a server.

use crate::{CONSOLE_DATABASES, Config};

/// The default query: returns the role's secret, unless it has expired or the role may not log in.
pub const DEFAULT_AUTH_QUERY: &str = "select rolname, case when rolvaliduntil < pg_catalog.now() \
     then null else rolpassword end from pg_catalog.pg_authid where rolname = $1 and rolcanlogin";

/// A query for a user's secret, run on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthQuery {
    /// The user whose secret is queried.
    pub user: String,
    /// The role that runs the query.
    pub auth_user: String,
    /// The database in which the query runs, by the name that clients use.
    pub database: String,
    /// The SQL text; `$1` is the user.
    pub query: String,
}

impl Config {
    /// Returns the query for the secret of `user` at a login to `database`; `None` if not
    /// configured.
    ///
    /// The database's own settings take precedence over those of `[pool.auth]`. The console, or a
    /// database without an entry, has no server to query, so `auth.dbname` is needed.
    pub fn auth_query(&self, database: &str, user: &str) -> Option<AuthQuery> {
        let is_console = CONSOLE_DATABASES.contains(&database);
        let entry = self.database(database).filter(|_| !is_console);
        let auth = &self.auth;
        let auth_user = entry.and_then(|entry| entry.auth_user.as_ref()).or(auth.user.as_ref())?;
        let dbname = entry.and_then(|entry| entry.auth_dbname.as_deref());
        let dbname = dbname.or(auth.dbname.as_deref()).or(entry.map(|_| database))?;
        let query = entry.and_then(|entry| entry.auth_query.as_ref()).unwrap_or(&auth.query);
        Some(AuthQuery {
            user: user.to_owned(),
            auth_user: auth_user.clone(),
            database: dbname.to_owned(),
            query: query.clone(),
        })
    }

    /// Whether `[pool.auth]` or any database names a role that queries servers for secrets.
    pub fn uses_auth_query(&self) -> bool {
        self.auth.user.is_some() || self.databases.values().any(|it| it.auth_user.is_some())
    }
}

#[test]
fn database_overrides_auth_query() {
    let config = |text: &str| toml::from_str::<Config>(text).unwrap();
    let databases = "[databases.a]\n[databases.b]\nauth-user = 'bob'\nauth-dbname = 'a'\n\
                     auth-query = 'mine'\n";
    let found = |config: &Config, database: &str| {
        let AuthQuery { auth_user, database, query, .. } = config.auth_query(database, "who")?;
        let own = query != DEFAULT_AUTH_QUERY;
        Some(format!("{auth_user}@{database}{}", if own { "!" } else { "" }))
    };
    let some = config(databases);
    assert!(some.uses_auth_query());
    assert_eq!(found(&some, "a"), None);
    assert_eq!(found(&some, "b").as_deref(), Some("bob@a!"));
    let all = config(&format!("auth = {{ user = 'al' }}\n{databases}"));
    assert_eq!(found(&all, "a").as_deref(), Some("al@a"));
    assert_eq!(found(&all, "b").as_deref(), Some("bob@a!"));
    assert_eq!(found(&all, "nowhere"), None, "there is no server to query");
    let one = config(&format!("auth = {{ user = 'al', dbname = 'a' }}\n{databases}"));
    assert_eq!(found(&one, "pgbouncer").as_deref(), Some("al@a"));
    assert_eq!(found(&one, "nowhere").as_deref(), Some("al@a"));
    let any = config("auth = { user = 'al' }\n[databases.'*']\n");
    assert_eq!(found(&any, "x").as_deref(), Some("al@x"));
    assert_eq!(found(&any, "pgbouncer"), None, "the console has no server");
}
