//! Checks before a replay whether the captured sessions will be able to log in.

use std::{collections::BTreeMap, thread, time::Duration};

use howdah_connect::{Client, ConnectError, ConnectFailure, ConnectTarget};

use crate::{concurrency::ConcurrencyEstimate, identity::IdentityMap};

/// Maximum number of logins that are tried: first those with a mapped role or database, then those
/// with the most sessions.
const LOGINS_MAX: usize = 16;

/// Timeout of each attempt to connect. The logins are tried in parallel.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A login that the target refuses.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeniedLogin {
    /// The role on the target.
    pub user: String,
    /// The database on the target.
    pub database: String,
    /// Whether the role was set for the replay rather than taken from the capture.
    pub is_mapped: bool,
    /// Captured roles whose sessions use this login.
    pub captured: Vec<String>,
    /// Whether the database was set for the replay rather than taken from the capture.
    pub is_database_mapped: bool,
    /// Captured databases whose sessions use this login.
    pub captured_databases: Vec<String>,
    /// Number of sessions in the estimate that use this login.
    pub sessions: u64,
    /// The error of the attempt to log in.
    pub error: ConnectError,
}

impl DeniedLogin {
    /// Whether the database does not exist on the target (`3D000`), in which case the role is not
    /// at fault.
    pub fn is_database_missing(&self) -> bool {
        self.error.sqlstate() == Some("3D000")
    }
}

/// A login that sessions will use.
#[derive(Default)]
struct RequiredLogin {
    is_mapped: bool,
    captured: Vec<String>,
    is_database_mapped: bool,
    captured_databases: Vec<String>,
    sessions: u64,
}

impl RequiredLogin {
    /// Whether the role or database was set for the replay.
    fn is_named(&self) -> bool {
        self.is_mapped || self.is_database_mapped
    }
}

/// Tries up to 16 of the logins that sessions will use, according to the estimate and the mapping.
/// Returns those that would be refused again, for example because of an unknown role or database, a
/// wrong password or a rule in `pg_hba.conf`. Transient failures, such as a full server, are not
/// returned.
///
/// The target's own login is not tried, because it has succeeded before.
pub fn find_denied_logins(
    target: &ConnectTarget,
    identities: &IdentityMap,
    estimate: &ConcurrencyEstimate,
) -> Vec<DeniedLogin> {
    let mut needs: Vec<_> = required_logins(target, identities, estimate)
        .into_iter()
        .filter(|((user, database), _)| {
            (&**user, &**database) != (target.user(), target.database())
        })
        .collect();
    needs.sort_by_key(|(_, need)| (!need.is_named(), std::cmp::Reverse(need.sessions)));
    needs.truncate(LOGINS_MAX);
    thread::scope(|scope| {
        let tries: Vec<_> = needs
            .into_iter()
            .map(|(login, need)| scope.spawn(move || try_login(target, login, need)))
            .collect();
        tries.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    })
}

fn required_logins(
    target: &ConnectTarget,
    identities: &IdentityMap,
    estimate: &ConcurrencyEstimate,
) -> BTreeMap<(String, String), RequiredLogin> {
    let or = |name: &str, default: &str| if name.is_empty() { default } else { name }.to_owned();
    let mut needs: BTreeMap<_, RequiredLogin> = BTreeMap::new();
    for ((captured_user, captured_database), sessions) in &estimate.sessions {
        let user = or(identities.user(captured_user), target.user());
        let database = or(identities.database(captured_database), target.database());
        let need = needs.entry((user, database)).or_default();
        need.is_mapped |= identities.names_user(captured_user);
        need.sessions += sessions;
        if !need.captured.contains(captured_user) {
            need.captured.push(captured_user.clone());
        }
        need.is_database_mapped |= identities.names_database(captured_database);
        if !need.captured_databases.contains(captured_database) {
            need.captured_databases.push(captured_database.clone());
        }
    }
    // Mapped names are checked even if they do not occur in the estimate.
    let default = or(identities.database(""), target.database());
    for (captured, user) in identities.named_users() {
        let is_known = needs.iter().any(|((known, _), need)| known == user && need.is_mapped);
        if !is_known {
            let need = needs.entry((user.to_owned(), default.clone())).or_default();
            need.is_mapped = true;
            need.captured.extend(captured.map(str::to_owned));
        }
    }
    for (captured, database) in identities.named_databases() {
        let is_known =
            needs.iter().any(|((_, known), need)| known == database && need.is_database_mapped);
        if !is_known {
            let user = or(identities.user(""), target.user());
            let need = needs.entry((user, database.to_owned())).or_default();
            need.is_database_mapped = true;
            need.captured_databases.extend(captured.map(str::to_owned));
        }
    }
    needs
}

