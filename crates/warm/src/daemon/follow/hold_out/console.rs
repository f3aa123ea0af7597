//! The admin console of `howdah pool`: its members and bans.

use std::{net::ToSocketAddrs, time::Duration};

use howdah_connect::{Client, ConnectTarget, Endpoint};

use crate::{
    daemon::server_access::{RESPONSE_TIMEOUT, pooler_endpoint},
    dump::QueryFailure,
};

/// A console, connected to when it is needed.
pub(super) struct BanConsole {
    target: ConnectTarget,
    client: Option<Client>,
    epoch: u64,
}

/// The servers of a pooler and their bans at one moment.
pub(super) struct ConsoleView {
    members: Vec<PoolMember>,
    bans: Vec<PoolBan>,
    /// The number of the connection. A pooler that was restarted has forgotten its bans, and is
    /// always seen over a new one.
    pub(super) epoch: u64,
}

/// A row of `SHOW MEMBERS`: a server of a database, or of one of its shards.
struct PoolMember {
    cluster: (String, String),
    endpoint: Endpoint,
    is_replica: bool,
    is_primary: bool,
    is_up: bool,
}

/// A row of `SHOW BANS`.
struct PoolBan {
    endpoint: Endpoint,
    /// End of the ban, in seconds since 1970; `None` if it cannot be parsed.
    until: Option<i64>,
}

/// Maximum number of rows that are read.
const ROWS_MAX: usize = 10_000;

impl BanConsole {
    pub(super) fn new(target: &ConnectTarget) -> Self {
        let timeout = target.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
        let target = target.with_connect_timeout(Some(timeout));
        let target = target.with_application_name("howdah warm");
        Self { target, client: None, epoch: 0 }
    }

    /// Closes the connection after a failure; the next request opens another.
    pub(super) fn close(&mut self) {
        self.client = None;
    }

    /// Reads the members and bans.
    pub(super) fn view(&mut self) -> Result<ConsoleView, QueryFailure> {
        let of_member = ["database", "shard", "host", "port", "role", "state"];
        let rows = match self.rows("SHOW MEMBERS", &of_member) {
            // The pooler may have closed an idle connection.
            Err(QueryFailure::Query(error)) if error.is_fatal() => {
                self.close();
                self.rows("SHOW MEMBERS", &of_member)?
            }
            rows => rows?,
        };
        let member = |row: Vec<String>| {
            let [database, shard, host, port, role, state] = <[String; 6]>::try_from(row).ok()?;
            Some(PoolMember {
                cluster: (database, shard),
                endpoint: pooler_endpoint(&host, port.parse().ok()?),
                is_replica: role == "replica",
                is_primary: role == "primary",
                is_up: state == "up",
            })
        };
        let members = rows.into_iter().filter_map(member).collect();
        let rows = self.rows("SHOW BANS", &["host", "port", "until"])?;
        let ban = |row: Vec<String>| {
            let [host, port, until] = <[String; 3]>::try_from(row).ok()?;
            let endpoint = pooler_endpoint(&host, port.parse().ok()?);
            Some(PoolBan { endpoint, until: parse_clock(&until) })
        };
        let bans = rows.into_iter().filter_map(ban).collect();
        Ok(ConsoleView { members, bans, epoch: self.epoch })
    }

    /// Bans a server for `lasts`, in all databases of the pooler.
    pub(super) fn ban(&mut self, member: &Endpoint, lasts: Duration) -> Result<(), QueryFailure> {
        let sql = format!("BAN {} {}", quoted(member), lasts.as_secs());
        self.client()?.query(&sql)?;
        Ok(())
    }

    /// Lifts the bans of a server in all databases of the pooler.
    pub(super) fn unban(&mut self, member: &Endpoint) -> Result<(), QueryFailure> {
        let sql = format!("UNBAN {}", quoted(member));
        self.client()?.query(&sql)?;
        Ok(())
    }

    /// Returns these columns of a table; NULL is empty.
    fn rows(
        &mut self,
        command: &str,
        columns: &[&'static str],
    ) -> Result<Vec<Vec<String>>, QueryFailure> {
        let results = self.client()?.query(command)?;
        let Some(result) = results.first() else { return Ok(Vec::new()) };
        let mut positions = Vec::new();
        for &name in columns {
            // Another pooler, with other tables.
            let position = result.column(name).ok_or(QueryFailure::UnexpectedResult {
                what: "the columns of SHOW MEMBERS and SHOW BANS of howdah pool",
                found: String::new(),
            })?;
            positions.push(position);
        }
        let rows = result.rows.iter().take(ROWS_MAX).map(|row| {
            let text = |&at: &usize| row.text(at).unwrap_or_default().into_owned();
            positions.iter().map(text).collect()
        });
        Ok(rows.collect())
    }

    fn client(&mut self) -> Result<&mut Client, QueryFailure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let mut client = Client::connect(&self.target)?;
                client.set_timeout(Some(RESPONSE_TIMEOUT));
                self.epoch += 1;
                client
            }
        };
        Ok(self.client.insert(client))
    }
}

