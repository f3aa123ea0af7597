//! [`KeyValue`]: how the value of a key is shown and set, by its type.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use howdah_connect::{SslMode, tls::TlsVersion};
use howdah_route::RolePreference;
use howdah_settings::{duration_from_seconds, parse_duration};

use super::super::{
    ApplicationName, AuthMethod, CopyCapture, DefaultShardSetting, KeyedTables, LoadBalanceHosts,
    MirrorEntry, PassThrough, PeerList, PoolMode, ProxySource, ServerEntry, ShardCollation,
    ShardEntry, ShardHash, ShardKeyValue, ShutdownMode, StoredSecret, Strategy,
};
use crate::hba::Hba;

/// How a value is written outside of TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// As in TOML, but without quotes, and lists with commas: SET with a key of `[pool]`.
    Howdah,
    /// As in a `pgbouncer.ini`.
    PgBouncer,
}

/// The error of [`KeyValue::set`] for types whose keys cannot be set.
pub(super) const NOT_SETTABLE: &str = "can be set only in the file";

/// A value of the settings: shown in reports and by SHOW CONFIG, parsed for SET and from a
/// `pgbouncer.ini`.
pub(crate) trait KeyValue {
    /// Returns the value as reports of changes show it, without secrets; `None` if it is not set.
    fn report(&self) -> Option<String>;

    /// Returns the value as SHOW CONFIG and a `pgbouncer.ini` write it.
    fn to_pgbouncer(&self) -> String {
        self.report().unwrap_or_default()
    }

    /// Parses a value and stores it.
    ///
    /// # Errors
    ///
    /// The text is not a valid value.
    fn set(&mut self, _text: &str, _notation: Notation) -> Result<(), String> {
        Err(NOT_SETTABLE.to_owned())
    }

    /// Returns the value if it is the path of a file.
    fn file_mut(&mut self) -> Option<&mut PathBuf> {
        None
    }
}

/// A value that may be missing.
trait OptionalValue: KeyValue + Sized {
    /// PgBouncer's notation of a missing value.
    const UNSET: &str = "";

    /// Parses a value; `None` if the text stands for a missing one.
    fn parse(text: &str, notation: Notation) -> Result<Option<Self>, String>;

    /// Returns the value if it is the path of a file.
    fn as_file_mut(&mut self) -> Option<&mut PathBuf> {
        None
    }
}

impl<T: OptionalValue> KeyValue for Option<T> {
    fn report(&self) -> Option<String> {
        self.as_ref().and_then(T::report)
    }

    fn to_pgbouncer(&self) -> String {
        self.as_ref().map_or_else(|| T::UNSET.to_owned(), T::to_pgbouncer)
    }

    fn set(&mut self, text: &str, notation: Notation) -> Result<(), String> {
        *self = T::parse(text, notation)?;
        Ok(())
    }

    fn file_mut(&mut self) -> Option<&mut PathBuf> {
        self.as_mut().and_then(T::as_file_mut)
    }
}

impl KeyValue for bool {
    fn report(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn to_pgbouncer(&self) -> String {
        u8::from(*self).to_string()
    }

    /// PgBouncer writes 0 for off, and any other number for on.
    fn set(&mut self, text: &str, notation: Notation) -> Result<(), String> {
        *self = match (notation, text) {
            (Notation::Howdah, "true") => true,
            (Notation::Howdah, "false") => false,
            _ => number(text)? != 0,
        };
        Ok(())
    }
}

impl KeyValue for u16 {
    fn report(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        *self = text.parse().map_err(|_| format!("{text:?} is not a port from 0 to 65535"))?;
        Ok(())
    }
}

impl KeyValue for u32 {
    fn report(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        *self = number(text)?;
        Ok(())
    }
}

/// A number of a database or user; -1 means that the general value applies.
impl OptionalValue for u32 {
    const UNSET: &str = "-1";

    fn parse(text: &str, _: Notation) -> Result<Option<Self>, String> {
        if text == Self::UNSET { Ok(None) } else { number(text).map(Some) }
    }
}

impl KeyValue for NonZeroU32 {
    fn report(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        *self = Self::new(number(text)?).ok_or("must be at least 1")?;
        Ok(())
    }
}

/// A limit; 0 means that there is none.
impl OptionalValue for NonZeroU32 {
    const UNSET: &str = "0";

