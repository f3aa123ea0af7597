//! [`LoginSetting`]: a setting that sessions start with on the target.

use std::{fmt, str::FromStr};

/// A startup parameter for some or all sessions, from `--set [USER@DATABASE:]NAME=VALUE`. `RESET`
/// restores this value.
///
/// ```
/// use howdah_replay::LoginSetting;
///
/// let setting: LoginSetting = "app@shop:search_path=sales, public".parse()?;
/// assert!(setting.matches("app", "shop") && !setting.matches("app", "crm"));
/// assert_eq!((&*setting.name, &*setting.value), ("search_path", "sales, public"));
/// # Ok::<(), howdah_replay::ParseLoginSettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSetting {
    /// Captured role of the sessions; `None` means any.
    pub user: Option<String>,
    /// Captured database of the sessions; `None` means any.
    pub database: Option<String>,
    /// Name of the setting, such as `search_path`, or `options`.
    pub name: String,
    /// Value, as in `postgresql.conf` but without quotes.
    pub value: String,
}

/// The error for a text that is not of the form `[USER@DATABASE:]NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a setting: {reason}; use [USER@DATABASE:]NAME=VALUE, such as search_path=app or app@shop:work_mem=64MB"
)]
pub struct ParseLoginSettingError {
    text: String,
    reason: &'static str,
}

/// Startup parameters that are not settings, so `--set` refuses them.
const NOT_SETTINGS: [&str; 3] = ["user", "database", "replication"];

impl LoginSetting {
    /// Whether the setting applies to sessions captured with this role and database.
    pub fn matches(&self, user: &str, database: &str) -> bool {
        self.user.as_deref().is_none_or(|wanted| wanted == user)
            && self.database.as_deref().is_none_or(|wanted| wanted == database)
    }
}

impl FromStr for LoginSetting {
    type Err = ParseLoginSettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason| ParseLoginSettingError { text: text.to_owned(), reason };
        let (left, value) = text.split_once('=').ok_or_else(|| error("it has no ="))?;
        let (scope, name) = match left.rsplit_once(':') {
            Some((scope, name)) => (Some(scope), name),
            None => (None, left),
        };
        if !is_setting_name(name) {
            return Err(error("its name is not a valid setting name"));
        }
        if NOT_SETTINGS.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            return Err(error("user, database and replication are not settings"));
        }
        if value.contains('\0') {
            return Err(error("its value has a zero byte"));
        }
        let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let (user, database) = match scope {
            None => (None, None),
            // Role names may contain `@`, for example at some cloud providers; database names
            // rarely do.
            Some(scope) => match scope.rsplit_once('@') {
                Some((user, database)) => (some(user), some(database)),
                None => {
                    return Err(error(
                        "the text before the colon must be USER@, @DATABASE or USER@DATABASE",
                    ));
                }
            },
        };
        Ok(Self { user, database, name: name.to_owned(), value: value.to_owned() })
    }
}

/// Whether a name is valid, by the rules of `valid_custom_variable_name` in guc.c, except that it
/// needs no dot: identifiers of `a-z`, `A-Z`, `0-9`, `_`, `$` and non-ASCII characters, joined by
/// dots. Names of more than 256 bytes are refused.
fn is_setting_name(name: &str) -> bool {
    let is_word = |word: &str| {
        let starts = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_' || *byte >= 0x80;
        word.as_bytes().first().is_some_and(starts)
            && word.bytes().all(|byte| starts(&byte) || byte.is_ascii_digit() || byte == b'$')
    };
    // NAMEDATALEN does not limit setting names; the startup packet is limited to 10,000 bytes.
    name.len() <= 256 && name.split('.').all(is_word)
}

impl fmt::Display for LoginSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.user.is_some() || self.database.is_some() {
            let or_empty = |name: &Option<String>| name.clone().unwrap_or_default();
            write!(f, "{}@{}:", or_empty(&self.user), or_empty(&self.database))?;
        }
        write!(f, "{}={}", self.name, self.value)
    }
}

#[test]
fn settings_round_trip_through_text() {
    for text in [
        "search_path=a, b",
        "app@shop:search_path=",
        "me@server@shop:work_mem=1MB",
        "@shop:app.tenant=x=y:z",
        "app@:options=-c geqo=off",
    ] {
        let setting: LoginSetting = text.parse().unwrap();
        assert_eq!(setting.to_string(), text);
    }
    for (text, reason) in [
        ("search_path", "no ="),
        ("=x", "not a valid setting name"),
        ("a b=x", "not a valid setting name"),
        ("app.=x", "not a valid setting name"),
        ("app:work_mem=1MB", "USER@"),
        ("user=bob", "are not settings"),
    ] {
        let error = text.parse::<LoginSetting>().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let setting: LoginSetting = "@shop:a=b".parse().unwrap();
    assert!(setting.matches("anyone", "shop") && !setting.matches("anyone", "crm"));
}
