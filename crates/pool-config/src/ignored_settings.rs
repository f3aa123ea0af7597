//! Warnings about settings that are valid but have no effect.

use howdah_connect::tls::CipherLists;

use super::{AuthMethod, Config};

/// Returns the keys of `[pool]` that have no effect in this configuration, each with the reason.
pub(super) fn ignored_settings(config: &Config) -> Vec<(String, String)> {
    let auth = &config.auth;
    let rows = [
        (
            auth.hba_file.is_some() && auth.method != AuthMethod::Hba,
            "auth.hba-file",
            "its rules are not used: auth.type is not hba",
        ),
        (
            auth.ident_file.is_some() && auth.hba_file.is_none(),
            "auth.ident-file",
            "its maps are not used: there is no auth.hba-file",
        ),
    ];
    let ignored = rows.into_iter().filter(|(is_ignored, _, _)| *is_ignored);
    let ignored = ignored.map(|(_, key, why)| (key.to_owned(), why.to_owned()));
    let sides = [("client", &config.tls.client), ("server", &config.tls.server)];
    let ciphers = sides.into_iter().filter_map(|(name, side)| {
        let lists = side.cipher_lists();
        let unsupported = lists.unsupported().collect::<Vec<_>>().join(", ");
        let tls12 = CipherLists { tls13: String::new(), ..lists.clone() };
        let key = match tls12.unsupported().next() {
            Some(_) => "ciphers",
            None => "tls13-ciphers",
        };
        let text = format!(
            "no effect of {unsupported}: only names of suites that rustls has select suites; a list \
             with a keyword allows all of them, and none is weak"
        );
        (!unsupported.is_empty()).then(|| (format!("tls.{name}.{key}"), text))
    });
    // With `trust`, users without a secret cannot log in, so their settings have no effect.
    let is_trusting = auth.method == AuthMethod::Trust && !config.uses_auth_query();
    let unknown = config.users.iter().filter(|(_, user)| is_trusting && user.secret.is_none());
    let unknown = unknown.map(|(name, _)| {
        (
            format!("users.{name}"),
            "cannot log in with auth.type trust: it has no secret; set an empty one".to_owned(),
        )
    });
    ignored.chain(ciphers).chain(unknown).collect()
}

#[test]
fn default_settings_have_no_warnings() {
    assert_eq!(ignored_settings(&Config::default()), []);
    let text = "auth.ident-file = 'x'\nadmin-users = ['me']\n";
    let config: Config = toml::from_str(text).unwrap();
    let keys: Vec<_> = ignored_settings(&config).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["auth.ident-file"]);
}

#[test]
fn trusted_user_without_secret_causes_warning() {
    let keys = |method: &str| {
        let text = format!("auth.type = '{method}'\n[users]\na = {{}}\nb = {{ secret = '' }}\n");
        let config: Config = toml::from_str(&text).unwrap();
        ignored_settings(&config).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys("trust"), ["users.a"]);
    assert_eq!(keys("md5"), [""; 0]);
}