    fn parse(text: &str, _: Notation) -> Result<Option<Self>, String> {
        number(text).map(Self::new)
    }
}

impl KeyValue for Duration {
    fn report(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn to_pgbouncer(&self) -> String {
        self.as_secs_f64().to_string()
    }

    fn set(&mut self, text: &str, notation: Notation) -> Result<(), String> {
        *self = match notation {
            Notation::Howdah => parse_duration(text)?,
            Notation::PgBouncer => text
                .trim()
                .parse()
                .ok()
                .and_then(duration_from_seconds)
                .ok_or_else(|| format!("{text:?} is not a number of seconds"))?,
        };
        Ok(())
    }
}

/// A timeout; 0 means that there is none.
impl OptionalValue for Duration {
    const UNSET: &str = "0";

    fn parse(text: &str, notation: Notation) -> Result<Option<Self>, String> {
        let mut duration = Self::ZERO;
        duration.set(text, notation)?;
        Ok(Some(duration).filter(|duration| !duration.is_zero()))
    }
}

/// A timeout of a database or user, which may be missing.
impl OptionalValue for Option<Duration> {
    fn parse(text: &str, notation: Notation) -> Result<Option<Self>, String> {
        Duration::parse(text, notation).map(Some)
    }
}

impl KeyValue for String {
    fn report(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn to_pgbouncer(&self) -> String {
        self.clone()
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        text.clone_into(self);
        Ok(())
    }
}

impl OptionalValue for String {
    fn parse(text: &str, _: Notation) -> Result<Option<Self>, String> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

impl KeyValue for PathBuf {
    fn report(&self) -> Option<String> {
        Some(format!("{:?}", self.to_pgbouncer()))
    }

    fn to_pgbouncer(&self) -> String {
        self.display().to_string()
    }
}

impl OptionalValue for PathBuf {
    fn parse(text: &str, _: Notation) -> Result<Option<Self>, String> {
        Ok((!text.is_empty()).then(|| text.into()))
    }

    fn as_file_mut(&mut self) -> Option<&mut PathBuf> {
        Some(self)
    }
}

impl KeyValue for Vec<String> {
    fn report(&self) -> Option<String> {
        Some(self.join(", "))
    }

    fn to_pgbouncer(&self) -> String {
        self.join(",")
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        *self = items.map(str::to_owned).collect();
        Ok(())
    }
}

impl KeyValue for PeerList {
    fn report(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        *self = text.parse()?;
        Ok(())
    }
}

impl OptionalValue for Vec<String> {
    fn parse(text: &str, notation: Notation) -> Result<Option<Self>, String> {
        let mut items = Self::new();
        items.set(text, notation)?;
        Ok(Some(items).filter(|items| !items.is_empty()))
    }
}

/// Implements both traits for keywords: their type, all of them, and the error for another one.
macro_rules! keywords {
    ($($type:ty, [$($keyword:expr),+], $expected:literal;)*) => {$(
        impl KeyValue for $type {
            fn report(&self) -> Option<String> {
                Some(self.as_str().to_owned())
            }

            fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
                let found = [$($keyword),+].into_iter().find(|it| it.as_str() == text);
                *self = found.ok_or_else(|| format!(concat!("{:?} is ", $expected), text))?;
                Ok(())
            }
        }
    )*};
}

keywords! {
    PoolMode, [Self::Session, Self::Transaction, Self::Adaptive, Self::Statement],
        "not one of session, transaction, adaptive, statement";
    ShutdownMode, [Self::WaitForServers, Self::WaitForClients],
        "neither wait-for-servers nor wait-for-clients";
    CopyCapture, [Self::Full, Self::Length, Self::Off], "not one of full, length, off";
    TlsVersion, [Self::Tls12, Self::Tls13], "neither TLSv1.2 nor TLSv1.3";
    PassThrough, [Self::Off, Self::Encrypted, Self::Loopback],
        "not one of off, encrypted, loopback";
}

impl OptionalValue for PoolMode {
    fn parse(text: &str, notation: Notation) -> Result<Option<Self>, String> {
        let mut mode = Self::default();
        mode.set(text, notation).map(|()| Some(mode))
    }
}

impl KeyValue for AuthMethod {
    fn report(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }

