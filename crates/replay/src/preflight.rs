//! Whether sessions will get in, found out before the first of them tries.

use std::{collections::BTreeMap, thread, time::Duration};

use howdah_connect::{Client, ConnectError, ConnectFailure, Target};

use crate::{identity::Identities, survey::Survey};

/// Logins that are tried at most: those of the most sessions.
const LOGINS_MAX: usize = 16;

/// How long each may take. They are tried side by side, so all of them take no longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A role that the target does not let in.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeniedLogin {
    /// The role on the target.
    pub user: String,
    /// The database on the target.
    pub database: String,
    /// The role was named for the replay, not taken from the capture.
    pub is_mapped: bool,
    /// Captured roles whose sessions need it.
    pub captured: Vec<String>,
    /// The database was named for the replay, not taken from the capture.
    pub is_database_mapped: bool,
    /// Captured databases whose sessions need it.
    pub captured_databases: Vec<String>,
    /// Sessions that were seen to need it.
    pub sessions: u64,
    /// What the target said.
    pub error: ConnectError,
}

impl DeniedLogin {
    /// Whether the target has no such database (`3D000`), so that the role is not to blame.
    pub fn is_database_missing(&self) -> bool {
        self.error.sqlstate() == Some("3D000")
    }
}

/// A login that sessions need.
#[derive(Default)]
struct Need {
    is_mapped: bool,
    captured: Vec<String>,
    is_database_mapped: bool,
    captured_databases: Vec<String>,
    sessions: u64,
}

impl Need {
    /// Whether the replay was asked for it by name.
    fn is_named(&self) -> bool {
        self.is_mapped || self.is_database_mapped
    }
}

/// Tries to log in as the roles that sessions will use, as far as a survey and the mapping tell, and
/// gives those that are refused for good: no such role or database, a wrong password, a rule of
/// `pg_hba.conf`. What may pass, such as a server that is full, is not told here.
///
/// `target` has logged in before, as itself.
pub fn shut_out(target: &Target, identities: &Identities, survey: &Survey) -> Vec<DeniedLogin> {
    let mut needs: Vec<_> = needs(target, identities, survey)
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

fn needs(
    target: &Target,
    identities: &Identities,
    survey: &Survey,
) -> BTreeMap<(String, String), Need> {
    let or = |name: &str, default: &str| if name.is_empty() { default } else { name }.to_owned();
    let mut needs: BTreeMap<_, Need> = BTreeMap::new();
    for ((captured_user, captured_database), sessions) in &survey.sessions {
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
    // Those that the survey has not come to.
    let default = or(identities.database(""), target.database());
    for (captured, user) in identities.named_users() {
        let is_there = needs.iter().any(|((known, _), need)| known == user && need.is_mapped);
        if !is_there {
            let need = needs.entry((user.to_owned(), default.clone())).or_default();
            need.is_mapped = true;
            need.captured.extend(captured.map(str::to_owned));
        }
    }
    for (captured, database) in identities.named_databases() {
        let is_there =
            needs.iter().any(|((_, known), need)| known == database && need.is_database_mapped);
        if !is_there {
            let user = or(identities.user(""), target.user());
            let need = needs.entry((user, database.to_owned())).or_default();
            need.is_database_mapped = true;
            need.captured_databases.extend(captured.map(str::to_owned));
        }
    }
    needs
}

fn try_login(
    target: &Target,
    (user, database): (String, String),
    need: Need,
) -> Option<DeniedLogin> {
    let target =
        target.with_user(&user).with_database(&database).with_connect_timeout(Some(PATIENCE));
    let error = Client::connect(&target).err()?;
    if !is_refusal(&error) {
        tracing::debug!(%user, %database, %error, "no connection yet");
        return None;
    }
    let Need { is_mapped, captured, is_database_mapped, captured_databases, sessions } = need;
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

/// Whether the same login will be refused the next time.
fn is_refusal(error: &ConnectError) -> bool {
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

    use howdah_connect::{Environment, Words};

    use super::*;

    #[test]
    fn every_role_that_is_named_or_seen_is_needed() {
        let words = Words::from_conninfo("host=nowhere user=me dbname=mine");
        let target = Target::resolve(&words, &Environment::empty()).unwrap();
        let pair = |user: &str, database: &str| (user.to_owned(), database.to_owned());
        let survey = Survey {
            sessions: BTreeMap::from([
                (pair("app", "shop"), 3),
                (pair("web", "shop"), 2),
                (pair("", ""), 1),
            ]),
            ..Survey::default()
        };
        let mut identities = Identities {
            users: HashMap::from(["app", "web", "late"].map(|user| {
                (user.to_owned(), if user == "late" { "night" } else { "bench" }.to_owned())
            })),
            ..Identities::default()
        };
        let found: Vec<_> = needs(&target, &identities, &survey)
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
        let all: Vec<_> = needs(&target, &identities, &survey).into_keys().collect();
        assert_eq!(all, [pair("one", "mine"), pair("one", "shop")]);
        identities.databases = HashMap::from(
            [("shop", "copy"), ("late", "night")]
                .map(|(from, to)| (from.to_owned(), to.to_owned())),
        );
        let named: Vec<_> = needs(&target, &identities, &survey)
            .into_iter()
            .map(|((_, database), need)| (database, need.is_database_mapped))
            .collect();
        let expected = [("copy", true), ("mine", false), ("night", true)];
        assert_eq!(named, expected.map(|(name, mapped)| (name.to_owned(), mapped)));
    }
}
