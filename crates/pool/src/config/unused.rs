//! Settings that are read and checked, and that nothing is done about: whoever uses one is told.

use super::{AuthMethod, Config};

/// Keys of `[pool]` that ask for something which is not done, and what happens instead.
pub(super) fn unused(config: &Config) -> Vec<(String, &'static str)> {
    let auth = &config.auth;
    let rows = [
        (
            auth.hba_file.is_some() && auth.method != AuthMethod::Hba,
            "auth.hba-file",
            "its rules are read and not followed: auth.type is not hba",
        ),
        (
            auth.ident_file.is_some() && auth.hba_file.is_none(),
            "auth.ident-file",
            "there is no auth.hba-file to name its maps",
        ),
    ];
    let asked = rows.into_iter().filter(|(is_asked, _, _)| *is_asked);
    let asked = asked.map(|(_, key, instead)| (key.to_owned(), instead));
    // Such an entry has settings for a user that is let in nowhere.
    let is_trusting = auth.method == AuthMethod::Trust && !config.looks_up();
    let unknown = config.users.iter().filter(|(_, user)| is_trusting && user.secret.is_none());
    let unknown = unknown.map(|(name, _)| {
        (
            format!("users.{name}"),
            "unknown to auth.type trust: it has no secret; an empty one will do",
        )
    });
    asked.chain(unknown).collect()
}

#[test]
fn only_what_is_asked_for_is_told() {
    assert_eq!(unused(&Config::default()), []);
    let text = "auth.ident-file = 'x'\nadmin-users = ['me']\n";
    let config: Config = toml::from_str(text).unwrap();
    let keys: Vec<_> = unused(&config).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["auth.ident-file"]);
}

#[test]
fn trusted_user_without_a_secret_is_warned_about() {
    let keys = |method: &str| {
        let text = format!("auth.type = '{method}'\n[users]\na = {{}}\nb = {{ secret = '' }}\n");
        let config: Config = toml::from_str(&text).unwrap();
        unused(&config).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys("trust"), ["users.a"]);
    assert_eq!(keys("md5"), [""; 0]);
}
