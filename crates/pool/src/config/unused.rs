//! Settings that are read and checked, and that nothing is done about: whoever uses one is told.

use super::Config;

/// Keys of `[pool]` that ask for something which is not done, and what happens instead.
pub(super) fn unused(config: &Config) -> Vec<(String, &'static str)> {
    let (limits, all) = (&config.limits, Config::default());
    let mut found = Vec::new();
    let mut row = |is_asked: bool, key: &str, instead: &'static str| {
        if is_asked {
            found.push((key.to_owned(), instead));
        }
    };
    const CLIENTS: &str = "clients are counted all together only: see limits.clients";
    row(limits.clients_per_database.is_some(), "limits.clients-per-database", CLIENTS);
    row(limits.clients_per_user.is_some(), "limits.clients-per-user", CLIENTS);
    let shorter = limits.message_bytes < all.limits.message_bytes;
    row(shorter, "limits.message-bytes", "messages of every length are passed on");
    let host = config.application_name_add_host;
    row(host, "application-name-add-host", "application_name stays as clients set it");
    const CONSOLE: &str = "there is no console";
    row(!config.admin_users.is_empty(), "admin-users", CONSOLE);
    row(!config.stats_users.is_empty(), "stats-users", CONSOLE);
    for (name, database) in &config.databases {
        let clients = database.max_clients.is_some_and(|most| most > 0);
        row(clients, &format!("databases.{name}.max-clients"), CLIENTS);
    }
    for (name, user) in &config.users {
        let clients = user.max_clients.is_some_and(|most| most > 0);
        row(clients, &format!("users.{name}.max-clients"), CLIENTS);
    }
    found
}

#[test]
fn only_what_is_asked_for_is_told() {
    assert_eq!(unused(&Config::default()), []);
    let text = "application-name-add-host = true\n[databases.a]\nreserve-size = 1\nmax-clients = 0\n\
                [databases.b]\nmax-clients = 1\n";
    let config: Config = toml::from_str(text).unwrap();
    let keys: Vec<_> = unused(&config).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["application-name-add-host", "databases.b.max-clients"]);
}
