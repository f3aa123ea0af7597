//! [`StartupRequest`]: a startup packet, checked against the settings.

use howdah_pool_config::{Config, DatabaseConfig, StoredSecret};
use howdah_pool_core::{SessionParameter, TargetRole};
use howdah_wire::{
    backend::encode,
    startup::{ProtocolVersion, Startup},
};

use super::{Rejection, Replication, options};

/// A startup packet that passed all checks.
#[derive(Clone, Debug)]
pub(super) struct StartupRequest {
    pub(super) user: String,
    pub(super) database: String,
    /// The version to use: 3.0 or 3.2.
    pub(super) version: ProtocolVersion,
    pub(super) replication: Replication,
    /// Session parameters. For replication they include `options` unchanged.
    pub(super) settings: Vec<SessionParameter>,
    /// The server role that the client requests with `target_session_attrs`.
    pub(super) role: Option<TargetRole>,
    /// Whether the client runs as the OS user of the pooler and uses the console.
    pub(super) is_owner: bool,
    /// The user's secret from an auth query.
    pub(super) secret: Option<StoredSecret>,
    /// Names of the requested protocol options (`_pq_.…`), none of which is supported.
    unknown_options: Vec<Vec<u8>>,
    /// Whether the requested version is newer than 3.2.
    is_newer: bool,
}

/// Names of the parameters that are always tracked, in addition to the configured ones.
const ALWAYS_TRACKED: [&str; 5] =
    ["client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name"];

impl StartupRequest {
    /// Checks a startup packet.
    pub(super) fn read(startup: &Startup<'_>, config: &Config) -> Result<Self, Rejection> {
        let requested = startup.version;
        if requested.major != 3 {
            return Err(Rejection::Protocol(requested));
        }
        let mut request = Self {
            user: String::new(),
            database: String::new(),
            // Version 3.1 does not exist.
            version: if requested.minor < 2 {
                ProtocolVersion::V3_0
            } else {
                ProtocolVersion::V3_2
            },
            replication: Replication::None,
            settings: Vec::new(),
            role: None,
            is_owner: false,
            secret: None,
            unknown_options: Vec::new(),
            is_newer: requested > ProtocolVersion::V3_2,
        };
        // `replication` is read first: it determines how the other parameters are handled, wherever
        // they are.
        for (name, value) in startup.parameters.clone() {
            if name == b"replication" {
                request.replication = Replication::parse(value)?;
            }
        }
        for (name, value) in startup.parameters.clone() {
            request.parameter(name, value, config)?;
        }
        if request.user.is_empty() {
            return Err(Rejection::NoUser);
        }
        if request.database.is_empty() {
            request.database.clone_from(&request.user);
        }
        if request.role.is_some()
            && !config.database(&request.database).is_some_and(DatabaseConfig::is_routed)
        {
            // Without a cluster the database has one server, whose role is unknown.
            match parameter_handling(SESSION_ATTRIBUTES.as_bytes(), config) {
                ParameterHandling::Ignore => request.role = None,
                _ => return Err(Rejection::Parameter(SESSION_ATTRIBUTES.to_owned())),
            }
        }
        Ok(request)
    }

    fn parameter(&mut self, name: &[u8], value: &[u8], config: &Config) -> Result<(), Rejection> {
        match name {
            b"user" => self.user = text("user", value)?,
            b"database" => self.database = text("database", value)?,
            b"replication" => {}
            // A replication connection has its own server, which parses `options` itself.
            b"options" if self.replication != Replication::None => {
                self.settings.push(SessionParameter::new(name, value));
            }
            b"options" => self.options(value, config)?,
            name if is_session_attributes(name) => self.session_attributes(value)?,
            name if name.starts_with(b"_pq_.") => self.unknown_options.push(name.to_vec()),
            name => match parameter_handling(name, config) {
                ParameterHandling::Track => self.settings.push(SessionParameter::new(name, value)),
                ParameterHandling::Ignore => {}
                ParameterHandling::Refuse if self.replication != Replication::None => {
                    self.settings.push(SessionParameter::new(name, value));
                }
                ParameterHandling::Refuse => return Err(Rejection::Parameter(lossy(name))),
            },
        }
        Ok(())
    }

