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
    const RESERVE: &str = "pools have no reserve: make the pool larger";
    const CLIENTS: &str = "clients are counted all together only: see limits.clients";
    row(config.sizes.reserve > 0, "sizes.reserve", RESERVE);
    row(limits.clients_per_database.is_some(), "limits.clients-per-database", CLIENTS);
    row(limits.clients_per_user.is_some(), "limits.clients-per-user", CLIENTS);
    let shorter = limits.message_bytes < all.limits.message_bytes;
    row(shorter, "limits.message-bytes", "messages of every length are passed on");
    let (times, usual) = (&config.timeouts, all.timeouts);
    row(times.transaction.is_some(), "timeouts.transaction", "transactions may take any time");
    let notify = times.query_wait_notify != usual.query_wait_notify;
    row(notify, "timeouts.query-wait-notify", "clients that wait get no notice");
    const CHECK: &str = "servers are not asked before they are used: a dead one is noticed by its \
                         closed connection";
    row(config.check_query.as_deref().is_some_and(|it| !it.is_empty()), "check-query", CHECK);
    let delay = times.server_check_delay != usual.server_check_delay;
    row(delay, "timeouts.server-check-delay", CHECK);
    row(config.round_robin, "round-robin", "the server that was used last is used first");
    const RESET: &str = "what a client leaves behind is reset by what it has done, not by a query";
    row(config.reset_query != all.reset_query, "reset-query", RESET);
    row(config.reset_query_always, "reset-query-always", RESET);
    let host = config.application_name_add_host;
    row(host, "application-name-add-host", "application_name stays as clients set it");
    const CONSOLE: &str = "there is no console";
    row(!config.admin_users.is_empty(), "admin-users", CONSOLE);
    row(!config.stats_users.is_empty(), "stats-users", CONSOLE);
    for (name, database) in &config.databases {
        let reserve = database.reserve_size.is_some_and(|size| size > 0);
        row(reserve, &format!("databases.{name}.reserve-size"), RESERVE);
        let clients = database.max_clients.is_some_and(|most| most > 0);
        row(clients, &format!("databases.{name}.max-clients"), CLIENTS);
    }
    for (name, user) in &config.users {
        let reserve = user.reserve_size.is_some_and(|size| size > 0);
        row(reserve, &format!("users.{name}.reserve-size"), RESERVE);
        let clients = user.max_clients.is_some_and(|most| most > 0);
        row(clients, &format!("users.{name}.max-clients"), CLIENTS);
        let transaction = user.transaction_timeout.flatten().is_some();
        let key = format!("users.{name}.transaction-timeout");
        row(transaction, &key, "transactions may take any time");
    }
    found
}

#[test]
fn only_what_is_asked_for_is_told() {
    assert_eq!(unused(&Config::default()), []);
    let text = "round-robin = true\n[databases.a]\nreserve-size = 1\nmax-clients = 0\n";
    let config: Config = toml::from_str(text).unwrap();
    let keys: Vec<_> = unused(&config).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["round-robin", "databases.a.reserve-size"]);
}
