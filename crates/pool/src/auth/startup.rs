//! What a startup packet asks for, judged by the settings.

use howdah_wire::{
    backend::encode,
    startup::{ProtocolVersion, Startup},
};

use super::{Rejection, Replication, options};
use crate::{
    ServerRole, Setting,
    config::{Config, Database, StoredSecret},
};

/// A startup packet that makes sense.
#[derive(Clone, Debug)]
pub(super) struct StartupRequest {
    pub(super) user: String,
    pub(super) database: String,
    /// 3.0 or 3.2.
    pub(super) version: ProtocolVersion,
    pub(super) replication: Replication,
    /// With [`Replication`], `options` as it came is among them.
    pub(super) settings: Vec<Setting>,
    /// Which servers of a cluster would do.
    pub(super) role: Option<ServerRole>,
    /// Whether it is who runs this process, at the console.
    pub(super) is_owner: bool,
    /// The user's secret, if it was looked up.
    pub(super) secret: Option<StoredSecret>,
    /// Names of protocol options that we do not know, and whether the version is too new.
    unknown_options: Vec<Vec<u8>>,
    is_newer: bool,
}

/// Settings that every client may have, beside those of the configuration.
const ALWAYS_TRACKED: [&str; 5] =
    ["client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name"];

impl StartupRequest {
    /// Judges a startup packet.
    pub(super) fn read(startup: &Startup<'_>, config: &Config) -> Result<Self, Rejection> {
        let asked = startup.version;
        if asked.major != 3 {
            return Err(Rejection::Protocol(asked));
        }
        let mut wish = Self {
            user: String::new(),
            database: String::new(),
            // There was never a 3.1.
            version: if asked.minor < 2 { ProtocolVersion::V3_0 } else { ProtocolVersion::V3_2 },
            replication: Replication::None,
            settings: Vec::new(),
            role: None,
            is_owner: false,
            secret: None,
            unknown_options: Vec::new(),
            is_newer: asked > ProtocolVersion::V3_2,
        };
        // It decides about the other parameters, wherever it stands among them.
        for (name, value) in startup.parameters.clone() {
            if name == b"replication" {
                wish.replication = Replication::parse(value)?;
            }
        }
        for (name, value) in startup.parameters.clone() {
            wish.parameter(name, value, config)?;
        }
        if wish.user.is_empty() {
            return Err(Rejection::NoUser);
        }
        if wish.database.is_empty() {
            wish.database.clone_from(&wish.user);
        }
        if wish.role.is_some() && !config.database(&wish.database).is_some_and(Database::is_routed)
        {
            // There is nothing to choose from, and nobody who would know what the server is.
            match fate(SESSION_ATTRIBUTES.as_bytes(), config) {
                Fate::PassedOver => wish.role = None,
                _ => return Err(Rejection::Parameter(SESSION_ATTRIBUTES.to_owned())),
            }
        }
        Ok(wish)
    }

    fn parameter(&mut self, name: &[u8], value: &[u8], config: &Config) -> Result<(), Rejection> {
        match name {
            b"user" => self.user = text("user", value)?,
            b"database" => self.database = text("database", value)?,
            b"replication" => {}
            // The server is the client's own: it reads its command line, and refuses what it does not
            // know.
            b"options" if self.replication != Replication::None => {
                self.settings.push(Setting::new(name, value));
            }
            b"options" => self.options(value, config)?,
            name if is_session_attributes(name) => self.session_attributes(value)?,
            name if name.starts_with(b"_pq_.") => self.unknown_options.push(name.to_vec()),
            name => match fate(name, config) {
                Fate::Kept => self.settings.push(Setting::new(name, value)),
                Fate::PassedOver => {}
                Fate::Refused if self.replication != Replication::None => {
                    self.settings.push(Setting::new(name, value));
                }
                Fate::Refused => return Err(Rejection::Parameter(lossy(name))),
            },
        }
        Ok(())
    }

    fn options(&mut self, value: &[u8], config: &Config) -> Result<(), Rejection> {
        let ignores_all = is_among(b"options", &config.ignored_startup_parameters);
        let settings = match options::parse(value) {
            Ok(settings) => settings,
            Err(options::NotOnlySettings) if ignores_all => return Ok(()),
            Err(options::NotOnlySettings) => return Err(Rejection::Options),
        };
        for setting in settings {
            if is_session_attributes(&setting.name) {
                self.session_attributes(&setting.value)?;
                continue;
            }
            match fate(&setting.name, config) {
                Fate::Kept => self.settings.push(setting),
                Fate::PassedOver => {}
                Fate::Refused if ignores_all => {}
                Fate::Refused => return Err(Rejection::OptionsParameter(lossy(&setting.name))),
            }
        }
        Ok(())
    }

    fn session_attributes(&mut self, value: &[u8]) -> Result<(), Rejection> {
        let word = std::str::from_utf8(value).ok();
        let role = word.and_then(ServerRole::of_session_attributes);
        self.role = Some(role.ok_or_else(|| Rejection::SessionAttributes(lossy(value)))?);
        Ok(())
    }

    /// Appends NegotiateProtocolVersion if the client asked for more than there is.
    pub(super) fn negotiate(&self, buf: &mut Vec<u8>) {
        if self.is_newer || !self.unknown_options.is_empty() {
            let options: Vec<_> = self.unknown_options.iter().map(Vec::as_slice).collect();
            encode::negotiate_protocol_version(buf, self.version, &options)
                .expect("names came from a packet, where zero bytes end them");
        }
    }
}

/// What libpq keeps to itself, since it connects to servers by itself. Here it may be sent, or given in
/// `options`, by a client of a database with several servers.
const SESSION_ATTRIBUTES: &str = "target_session_attrs";

fn is_session_attributes(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(SESSION_ATTRIBUTES.as_bytes())
}

enum Fate {
    Kept,
    PassedOver,
    Refused,
}

fn fate(name: &[u8], config: &Config) -> Fate {
    let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
    if ALWAYS_TRACKED.into_iter().any(is) || is_among(name, &config.tracked_parameters) {
        Fate::Kept
    } else if is_among(name, &config.ignored_startup_parameters) {
        Fate::PassedOver
    } else {
        Fate::Refused
    }
}

fn is_among(name: &[u8], names: &[String]) -> bool {
    names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

fn text(name: &str, value: &[u8]) -> Result<String, Rejection> {
    let text = std::str::from_utf8(value).map(str::to_owned);
    text.map_err(|_| Rejection::Layout(format!("the name of the {name} is not UTF-8")))
}

/// For an error; a name may be long, and an error is read by people.
fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned()
}

impl Replication {
    /// The words of a boolean, and `database`. Source: `ProcessStartupPacket` in
    /// `backend_startup.c`; words may be cut short, as `parse_bool` allows.
    fn parse(value: &[u8]) -> Result<Self, Rejection> {
        let is = |words: &[&str]| {
            words.iter().any(|word| {
                let whole = word.as_bytes();
                // `o` alone may be either of on and off.
                let long_enough = value.len() >= if word.starts_with('o') { 2 } else { 1 };
                long_enough
                    && whole.get(..value.len()).is_some_and(|it| it.eq_ignore_ascii_case(value))
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