    fn options(&mut self, value: &[u8], config: &Config) -> Result<(), Rejection> {
        let ignores_all = contains_name(b"options", &config.ignored_startup_parameters);
        let settings = match options::parse(value) {
            Ok(settings) => settings,
            Err(options::UnsupportedOptions) if ignores_all => return Ok(()),
            Err(options::UnsupportedOptions) => return Err(Rejection::Options),
        };
        for setting in settings {
            if is_session_attributes(&setting.name) {
                self.session_attributes(&setting.value)?;
                continue;
            }
            match parameter_handling(&setting.name, config) {
                ParameterHandling::Track => self.settings.push(setting),
                ParameterHandling::Ignore => {}
                ParameterHandling::Refuse if ignores_all => {}
                ParameterHandling::Refuse => {
                    return Err(Rejection::OptionsParameter(lossy(&setting.name)));
                }
            }
        }
        Ok(())
    }

    fn session_attributes(&mut self, value: &[u8]) -> Result<(), Rejection> {
        let name = std::str::from_utf8(value).ok();
        let role = name.and_then(TargetRole::from_session_attributes);
        self.role = Some(role.ok_or_else(|| Rejection::SessionAttributes(lossy(value)))?);
        Ok(())
    }

    /// Appends NegotiateProtocolVersion if the client requested a newer version or unknown options.
    pub(super) fn negotiate(&self, buf: &mut Vec<u8>) {
        if self.is_newer || !self.unknown_options.is_empty() {
            let options: Vec<_> = self.unknown_options.iter().map(Vec::as_slice).collect();
            encode::negotiate_protocol_version(buf, self.version, &options)
                .expect("names came from a packet, where zero bytes end them");
        }
    }
}

/// A connection parameter that libpq does not send. Clients of a cluster may send it here as a
/// startup parameter or in `options`.
const SESSION_ATTRIBUTES: &str = "target_session_attrs";

fn is_session_attributes(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(SESSION_ATTRIBUTES.as_bytes())
}

enum ParameterHandling {
    Track,
    Ignore,
    Refuse,
}

fn parameter_handling(name: &[u8], config: &Config) -> ParameterHandling {
    let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
    if ALWAYS_TRACKED.into_iter().any(is) || contains_name(name, &config.tracked_parameters) {
        ParameterHandling::Track
    } else if contains_name(name, &config.ignored_startup_parameters) {
        ParameterHandling::Ignore
    } else {
        ParameterHandling::Refuse
    }
}

fn contains_name(name: &[u8], names: &[String]) -> bool {
    names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

fn text(name: &str, value: &[u8]) -> Result<String, Rejection> {
    let text = std::str::from_utf8(value).map(str::to_owned);
    text.map_err(|_| Rejection::Layout(format!("the name of the {name} is not UTF-8")))
}

/// Converts the first 64 bytes of a name or value to text, for an error message.
fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned()
}

impl Replication {
    /// Parses a boolean or `database`. Source: `ProcessStartupPacket` in `backend_startup.c`;
    /// unique prefixes are accepted, as by `parse_bool`.
    fn parse(value: &[u8]) -> Result<Self, Rejection> {
        let is = |names: &[&str]| {
            names.iter().any(|name| {
                let full_name = name.as_bytes();
                // `o` alone is ambiguous: on or off.
                let long_enough = value.len() >= if name.starts_with('o') { 2 } else { 1 };
                long_enough
                    && full_name.get(..value.len()).is_some_and(|it| it.eq_ignore_ascii_case(value))
            })
        };
        match value {
            b"database" => Ok(Self::Logical),
            _ if is(&["true", "yes", "on", "1"]) => Ok(Self::Physical),
            _ if is(&["false", "no", "off", "0"]) => Ok(Self::None),
            _ => Err(Rejection::Replication(lossy(value))),
        }
    }
}