fn try_login(
    target: &ConnectTarget,
    (user, database): (String, String),
    need: RequiredLogin,
) -> Option<DeniedLogin> {
    let target =
        target.with_user(&user).with_database(&database).with_connect_timeout(Some(LOGIN_TIMEOUT));
    let error = Client::connect(&target).err()?;
    if !is_permanent(&error) {
        tracing::debug!(%user, %database, %error, "no connection yet");
        return None;
    }
    let RequiredLogin { is_mapped, captured, is_database_mapped, captured_databases, sessions } =
        need;
    Some(DeniedLogin {
        user,
        database,
        is_mapped,
        captured,
        is_database_mapped,
        captured_databases,
        sessions,
        error,
    })
}

/// Whether the same login would be refused again.
fn is_permanent(error: &ConnectError) -> bool {
    // 28 invalid_authorization_specification, 3D invalid_catalog_name, 42501
    // insufficient_privilege: no right to CONNECT.
    if let Some(code) = error.sqlstate() {
        return ["28", "3D", "42501"].iter().any(|class| code.starts_with(class));
    }
    let ConnectError::Failed { failures } = error else { return false };
    failures.iter().any(|failure| {
        matches!(failure.cause, ConnectFailure::LoginRefused(_) | ConnectFailure::Protocol(_))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use howdah_connect::{ConnParams, Environment};

    use super::*;

    #[test]
    fn every_mapped_or_estimated_role_is_required() {
        let words = ConnParams::from_conninfo("host=nowhere user=me dbname=mine");
        let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
        let pair = |user: &str, database: &str| (user.to_owned(), database.to_owned());
        let estimate = ConcurrencyEstimate {
            sessions: BTreeMap::from([
                (pair("app", "shop"), 3),
                (pair("web", "shop"), 2),
                (pair("", ""), 1),
            ]),
            ..ConcurrencyEstimate::default()
        };
        let mut identities = IdentityMap {
            users: HashMap::from(["app", "web", "late"].map(|user| {
                (user.to_owned(), if user == "late" { "night" } else { "bench" }.to_owned())
            })),
            ..IdentityMap::default()
        };
        let found: Vec<_> = required_logins(&target, &identities, &estimate)
            .into_iter()
            .map(|((user, database), need)| {
                (user, database, need.is_mapped, need.captured.join("+"), need.sessions)
            })
            .collect();
        let row = |user: &str, database: &str, mapped, captured: &str, sessions| {
            (user.to_owned(), database.to_owned(), mapped, captured.to_owned(), sessions)
        };
        assert_eq!(
            found,
            [
                row("bench", "shop", true, "app+web", 5),
                row("me", "mine", false, "", 1),
                row("night", "mine", true, "late", 0),
            ]
        );
        identities.as_user = Some("one".to_owned());
        let all: Vec<_> = required_logins(&target, &identities, &estimate).into_keys().collect();
        assert_eq!(all, [pair("one", "mine"), pair("one", "shop")]);
        identities.databases = HashMap::from(
            [("shop", "copy"), ("late", "night")]
                .map(|(from, to)| (from.to_owned(), to.to_owned())),
        );
        let named: Vec<_> = required_logins(&target, &identities, &estimate)
            .into_iter()
            .map(|((_, database), need)| (database, need.is_database_mapped))
            .collect();
        let expected = [("copy", true), ("mine", false), ("night", true)];
        assert_eq!(named, expected.map(|(name, mapped)| (name.to_owned(), mapped)));
    }
}
