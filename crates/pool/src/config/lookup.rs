//! Where the secret of a user that is not listed is looked up.

use super::{CONSOLE_DATABASES, Config};

/// What is asked unless the settings say otherwise: the role's secret, unless its time is over or it
/// may not log in.
pub const DEFAULT_QUERY: &str = "select rolname, case when rolvaliduntil < pg_catalog.now() \
     then null else rolpassword end from pg_catalog.pg_authid where rolname = $1 and rolcanlogin";

/// A user's secret to be looked up at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Whose secret.
    pub user: String,
    /// Who asks.
    pub auth_user: String,
    /// In which database, by the name that clients use.
    pub database: String,
    /// What is asked; `$1` is the user.
    pub query: String,
}

impl Config {
    /// How the secret of `user`, who wants `database`, is looked up; `None` if it is not.
    ///
    /// What a database says wins over what is said for all. One that does not exist, or is the
    /// console's, has no server to ask: then there has to be a database for all.
    pub fn lookup(&self, database: &str, user: &str) -> Option<Lookup> {
        let is_console = CONSOLE_DATABASES.contains(&database);
        let entry = self.database(database).filter(|_| !is_console);
        let auth = &self.auth;
        let auth_user = entry.and_then(|entry| entry.auth_user.as_ref()).or(auth.user.as_ref())?;
        let asked = entry.and_then(|entry| entry.auth_dbname.as_deref());
        let asked = asked.or(auth.dbname.as_deref()).or(entry.map(|_| database))?;
        let query = entry.and_then(|entry| entry.auth_query.as_ref()).unwrap_or(&auth.query);
        Some(Lookup {
            user: user.to_owned(),
            auth_user: auth_user.clone(),
            database: asked.to_owned(),
            query: query.clone(),
        })
    }

    /// Whether any secret is looked up.
    pub(crate) fn looks_up(&self) -> bool {
        self.auth.user.is_some() || self.databases.values().any(|it| it.auth_user.is_some())
    }
}

#[test]
fn a_database_may_be_asked_in_its_own_way() {
    let config = |text: &str| toml::from_str::<Config>(text).unwrap();
    let databases = "[databases.a]\n[databases.b]\nauth-user = 'bob'\nauth-dbname = 'a'\n\
                     auth-query = 'mine'\n";
    let found = |config: &Config, database: &str| {
        let Lookup { auth_user, database, query, .. } = config.lookup(database, "who")?;
        let own = query != DEFAULT_QUERY;
        Some(format!("{auth_user}@{database}{}", if own { "!" } else { "" }))
    };
    let some = config(databases);
    assert!(some.looks_up());
    assert_eq!(found(&some, "a"), None);
    assert_eq!(found(&some, "b").as_deref(), Some("bob@a!"));
    let all = config(&format!("auth = {{ user = 'al' }}\n{databases}"));
    assert_eq!(found(&all, "a").as_deref(), Some("al@a"));
    assert_eq!(found(&all, "b").as_deref(), Some("bob@a!"));
    assert_eq!(found(&all, "nowhere"), None, "there is no server to ask");
    let one = config(&format!("auth = {{ user = 'al', dbname = 'a' }}\n{databases}"));
    assert_eq!(found(&one, "pgbouncer").as_deref(), Some("al@a"));
    assert_eq!(found(&one, "nowhere").as_deref(), Some("al@a"));
    let any = config("auth = { user = 'al' }\n[databases.'*']\n");
    assert_eq!(found(&any, "x").as_deref(), Some("al@x"));
    assert_eq!(found(&any, "pgbouncer"), None, "the console has no server");
}