    fn set(&mut self, text: &str, _: Notation) -> Result<(), String> {
        const VALID: &str = "any, trust, plain, md5, scram-sha-256, cert";
        *self = match Self::ALL.into_iter().find(|method| method.as_str() == text) {
            Some(method) => method,
            None if ["pam", "ldap"].contains(&text) => {
                return Err(format!("{text} is not supported; use {VALID} or hba"));
            }
            None => return Err(format!("{text:?} is not one of {VALID}, hba")),
        };
        Ok(())
    }
}

/// Implements [`KeyValue`] for types whose keys are set only in the file.
macro_rules! report_only {
    ($($type:ty: $value:ident => $text:expr),* $(,)?) => {$(
        impl KeyValue for $type {
            fn report(&self) -> Option<String> {
                let $value = self;
                Some($text)
            }
        }
    )*};
}

report_only! {
    NonZeroU64: it => it.to_string(),
    NonZeroUsize: it => it.to_string(),
    SslMode: it => it.as_str().to_owned(),
    ApplicationName: it => format!("{:?}", it.to_string()),
    StoredSecret: _it => "a secret".to_owned(),
    Arc<Hba>: _it => "rules".to_owned(),
    Strategy: it => it.as_str().to_owned(),
    RolePreference: it => it.as_str().to_owned(),
    LoadBalanceHosts: it => format!("{it:?}").to_lowercase(),
    ShardHash: it => format!("{it:?}").to_lowercase(),
    ShardCollation: it => format!("{it:?}").to_lowercase(),
    DefaultShardSetting: it => match it {
        DefaultShardSetting::Shard(shard) => shard.to_string(),
        DefaultShardSetting::Keyword(word) => word.clone(),
    },
    KeyedTables: it => joined(&it.0, " ", |(name, key)| format!("{name} ({})", key.join(", "))),
    Vec<PathBuf>: it => joined(it, ", ", KeyValue::to_pgbouncer),
    Vec<ProxySource>: it => format!("{it:?}"),
    Vec<ServerEntry>: it => joined(it, ", ", format_server),
    Vec<ShardEntry>: it => joined(it, "; ", format_shard),
    Vec<MirrorEntry>: it => joined(it, ", ", format_mirror),
    BTreeMap<String, String>: it => joined(it, " ", |(name, value)| format!("{name}={value:?}")),
}

/// Implements [`OptionalValue`] for types with a parser of their own; an empty text is a missing
/// value.
macro_rules! optional {
    ($($type:ty: $text:ident => $parsed:expr),* $(,)?) => {$(
        impl OptionalValue for $type {
            fn parse($text: &str, _: Notation) -> Result<Option<Self>, String> {
                if $text.is_empty() { Ok(None) } else { $parsed.map(Some) }
            }
        }
    )*};
}

optional! {
    SslMode: text => Self::parse(text).ok_or_else(|| format!("{text:?} is not {}", Self::EXPECTED)),
    ApplicationName: text => text.parse(),
    bool: _text => Err(NOT_SETTABLE.to_owned()),
    NonZeroU64: _text => Err(NOT_SETTABLE.to_owned()),
    NonZeroUsize: _text => Err(NOT_SETTABLE.to_owned()),
    StoredSecret: _text => Err(NOT_SETTABLE.to_owned()),
    Arc<Hba>: _text => Err(NOT_SETTABLE.to_owned()),
}

/// Parses an unsigned 32-bit integer.
fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not an integer from 0 to {}", u32::MAX))
}

fn joined<I: IntoIterator>(items: I, by: &str, format: impl Fn(I::Item) -> String) -> String {
    items.into_iter().map(format).collect::<Vec<_>>().join(by)
}

fn format_server(entry: &ServerEntry) -> String {
    let port = entry.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port} ({}, weight {})", entry.host, entry.role.as_str(), entry.weight)
}

fn format_mirror(entry: &MirrorEntry) -> String {
    let MirrorEntry { host, port, dbname, user, sample_rate, pool_size, .. } = entry;
    let MirrorEntry { secret, client_bytes, buffer_bytes, timeout, .. } = entry;
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let word = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(", {name} {value:?}")).unwrap_or_default()
    };
    let (dbname, user) = (word("dbname", dbname), word("user", user));
    let secret = if secret.is_some() { ", a secret" } else { "" };
    format!(
        "{host}{port} (sample-rate {sample_rate}{dbname}{user}{secret}, pool-size {pool_size}, client-bytes \
         {client_bytes}, buffer-bytes {buffer_bytes}, timeout {timeout:?})"
    )
}

fn format_shard(entry: &ShardEntry) -> String {
    let ShardEntry { servers, dbname, values, rest, from, to } = entry;
    let mut text = servers.iter().map(format_server).collect::<Vec<_>>().join(", ");
    let mut add = |name: &str, value: String| text.push_str(&format!(" {name} {value}"));
    let value = |value: &ShardKeyValue| match value {
        ShardKeyValue::Number(number) => number.to_string(),
        ShardKeyValue::Text(text) => format!("{text:?}"),
    };
    dbname.iter().for_each(|name| add("dbname", format!("{name:?}")));
    values.iter().for_each(|it| add("value", value(it)));
    from.iter().for_each(|it| add("from", value(it)));
    to.iter().for_each(|it| add("to", value(it)));
    if *rest {
        add("and", "the rest".to_owned());
    }
    text
}