impl ConsoleView {
    /// Returns the pooler's name of a server with one of these endpoints: the same host and port,
    /// or a host with the same address.
    pub(super) fn find_member(&self, endpoints: &[Endpoint]) -> Option<Endpoint> {
        let is_equal = |member: &&PoolMember| {
            let is_it = |endpoint: &Endpoint| {
                endpoint.host() == member.endpoint.host()
                    && endpoint.port() == member.endpoint.port()
            };
            endpoints.iter().any(is_it)
        };
        if let Some(member) = self.members.iter().find(is_equal) {
            return Some(member.endpoint.clone());
        }
        let addresses = |endpoint: &Endpoint| -> Vec<std::net::SocketAddr> {
            match endpoint {
                Endpoint::Tcp { hostaddr: Some(address), port, .. } => {
                    vec![(*address, *port).into()]
                }
                Endpoint::Tcp { host, port, .. } => {
                    (&**host, *port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
                }
                Endpoint::Unix { .. } => Vec::new(),
            }
        };
        let own: Vec<_> = endpoints.iter().flat_map(addresses).collect();
        let is_same_address = |member: &&PoolMember| {
            let has_port = own.iter().any(|own| own.port() == member.endpoint.port());
            has_port && addresses(&member.endpoint).iter().any(|address| own.contains(address))
        };
        self.members.iter().find(is_same_address).map(|member| member.endpoint.clone())
    }

    /// Returns the ends of all bans of a server, in seconds since 1970. An end that cannot be
    /// parsed is 0.
    pub(super) fn bans_of(&self, member: &Endpoint) -> Vec<i64> {
        let bans = self.bans.iter().filter(|ban| ban.endpoint == *member);
        bans.map(|ban| ban.until.unwrap_or(0)).collect()
    }

    /// Whether the server is banned, and all of its bans end at `until`.
    pub(super) fn has_only_ban(&self, member: &Endpoint, until: i64, tolerance: i64) -> bool {
        let bans = self.bans_of(member);
        !bans.is_empty() && bans.iter().all(|end| (end - until).abs() <= tolerance)
    }

    /// Whether enough servers are left without this one, in each of its databases: one of the other
    /// replicas, or the primary if it is the only replica.
    pub(super) fn may_ban(&self, member: &Endpoint) -> bool {
        let own = self.members.iter().filter(|row| row.endpoint == *member);
        own.into_iter().all(|row| {
            if !row.is_replica {
                return false;
            }
            let others = || {
                self.members
                    .iter()
                    .filter(|other| other.cluster == row.cluster && other.endpoint != *member)
            };
            let has_replicas = others().any(|other| other.is_replica);
            others().any(|other| {
                other.is_up && if has_replicas { other.is_replica } else { other.is_primary }
            })
        })
    }
}

fn quoted(member: &Endpoint) -> String {
    format!("\"{}\"", member.to_string().replace('"', "\"\""))
}

/// Parses `2026-03-01 00:00:00 UTC` into seconds since 1970.
fn parse_clock(text: &str) -> Option<i64> {
    let text = text.strip_suffix(" UTC")?;
    let mut numbers = text.split(['-', ' ', ':']).map(str::parse::<i64>);
    let mut number = |max: i64| numbers.next()?.ok().filter(|number| (0..=max).contains(number));
    let (year, month, day) = (number(9999)?, number(12)?, number(31)?);
    let (hour, minute, second) = (number(23)?, number(59)?, number(60)?);
    // Years start in March, so that the leap day is the last day of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_of_the_console_is_parsed() {
        for (text, seconds) in [
            ("1970-01-01 00:00:00 UTC", Some(0)),
            ("2000-02-29 00:00:00 UTC", Some(951_782_400)),
            ("2026-02-28 23:59:59 UTC", Some(1_772_323_199)),
            ("4107-13-01 00:00:00 UTC", None),
            ("2026-02-28 23:59:59", None),
            ("", None),
        ] {
            assert_eq!(parse_clock(text), seconds, "{text}");
        }
    }

    fn view(rows: &[(&str, &str, &str)]) -> ConsoleView {
        let member = |&(host, role, state): &(&str, &str, &str)| PoolMember {
            cluster: ("shop".to_owned(), String::new()),
            endpoint: pooler_endpoint(host, 5432),
            is_replica: role == "replica",
            is_primary: role == "primary",
            is_up: state == "up",
        };
        ConsoleView { members: rows.iter().map(member).collect(), bans: Vec::new(), epoch: 1 }
    }

    #[test]
    fn last_replica_of_several_is_not_banned() {
        let db2 = pooler_endpoint("db2", 5432);
        let may_ban = |rows: &[(&str, &str, &str)]| view(rows).may_ban(&db2);
        let (db1, own) = (("db1", "primary", "up"), ("db2", "replica", "up"));
        assert!(may_ban(&[db1, own, ("db3", "replica", "up")]));
        assert!(!may_ban(&[db1, own, ("db3", "replica", "banned")]));
        assert!(!may_ban(&[db1, own, ("db3", "replica", "down")]));
        // The primary serves the reads of a single replica.
        assert!(may_ban(&[db1, own]));
        assert!(!may_ban(&[("db1", "primary", "down"), own]));
        assert!(!may_ban(&[own]));
    }

    #[test]
    fn member_is_found_by_host_or_address() {
        let view = view(&[("127.0.0.1", "replica", "up"), ("/run/pg", "replica", "up")]);
        let find = |host| view.find_member(&[pooler_endpoint(host, 5432)]);
        assert_eq!(find("127.0.0.1"), Some(pooler_endpoint("127.0.0.1", 5432)));
        assert_eq!(find("/run/pg"), Some(pooler_endpoint("/run/pg", 5432)));
        assert_eq!(find("localhost"), Some(pooler_endpoint("127.0.0.1", 5432)));
        assert_eq!(view.find_member(&[pooler_endpoint("127.0.0.1", 5433)]), None);
    }
}
